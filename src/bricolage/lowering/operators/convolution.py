"""Convolution and transposed convolution of any number of spatial axes."""

from __future__ import annotations

from typing import Unpack

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, operator
from bricolage.lowering.window_indices import ConvAttributes, resolve_windows, transpose_crop

Ints = tuple[int, ...]


def add_bias(x: Array, bias: Array) -> Array:
    """A bias for each channel (axis 1)."""
    return x if bias is None else x + bias.reshape((1, -1) + (1,) * (x.ndim - 2))


@operator("Conv")
def conv(xp: Arrays, x: Array, w: Array, b: Array = None, **attributes: Unpack[ConvAttributes]) -> Array:
    steps = resolve_windows(x.shape[2:], tuple(w.shape[2:]), attributes)
    y = xp.convolution(x, w, steps.strides, steps.pads, steps.dilations, attributes.get("group", 1))
    return add_bias(y, b)


@operator("ConvTranspose")
def conv_transpose(
    xp: Arrays,
    x: Array,
    w: Array,
    b: Array = None,
    *,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    **attributes: Unpack[ConvAttributes],
) -> Array:
    """The full transposed convolution, cropped (or extended by zeros) to the wanted size."""
    kernel = tuple(w.shape[2:])
    strides = attributes.get("strides") or (1,) * len(kernel)
    dilations = attributes.get("dilations") or (1,) * len(kernel)
    crop = transpose_crop(
        attributes.get("auto_pad", "NOTSET"),
        x.shape[2:],
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        pads=attributes.get("pads"),
        output_padding=output_padding or (0,) * len(kernel),
        output_shape=output_shape,
    )
    y = xp.convolution_transpose(x, w, strides, dilations, attributes.get("group", 1))
    for axis, (low, high) in enumerate(crop, start=2):
        y = xp.slice_axis(y, axis, max(low, 0), y.shape[axis] - max(high, 0), 1)
    widths = [(0, 0), (0, 0)] + [(max(-low, 0), max(-high, 0)) for low, high in crop]
    return add_bias(xp.pad(y, widths, 0) if any(b + a for b, a in widths) else y, b)


@operator("CausalConvWithState", since=27)
def causal_conv_with_state(
    xp: Arrays, x: Array, w: Array, b: Array = None, past: Array = None, *, activation: str = "none"
) -> Results:
    """Depth-wise causal 1-D convolution that carries its last k - 1 inputs."""
    reach = w.shape[2] - 1
    padded = xp.pad(x, [(0, 0), (0, 0), (reach, 0)], 0) if past is None else xp.concat((past, x), 2)
    y = add_bias(xp.convolution(padded, w, (1,), [(0, 0)], (1,), x.shape[1]), b)
    if activation != "none":
        wide = xp.widen(y)
        y = xp.astype(wide * xp.sigmoid(wide), y.dtype)
    return y, xp.slice_axis(padded, 2, padded.shape[2] - reach, padded.shape[2], 1)
