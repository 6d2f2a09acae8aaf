"""Loss operators."""

from __future__ import annotations

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, operator


@operator("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(
    xp: Arrays,
    x: Array,
    target: Array,
    weight: Array = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    """x: [n, classes, ...]; target: [n, ...]. The mean is weighted; ignored targets have weight 0."""
    ignored = None if ignore_index is None else target == ignore_index
    safe = target if ignored is None else xp.where(ignored, 0, target)
    column = safe.reshape((safe.shape[0], 1, *safe.shape[1:]))
    loss = -xp.take_along(x, column, 1).reshape(tuple(target.shape))
    ones = xp.full(tuple(target.shape), 1, x.dtype, x)
    weights = ones if weight is None else xp.take(weight, safe, 0)
    if ignored is not None:
        weights = xp.where(ignored, 0, weights)
    loss = xp.where(weights == 0, 0, loss * weights)
    axes = tuple(range(loss.ndim))
    if reduction == "sum":
        return xp.sum(loss, axes)
    return xp.sum(loss, axes) / xp.sum(weights, axes) if reduction == "mean" else loss


@operator("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(
    xp: Arrays,
    x: Array,
    target: Array,
    weight: Array = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    _outputs: int = 1,
) -> Results:
    log_probabilities = xp.log_softmax(x, 1)
    loss = negative_log_likelihood(
        xp, log_probabilities, target, weight, ignore_index=ignore_index, reduction=reduction
    )
    return loss if _outputs == 1 else (loss, log_probabilities)
