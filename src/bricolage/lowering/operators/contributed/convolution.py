"""Convolutions (ContribOperators.md of microsoft/onnxruntime)."""

from __future__ import annotations

from typing import Unpack

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, contributed
from bricolage.lowering.operators.contributed.activation import apply_activation
from bricolage.lowering.operators.convolution import conv
from bricolage.lowering.window_indices import ConvAttributes


@contributed("FusedConv")
def fused_conv(
    xp: Arrays,
    x: Array,
    w: Array,
    b: Array = None,
    z: Array = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    **attributes: Unpack[ConvAttributes],
) -> Array:
    """ContribOperators.md#com.microsoft.FusedConv: z is added before the activation."""
    y = conv(xp, x, w, b, **attributes)
    alpha, beta = (*activation_params, None, None)[:2]
    return apply_activation(xp, y if z is None else y + z, activation, alpha, beta)


@contributed("NhwcConv")
def nhwc_conv(xp: Arrays, x: Array, w: Array, b: Array = None, **attributes: Unpack[ConvAttributes]) -> Array:
    """ContribOperators.md#com.microsoft.NhwcConv: x and y have their channels last, w [M, C / group, ...] has not."""
    last = x.ndim - 1
    x = xp.transpose(x, (0, last, *range(1, last)))
    y = conv(xp, x, w, b, **attributes)
    return xp.transpose(y, (0, *range(2, last + 1), 1))
