"""Weights of products as bytes, with a scale for each output channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bricolage.lowering.byte_columns import quantised_columns
from bricolage.quantization.products import WeightedProduct

_CLIPPED = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of a channel's largest weight that are tried as its range."""
_LARGEST_BIAS = 2**30
"""In int32; half of what there is, so that sums have room."""


@dataclass(frozen=True)
class QuantisedWeights:
    """Weights in the shape of the operator's own."""

    integers: np.ndarray
    """int8."""
    scales: np.ndarray
    """float32, one for each output channel."""
    error: float
    """Relative to the float weights: the norm of the difference."""

    def floats(self, axis: int) -> np.ndarray:
        """The rounded weights. `axis`: of the output channels."""
        shape = [1] * self.integers.ndim
        shape[axis] = -1
        weights: np.ndarray = self.integers.astype(np.float32) * self.scales.reshape(shape)
        return weights


def quantised_weights(
    product: WeightedProduct, weights: np.ndarray, bias: np.ndarray | None, activation_scale: float, *, pair_safe: bool
) -> QuantisedWeights:
    """Each channel with the range, of a few, that has the least square error.

    A channel of hardly any weights gets a larger scale, so that its bias fits into int32, whose unit is activation_scale · scale.

    Args:
        weights: float32 as the operator has them.
        bias: [channels], or None.
        pair_safe: see `bricolage.lowering.byte_columns`. Convolutions' neighbours are channels of one tap, and where they are odd
            in number also the last of a tap and the first of the next one.
    """
    columns = [_columns(product, weights)] if not pair_safe else _orders(product, weights)
    least = None
    if bias is not None:
        least = np.abs(np.broadcast_to(bias.reshape(-1), columns[0].shape[1:])) / (_LARGEST_BIAS * activation_scale)
    k = columns[0].shape[0]
    stacked = np.concatenate(columns)[None]
    largest = np.abs(stacked).max(axis=1, keepdims=True)
    best: tuple[np.ndarray, np.ndarray] | None = None
    lowest = np.full(stacked.shape[2], np.inf)
    for share in _CLIPPED:
        cut = np.clip(stacked, -share * largest, share * largest)
        quantised = quantised_columns(cut, pair_safe=pair_safe, least=None if least is None else least[None])
        integers, scales = quantised.integers[0, :k], quantised.scales[0]
        errors = ((integers * scales - columns[0]) ** 2).sum(axis=0)
        if best is None:
            best = integers, scales
        else:
            better = errors < lowest
            best = np.where(better, integers, best[0]), np.where(better, scales, best[1])
        lowest = np.minimum(lowest, errors)
    assert best is not None
    shaped = _restore_shape(product, best[0], weights.shape)
    norm = float(np.linalg.norm(weights))
    return QuantisedWeights(shaped, best[1].astype(np.float32), float(np.sqrt(lowest.sum())) / norm if norm else 0.0)


def _columns(product: WeightedProduct, weights: np.ndarray) -> np.ndarray:
    """[k, n] with channels of a tap side by side, and with an even number of them where there are taps."""
    if product.op_type != "Conv":
        return weights.T if product.transposed else weights
    return np.moveaxis(weights, 1, -1).reshape(weights.shape[0], -1).T


def _orders(product: WeightedProduct, weights: np.ndarray) -> list[np.ndarray]:
    """Columns in every order in which kernels pair neighbours, each with an even number of rows."""
    flat = _columns(product, weights)
    orders = [np.pad(flat, ((0, flat.shape[0] % 2), (0, 0)))]
    if product.op_type == "Conv" and weights.shape[1] % 2:
        by_tap = np.pad(np.moveaxis(weights, 1, -1), [(0, 0)] * (weights.ndim - 1) + [(0, 1)])
        orders.append(by_tap.reshape(weights.shape[0], -1).T)
    return orders


def _restore_shape(product: WeightedProduct, columns: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Columns back in the operator's shape."""
    if product.op_type != "Conv":
        rows = columns[: shape[1] if product.transposed else shape[0]]
        return np.ascontiguousarray(rows.T if product.transposed else rows)
    k = int(np.prod(shape[1:]))
    return np.ascontiguousarray(np.moveaxis(columns[:k].T.reshape(shape[0], *shape[2:], shape[1]), -1, 1))
