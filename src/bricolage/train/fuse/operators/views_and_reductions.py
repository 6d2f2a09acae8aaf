"""Views and reductions: one dimension further back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import TABLE, Call, Joined, only, stack

if TYPE_CHECKING:
    import torch

_ONE_DIMENSION = {
    "aten::transpose.int": (1, 2),
    "aten::select.int": (1,),
    "aten::slice.Tensor": (1,),
    "aten::squeeze.dim": (1,),
    "aten::unsqueeze": (1,),
    "aten::softmax.int": (1,),
    "aten::log_softmax.int": (1,),
    "aten::_softmax": (1,),
    "aten::_log_softmax": (1,),
    "aten::flatten.using_ints": (1, 2),
    "aten::unflatten.int": (1,),
    "aten::movedim.int": (1, 2),
    "aten::cumsum": (1,),
    "aten::max.dim": (1,),
    "aten::min.dim": (1,),
    "aten::narrow": (1,),
    "aten::chunk": (2,),
    "aten::split.Tensor": (2,),
    "aten::split_with_sizes": (2,),
    "aten::unbind.int": (1,),
    "aten::glu": (1,),
}
"""Operators with dimensions among their arguments, and where."""
_SEVERAL = {
    "aten::permute": 1,
    "aten::mean.dim": 1,
    "aten::sum.dim_IntList": 1,
    "aten::amax": 1,
    "aten::amin": 1,
    "aten::var.correction": 1,
    "aten::std.correction": 1,
    "aten::var_mean.correction": 1,
    "aten::squeeze.dims": 1,
    "aten::flip": 1,
    "aten::linalg_vector_norm": 2,
    "aten::norm.ScalarOpt_dim": 2,
    "aten::logsumexp": 1,
}
_WHOLE = {"aten::mean": "mean", "aten::sum": "sum"}
_SAME = (
    "aten::contiguous",
    "aten::clone",
    "aten::detach",
    "aten::alias",
    "aten::to.dtype",
    "aten::_to_copy",
    "aten::lift_fresh_copy",
)


def behind(dimension: int) -> int:
    """A dimension of one lane's tensor in the stacked one."""
    return dimension + 1 if dimension >= 0 else dimension


@TABLE.rule(*_ONE_DIMENSION)
def one_dimension(call: Call) -> Joined | None:
    """The operator with its dimensions shifted. Of tensors without dimensions nothing is shifted: not covered."""
    operands = call.operands
    if len(operands) != 1 or not isinstance(call.args[0], type(operands[0])) or operands[0].rank == 0:
        return None
    rest = list(call.args[1:])
    for place in _ONE_DIMENSION[call.name]:
        rest[place - 1] = behind(rest[place - 1])
    if call.name == "aten::unsqueeze" and rest[0] < 0 and -rest[0] > operands[0].rank + 1:
        return None
    return _with(call, rest)


@TABLE.rule(*_SEVERAL)
def several_dimensions(call: Call) -> Joined | None:
    """The same for lists of dimensions; an empty one means all of a lane's."""
    operand = call.operands[0]
    place = _SEVERAL[call.name] - 1
    rest = list(call.args[1:])
    given = rest[place]
    dims = [given] if isinstance(given, int) else given
    if operand.rank == 0:
        return None
    rest[place] = [behind(dim) for dim in dims] if dims else list(range(1, operand.rank + 1))
    if call.name == "aten::permute":
        rest[place] = [0, *(dim % operand.rank + 1 for dim in dims)]
    return _with(call, rest)


@TABLE.rule(*_WHOLE)
def whole(call: Call) -> Joined | None:
    """Sums and means over all of a lane's tensor."""
    import torch

    operand, word = call.operands[0], _WHOLE[call.name]
    if operand.rank == 0:
        return None
    dims, reduce = list(range(1, operand.rank + 1)), getattr(torch, word)
    return only("by lane", lambda x: reduce(x, dims, **call.keywords))


@TABLE.rule(*_SAME)
def same(call: Call) -> Joined:
    """No dimension is named."""
    return _with(call, list(call.args[1:]))


@TABLE.rule("aten::view", "aten::reshape", "aten::_unsafe_view", "aten::unsafe_view")
def reshape(call: Call) -> Joined:
    """With the lanes in front. A copy where the lanes' memory is not in one piece."""
    shape = tuple(call.shape)
    lanes = call.lanes
    return only("reshape", lambda x: x.reshape(lanes, *shape))


@TABLE.rule("aten::expand")
def expand(call: Call) -> Joined:
    """With the lanes in front, after which missing dimensions are put in."""
    operand, shape, lanes = call.operands[0], tuple(call.shape), call.lanes
    ones = [1] * (len(shape) - operand.rank)
    return only("expand", lambda x: x.reshape(lanes, *ones, *operand.shape).expand(lanes, *shape))


@TABLE.rule("aten::t", "aten::numpy_T")
def t(call: Call) -> Joined:
    """Of a matrix."""
    return only("transpose", (lambda x: x.transpose(1, 2)) if call.operands[0].rank == 2 else (lambda x: x))


@TABLE.rule("aten::empty_like", "aten::new_empty")
def empty(call: Call) -> Joined:
    """Memory that something else fills: zeros, since what lies there differs from time to time."""
    shape, lanes, keywords = tuple(call.shape), call.lanes, call.keywords
    return only("zeros", lambda x: x.new_zeros((lanes, *shape), dtype=keywords.get("dtype")))


@TABLE.rule("aten::cat", "aten::stack")
def cat(call: Call) -> Joined | None:
    """With shared tensors repeated by lane."""
    import torch

    parts, dimension = call.args[0], call.args[1]
    if any(part.shape == (0,) for part in parts):  # as old code starts a list; it has no place among stacked ones
        return None
    operands, join = call.operands, torch.cat if call.name == "aten::cat" else torch.stack
    at = behind(dimension)

    def compute(*tensors: torch.Tensor) -> torch.Tensor:
        return join([stack(tensor, operand, call.lanes) for tensor, operand in zip(tensors, operands, strict=True)], at)

    return only("repeated" if any(not source.stacked for source in operands) else "unchanged", compute)


def _with(call: Call, rest: list[torch.Tensor]) -> Joined:
    target, keywords = call.target, call.keywords
    if keywords:
        return only("shifted", lambda x: target(x, *rest, **keywords))
    return only("shifted", lambda x: target(x, *rest))
