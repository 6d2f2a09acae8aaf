"""What PyTorch's schemas say of operators: what they write to, their functional form, and whether they draw random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bricolage.errors import NotFusible
from bricolage.train.fuse.lane_graph import operator_name, where
from bricolage.train.fuse.operators.call import Call

if TYPE_CHECKING:
    import torch


def out_argument(node: torch.fx.Node) -> str:
    """The name of the argument that says where results go; empty if there is none."""
    schema = getattr(node.target, "_schema", None)
    return next((argument.name for argument in schema.arguments if _is_out(argument)), "") if schema is not None else ""


def written_argument(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor that an operator writes to; None where it gives a new one.

    Raises:
        NotFusible: it writes to several.
    """
    import torch

    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return None
    places = [
        at
        for at, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if not places:
        return None
    at = places[0]
    destination = node.args[at] if at < len(node.args) else node.kwargs.get(schema.arguments[at].name)
    if len(places) > 1 or not isinstance(destination, torch.fx.Node):
        raise NotFusible(reason=f"{operator_name(node)} writes to several tensors; {where(node)}")
    return destination


def functional(target: Any) -> Any:
    """The overload of an operator that works in place, or into a given tensor, which gives a new one; None if there is none."""
    import torch

    space, _, name = str(target._schema.name).partition("::")
    name = f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")  # as `__ior__` for `|=`
    packet = getattr(getattr(torch.ops, space), name, None)
    wanted = _signature(target._schema)
    for overload in packet.overloads() if packet is not None else ():
        candidate = getattr(packet, overload)
        writes = any(
            argument.alias_info is not None and argument.alias_info.is_write for argument in candidate._schema.arguments
        )
        if not writes and _signature(candidate._schema) == wanted:
            return candidate
    return None


def _signature(schema: Any) -> list[tuple[str, str]]:
    """Arguments by name and type, but for the tensor that results go to. The first has other names in some operators."""
    given = [argument for argument in schema.arguments if not _is_out(argument)]
    return [(parameter.name if at else "", str(parameter.type)) for at, parameter in enumerate(given)]


def _is_out(argument: Any) -> bool:
    return bool(argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write)


def draws(call: Call, target: Any) -> bool:
    """Whether a call draws random numbers: not where its rate is 0 in all lanes, nor outside of training."""
    import torch

    schema = getattr(target, "_schema", None)
    if schema is None:
        return False
    recurrent = "num_layers" in (names := [argument.name for argument in schema.arguments]) and "dropout" in names
    if not recurrent and torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = {**dict(zip(names, call.args, strict=False)), **call.keywords}
    if recurrent and given["num_layers"] == 1:
        return False
    if any(given.get(name) is False for name in ("train", "training")):
        return False
    rates = [name for name in ("p", "dropout_p", "dropout") if name in given]
    lane_rates = [number[0] for number in call.numbers]
    return not rates or bool(any(lane_rates) if lane_rates else given[rates[0]])


def memory_order(alone: object) -> tuple[int, ...]:
    """Dimensions of a tensor as they lie in memory; empty where they lie as they stand, or overlap."""
    import torch

    if not isinstance(alone, torch.Tensor) or alone.is_contiguous():
        return ()
    strides = alone.stride()
    return tuple(sorted(range(alone.ndim), key=lambda dimension: (-strides[dimension], dimension)))
