# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Pooling through XLA's reduce-window."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from bricolage.graph.extents import Pairs, input_pads, pool_size
from bricolage.lowering.common import PORTABLE, Array, Registry
from bricolage.lowering.jax.arrays import JaxArrays
from bricolage.lowering.operators import pooling as portable

Ints = tuple[int, ...]
REGISTRY = Registry(PORTABLE)
"""The portable operators, and those that JAX has a better form for."""


def _reduce_window(
    x: Array,
    initial: Array,
    combine: Callable[[Array, Array], Array],
    kernel: Ints,
    strides: Ints,
    pads: Pairs,
    dilations: Ints,
) -> Array:
    return lax.reduce_window(
        x,
        jnp.asarray(initial, x.dtype),
        combine,
        (1, 1, *kernel),
        (1, 1, *strides),
        [(0, 0), (0, 0), *pads],
        window_dilation=(1, 1, *dilations),
    )


def _geometry(
    x: Array, kernel: Ints, strides: Ints | None, pads: Ints | None, dilations: Ints | None, auto_pad: str, ceil: int
) -> tuple[Ints, Pairs, Pairs, Ints]:
    """(strides, declared pads, pads with what the last window needs, dilations)."""
    dims = len(kernel)
    strides, dilations = strides or (1,) * dims, dilations or (1,) * dims
    declared = input_pads(auto_pad, x.shape[2:], kernel, strides, dilations, pads)
    reached: Pairs = []
    for i, (low, high) in enumerate(declared):
        size = x.shape[i + 2]
        count = pool_size(size, kernel[i], strides[i], dilations[i], (low, high), bool(ceil))
        needed = (count - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - size - low
        reached.append((low, max(needed, 0)))
    return strides, declared, reached, dilations


@REGISTRY.operator("MaxPool")
def max_pool(
    xp: JaxArrays,
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    _outputs: int = 1,
) -> Array:
    if _outputs > 1:
        return portable.max_pool(
            xp,
            x,
            kernel_shape=kernel_shape,
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            dilations=dilations,
            pads=pads,
            storage_order=storage_order,
            strides=strides,
            _outputs=_outputs,
        )
    steps, _, reached, spread = _geometry(x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    lowest = np.asarray(xp.lowest(x.dtype), x.dtype)
    return _reduce_window(x, lowest, lax.max, kernel_shape, steps, reached, spread)


@REGISTRY.operator("AveragePool")
def average_pool(
    xp: JaxArrays,
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    steps, _, reached, spread = _geometry(x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    total = _reduce_window(x, 0, lax.add, kernel_shape, steps, reached, spread)
    tables = portable.tables_for(x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    counted = portable.mask_of([t.padded if count_include_pad else t.inside for t in tables])
    return total / jnp.asarray(counted.sum(-1), x.dtype)
