"""One lane's forward and loss as a graph of ATen operators, and what two such graphs have in common.

The graph is what `torch.export` gives for training, before any decomposition: a convolution is one operator, and so is attention
or an LSTM, which is the level at which the operators of several lanes are joined.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bricolage.errors import NotFusible
from bricolage.train.data import Data
from bricolage.train.fuse.alone import make_loss, make_module
from bricolage.train.fuse.data import example
from bricolage.train.fuse.sweep import Lane

if TYPE_CHECKING:
    import torch

LANE_CONSTANTS: Mapping[str, tuple[int, ...]] = {
    "aten::dropout": (1,),
    "aten::feature_dropout": (1,),
    "aten::cross_entropy_loss": (5,),
    "aten::scaled_dot_product_attention": (4,),
    "aten::lstm.input": (5,),
    "aten::gru.input": (5,),
    "aten::rnn_tanh.input": (5,),
    "aten::rnn_relu.input": (5,),
}
"""Operators with numbers that may differ from lane to lane, and which of their arguments these are: rates of dropout (a list of
them in attention and recurrent layers), label smoothing."""
_IGNORED = ("aten::_assert", "aten::sym_", "aten::_local_scalar")


@dataclass(frozen=True)
class Traced:
    """The graph of one lane. Placeholders are parameters and buffers (by their name in the module), constants, and the batch."""

    graph: torch.fx.Graph
    parameters: Mapping[str, str]
    """Placeholder → the first name of the parameter; several placeholders may be one parameter that the module shares."""
    buffers: Mapping[str, str]
    constants: Mapping[str, torch.Tensor]
    batch: tuple[str, ...]
    trained: frozenset[str]
    """Parameters that get gradients."""
    text: str
    """Equal for two lanes exactly where their graphs are, up to the numbers of `LANE_CONSTANTS`."""
    numbers: tuple[tuple[float, ...], ...]
    """Those numbers, operator by operator in the order of the graph."""


def trace(data: Data, lane: Lane) -> Traced:
    """The graph of a lane.

    Raises:
        NotFusible: the module does not export: its control flow depends on data, or it has what a graph cannot hold. The reason
            names the line.
        BadTrainingCode: what the training step names fails.
    """
    import torch

    batch = example(lane, data)
    module, _ = make_module(data, lane)
    loss = make_loss(data, lane)
    count = len(batch.inputs)

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return loss(self.module(*tensors[:count]), *tensors[count:])

    import logging
    import warnings

    quiet = logging.getLogger("torch")
    level = quiet.level
    kept = torch.get_rng_state()
    try:
        quiet.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(Step().train(), batch.tensors)
    except Exception as error:  # whatever the user's code or the exporter raises
        raise NotFusible(reason=f"the module does not export: {_reason(error)}") from error
    finally:
        quiet.setLevel(level)
        torch.set_rng_state(kept)
    return _traced(program, module, [(str(one.dtype), tuple(one.shape)) for one in batch.tensors])


def _traced(program: torch.export.ExportedProgram, module: torch.nn.Module, batch: object) -> Traced:
    graph: torch.fx.Graph = program.graph
    signature = program.graph_signature
    first = {id(one): name for name, one in module.named_parameters()}
    every = dict(module.named_parameters(remove_duplicate=False))
    parameters, buffers, constants = {}, {}, {}
    for place, name in signature.inputs_to_parameters.items():
        parameters[place] = first[id(every[name.removeprefix("module.")])]
    for place, name in signature.inputs_to_buffers.items():
        buffers[place] = name.removeprefix("module.")
    for place, name in signature.inputs_to_lifted_tensor_constants.items():
        constants[place] = program.constants[name].detach()
    known = {*parameters, *buffers, *constants}
    places = [node.name for node in graph.nodes if node.op == "placeholder"]
    rest = tuple(name for name in places if name not in known)
    if rest != tuple(signature.user_inputs):
        raise NotFusible(reason="its graph has inputs beside weights and the batch")
    trained = {name for name, one in module.named_parameters() if one.requires_grad}
    text, numbers = _write(graph, {**parameters, **buffers})
    state = [(name, tuple(one.shape), str(one.dtype)) for name, one in module.state_dict().items()]
    values = [(place, one.tolist()) for place, one in constants.items()]
    whole = "\n".join([text, repr(batch), repr(state), repr(sorted(trained)), repr(values)])
    used = {
        parameters[node.name]
        for node in graph.nodes
        if node.op == "placeholder" and node.name in parameters and node.users
    }
    return Traced(graph, parameters, buffers, constants, rest, frozenset(trained & used), whole, numbers)


def _write(graph: torch.fx.Graph, names: Mapping[str, str]) -> tuple[str, tuple[tuple[float, ...], ...]]:
    """The graph as text, with nodes by their numbers; and the numbers that lanes may have of their own."""
    import torch

    number = {node: index for index, node in enumerate(graph.nodes)}
    lines, own = [], []

    def word(value: object) -> str:
        if isinstance(value, torch.fx.Node):
            return f"%{number[value]}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(word, value))}]"
        if isinstance(value, slice):
            return f"slice({word(value.start)}, {word(value.stop)}, {word(value.step)})"
        return f"{type(value).__name__} {value!r}"

    for node in graph.nodes:
        places = LANE_CONSTANTS.get(operator_name(node), ()) if node.op == "call_function" else ()
        values = list(arguments(node))
        if places:
            own.append(tuple(float(values[place]) for place in places))
            for place in places:
                values[place] = None
        kept = keywords(node)
        shown = node.meta.get("val")
        kind = f"{shown.dtype} {tuple(shown.shape)}" if isinstance(shown, torch.Tensor) else ""
        target = names.get(node.name, "") if node.op == "placeholder" else str(node.target)
        named = ", ".join(f"{k}={word(v)}" for k, v in kept.items())
        lines.append(f"%{number[node]} {node.op} {target}({', '.join(map(word, values))}; {named}) {kind}")
    return "\n".join(lines), tuple(own)


def operator_name(node: torch.fx.Node) -> str:
    """ "aten::conv2d" for the default overload of an operator, "aten::lstm.input" for another; a function's own name otherwise."""
    import torch

    if isinstance(node.target, torch._ops.OpOverload):
        name, _, overload = str(node.target._schema.name), "", node.target._overloadname
        return name if overload == "default" else f"{name}.{overload}"
    return getattr(node.target, "__name__", str(node.target))


def arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    """The positional arguments of a node, with defaults where it leaves them out."""
    import torch

    if not isinstance(node.target, torch._ops.OpOverload):
        return tuple(node.args)
    rest = [one for one in node.target._schema.arguments if not one.kwarg_only][len(node.args) :]
    return (*node.args, *(node.kwargs.get(one.name, one.default_value) for one in rest))


def keywords(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a node that have no place."""
    import torch

    if not isinstance(node.target, torch._ops.OpOverload):
        return dict(node.kwargs)
    only = {one.name for one in node.target._schema.arguments if one.kwarg_only}
    return {name: value for name, value in node.kwargs.items() if name in only}


def is_ignored(node: torch.fx.Node) -> bool:
    """Whether a node only asserts what the shapes already say."""
    return operator_name(node).startswith(_IGNORED) and not node.users


def where(node: torch.fx.Node) -> str:
    """The line of the user's code that a node comes from, as far as it is known."""
    stack = str(node.meta.get("stack_trace") or "").strip().splitlines()
    lines = [line.strip() for line in stack if line.strip().startswith("File ")]
    return lines[-1] if lines else "a line that is not known"


def _reason(error: Exception) -> str:
    """What the exporter says, in one sentence, with the line of the user's code."""
    words = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = words[0] if words else type(error).__name__
    line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if "/torch/" not in frame.filename and "bricolage/train" not in frame.filename:
            line = f"{frame.filename}, line {frame.lineno}: {frame.line}"
    if not line:
        named = [word for word in words if word.startswith("File ") or ("(" in word and ".py:" in word)]
        line = named[-1] if named else "a line that is not known"
    return f"{type(error).__name__}: {first} ({line})"
