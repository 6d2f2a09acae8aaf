# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Pooling through XLA's reduce-window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import jax.numpy as jnp
import numpy as np
from jax import lax

from bricolage.graph.extents import Pairs, pool_size
from bricolage.lowering.common import PORTABLE, Array, Registry
from bricolage.lowering.jax.arrays import JaxArrays
from bricolage.lowering.operators import pooling as portable
from bricolage.lowering.window_indices import PoolAttributes, resolve_windows

REGISTRY = Registry(PORTABLE)
"""The portable operators, and those that JAX has a better form for."""


def _reduce_window(
    x: Array, initial: Array, combine: Callable[[Array, Array], Array], attributes: PoolAttributes
) -> Array:
    """Pads end where the last window does."""
    kernel, ceil = attributes["kernel_shape"], bool(attributes.get("ceil_mode"))
    steps = resolve_windows(x.shape[2:], kernel, attributes)
    pads: Pairs = [(0, 0), (0, 0)]
    for size, k, stride, dilation, (low, high) in zip(
        x.shape[2:], kernel, steps.strides, steps.dilations, steps.pads, strict=True
    ):
        count = pool_size(size, k, stride, dilation, (low, high), ceil)
        needed = (count - 1) * stride + (k - 1) * dilation + 1 - size - low
        pads.append((low, max(needed, 0)))
    return lax.reduce_window(
        x,
        jnp.asarray(initial, x.dtype),
        combine,
        (1, 1, *kernel),
        (1, 1, *steps.strides),
        pads,
        window_dilation=(1, 1, *steps.dilations),
    )


@REGISTRY.operator("MaxPool")
def max_pool(
    xp: JaxArrays, x: Array, *, storage_order: int = 0, _outputs: int = 1, **attributes: Unpack[PoolAttributes]
) -> Array:
    if _outputs > 1:
        return portable.max_pool(xp, x, storage_order=storage_order, _outputs=_outputs, **attributes)
    return _reduce_window(x, np.asarray(xp.lowest(x.dtype), x.dtype), lax.max, attributes)


@REGISTRY.operator("AveragePool")
def average_pool(xp: JaxArrays, x: Array, *, count_include_pad: int = 0, **attributes: Unpack[PoolAttributes]) -> Array:
    total = _reduce_window(x, 0, lax.add, attributes)
    tables = portable.tables_for(x, attributes)
    counted = portable.mask_of([t.padded if count_include_pad else t.inside for t in tables])
    return total / jnp.asarray(counted.sum(-1), x.dtype)
