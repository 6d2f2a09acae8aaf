"""Operators of PyTorch as they are called: their names, what they read and write, their work, and how to call them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry

from bricolage.frontends.traced_step import OperatorCall, TensorArgument


def call_of(function: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> OperatorCall:
    """The call, without its tensors."""
    return OperatorCall(function, tree_map(_argument, tuple(args)), tree_map(_argument, dict(kwargs)))


def tensors_of(value: object) -> list[torch.Tensor]:
    """The tensors within arguments or results."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def operator_name(function: OpOverload) -> str:
    """The operator's name, with its overload unless that is the default."""
    name, overload = str(function._schema.name), str(function._overloadname)
    return name if overload == "default" else f"{name}.{overload}"


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of its elements."""
    return int(tensor.numel() * tensor.element_size())


def is_view(function: OpOverload) -> bool:
    """Whether all that it returns lies in the memory of what it is given."""
    returned = function._schema.returns
    return bool(returned) and all(
        output.alias_info is not None and not output.alias_info.is_write for output in returned
    )


def list_mutated_tensors(
    function: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[torch.Tensor]:
    """The tensors among its arguments that an operator writes."""
    written_tensors = []
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        written_tensors += [
            item for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, torch.Tensor)
        ]
    return written_tensors


def signature_of(function: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Operator, shapes, types and integers: two calls with one signature take the same time."""
    named = [f"{key}={_word(value)}" for key, value in kwargs.items()]
    return f"{operator_name(function)}({', '.join([*map(_word, args), *named])})"


def flops_of(function: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], out: object) -> float:
    """Floating-point operations: PyTorch's own formulas, and one for each element that is made by what has none."""
    formula = flop_registry.get(function._overloadpacket)
    if formula is None:
        formula = _FORMULAS.get(operator_name(function))
    if formula is not None:
        try:
            return float(formula(*args, **kwargs, out_val=out))
        except (TypeError, ValueError, AttributeError, IndexError, AssertionError):
            pass
    return float(sum(tensor.numel() for tensor in tensors_of(out)))


def _argument(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return TensorArgument(tuple(value.shape), tuple(value.stride()), value.dtype, size_of(value))
    return value


def _word(value: object) -> str:
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        dense = "" if value.is_contiguous() else f"/{list(value.stride())}"
        return f"{kind}{list(value.shape)}{dense}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_word, value))}]"
    if isinstance(value, float):
        return "float"  # no operator takes longer for another
    return str(value)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object) -> float:
    batch, heads, rows, width = query.shape
    return float(2 * batch * heads * rows * key.shape[2] * (width + value.shape[3]))


def _attention_backward(
    _: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: object, **___: object
) -> float:
    return 2.5 * _attention(query, key, value)  # five products instead of two


def _recurrent(x: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, *_: object, **__: object) -> float:
    return float(2 * x.shape[0] * x.shape[1] * (w_ih.numel() + w_hh.numel()))


def _recurrent_backward(x: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, *_: object, **__: object) -> float:
    return 2.0 * _recurrent(x, w_ih, w_hh)


_FORMULAS: Mapping[str, Callable[..., float]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::mkldnn_rnn_layer": _recurrent,
    "aten::mkldnn_rnn_layer_backward": _recurrent_backward,
}
