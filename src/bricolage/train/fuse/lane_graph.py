"""One lane's forward and loss as a graph of ATen operators, and what two such graphs have in common.

The graph is what `torch.export` gives for training, before any decomposition: a convolution is one operator, and so is attention
or an LSTM, which is the level at which the operators of several lanes are joined.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bricolage.errors import NotFusible
from bricolage.train.fuse import custom_backward
from bricolage.train.fuse.alone import make_loss, make_module
from bricolage.train.fuse.sweep import Lane
from bricolage.train.fuse.sweep_data import example
from bricolage.train.fuse.unheld import trained_parameters
from bricolage.train.step.data import Data
from bricolage.train.step.evaluate import loss_value
from bricolage.train.step.step import users_line

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
_NO_GRADIENT = "bricolage: no gradient"
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


def trace_lane(data: Data, lane: Lane) -> Traced:
    """The graph of a lane.

    Raises:
        NotFusible: the module does not export: its control flow depends on data, or it has what a graph cannot hold. The reason
            names the line.
        BadTrainingCode: what the training step names fails.
    """
    import torch

    batch = example(lane, data)
    loss = make_loss(data, lane)
    count = len(batch.inputs)
    alone, state = make_module(data, lane)

    def whole() -> torch.Tensor:
        return loss_value(loss(alone(*batch.inputs), *batch.targets), data.step.loss)

    trained = trained_parameters(alone, whole, data.step.module, state)
    module, _ = make_module(data, lane)
    _write_averages_out(module)

    class WholeStep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            kept = [(part, dict(part._buffers)) for part in self.module.modules()]
            value = loss(self.module(*tensors[:count]), *tensors[count:])
            _write_back(kept)
            return value

    import logging
    import warnings

    quiet = logging.getLogger("torch")
    level = quiet.level
    kept = torch.get_rng_state()
    try:
        quiet.setLevel(logging.CRITICAL)
        quietly = contextlib.redirect_stderr(io.StringIO())  # it prints what it cannot trace
        with warnings.catch_warnings(), quietly, custom_backward.keep_functions():
            warnings.simplefilter("ignore")
            program = torch.export.export(WholeStep().train(), batch.tensors)
    except NotFusible:
        raise
    except Exception as error:  # whatever the user's code or the exporter raises
        raise NotFusible(reason=f"the module does not export: {_reason(error)}") from error
    finally:
        quiet.setLevel(level)
        torch.set_rng_state(kept)
    return _build_trace(
        program, module, [(str(tensor.dtype), tuple(tensor.shape)) for tensor in batch.tensors], trained
    )


def _write_back(kept: Sequence[tuple[torch.nn.Module, Mapping[str, torch.Tensor | None]]]) -> None:
    """Writes what a module assigned to the names of its buffers into these, as the exporter does not for parts of a module.

    Raises:
        NotFusible: it is of another shape or type.
    """
    import torch

    with torch.no_grad():
        for part, buffers in kept:
            for name, before in buffers.items():
                now = part._buffers.get(name)
                if before is now:
                    continue
                if now is None or before is None or (now.shape, now.dtype) != (before.shape, before.dtype):
                    raise NotFusible(reason=f"each step gives its buffer '{name}' another shape or type")
                part._buffers[name] = before.copy_(now)


def _write_averages_out(module: torch.nn.Module) -> None:
    """Batch-norm whose statistics are means over all batches (`momentum=None`) reads a counter as a number, which no graph holds:
    the same in tensors."""
    import torch

    kind = torch.nn.modules.batchnorm._BatchNorm
    for part in module.modules():
        if not isinstance(part, kind) or type(part).forward is not kind.forward:
            continue
        if part.momentum is None and part.track_running_stats and part.running_mean is not None:
            part.__dict__["forward"] = functools.partial(_batch_norm_of_averages, part)


def _batch_norm_of_averages(part: Any, x: torch.Tensor) -> torch.Tensor:
    import torch

    part._check_input_dim(x)
    with torch.no_grad():
        part.num_batches_tracked.add_(1)
        share = part.num_batches_tracked.to(part.running_mean.dtype).reciprocal()
        variance, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=1)
        part.running_mean.lerp_(mean, share)
        part.running_var.lerp_(variance, share)
    batch_norm_of_averages: torch.Tensor = torch.nn.functional.batch_norm(
        x, None, None, part.weight, part.bias, training=True, momentum=0.0, eps=part.eps
    )
    return batch_norm_of_averages


def without_gradient(node: torch.fx.Node) -> bool:
    """Whether the module computes it under `torch.no_grad`."""
    return bool(node.meta.get(_NO_GRADIENT))


def _flat(graph: torch.fx.Graph, owner: torch.nn.Module) -> torch.fx.Graph:
    """The graph with what the exporter took out of it, as parts in which gradients are wanted or not, in its place again."""
    import torch

    flat = torch.fx.Graph()

    def copy_nodes(inner: torch.fx.Graph, home: Any, values: dict[torch.fx.Node, Any], gradients: bool) -> Any:
        def of(value: Any) -> Any:
            return torch.fx.node.map_arg(value, lambda input_node: values[input_node])

        for node in inner.nodes:
            if node in values:
                continue
            if node.op == "output":
                return of(node.args[0])
            if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
                wanted, part, *given = node.args
                body = getattr(home, part.target)
                places = [placeholder for placeholder in body.graph.nodes if placeholder.op == "placeholder"]
                inside = dict(zip(places, (of(argument) for argument in given), strict=True))
                values[node] = copy_nodes(body.graph, body, inside, bool(wanted))
            elif node.op == "get_attr" and all(
                user.target is torch.ops.higher_order.wrap_with_set_grad_enabled for user in node.users
            ):
                values[node] = None
            elif node.op == "get_attr":
                part = operator_name(next(iter(node.users)))
                raise NotFusible(reason=f"a part of it is computed by rules of its own ({part}); {where(node)}")
            elif operator_name(node) == "getitem" and isinstance(values.get(node.args[0]), tuple | list):
                values[node] = values[node.args[0]][node.args[1]]
            else:
                values[node] = copied_node = flat.node_copy(node, lambda input_node: values[input_node])
                copied_node.meta[_NO_GRADIENT] = not gradients
        return ()

    flat.output(copy_nodes(graph, owner, {}, True))
    return flat


def _build_trace(
    program: torch.export.ExportedProgram, module: torch.nn.Module, batch: object, trained: frozenset[str]
) -> Traced:
    graph = _flat(program.graph, program.graph_module)
    signature = program.graph_signature
    first = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    every = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    parameters, buffers, constants = {}, {}, {}
    for place, name in signature.inputs_to_parameters.items():
        parameters[place] = first[id(every[name.removeprefix("module.")])]
    for place, name in signature.inputs_to_buffers.items():
        buffers[place] = first[id(every[name.removeprefix("module.")])]
    for place, name in signature.inputs_to_lifted_tensor_constants.items():
        constants[place] = program.constants[name].detach()
    state_names = {*parameters, *buffers, *constants}
    places = [node.name for node in graph.nodes if node.op == "placeholder"]
    rest = tuple(name for name in places if name not in state_names)
    if rest != tuple(signature.user_inputs):
        raise NotFusible(reason="its graph has inputs other than weights and the batch")
    text, numbers = _write(graph, {**parameters, **buffers})
    state = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in module.state_dict().items()]
    values = [(place, constant.tolist()) for place, constant in constants.items()]
    whole = "\n".join([text, repr(batch), repr(state), repr(sorted(trained)), repr(values)])
    return Traced(
        graph,
        parameters,
        buffers=buffers,
        constants=constants,
        batch=rest,
        trained=trained,
        text=whole,
        numbers=numbers,
    )


def _write(graph: torch.fx.Graph, names: Mapping[str, str]) -> tuple[str, tuple[tuple[float, ...], ...]]:
    """The graph as text, with nodes by their numbers; and the numbers that lanes may have of their own."""
    import torch

    number = {node: index for index, node in enumerate(graph.nodes)}
    lines, lane_numbers = [], []

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
            lane_numbers.append(tuple(float(values[place]) for place in places))
            for place in places:
                values[place] = None
        kept = keywords(node)
        shown = node.meta.get("val")
        kind = f"{shown.dtype} {tuple(shown.shape)}" if isinstance(shown, torch.Tensor) else ""
        target = names.get(node.name, "") if node.op == "placeholder" else str(node.target)
        named = ", ".join(f"{k}={word(v)}" for k, v in kept.items())
        kind += " without gradient" if without_gradient(node) else ""
        lines.append(f"%{number[node]} {node.op} {target}({', '.join(map(word, values))}; {named}) {kind}")
    return "\n".join(lines), tuple(lane_numbers)


def operator_name(node: torch.fx.Node) -> str:
    """ "aten::conv2d" for the default overload of an operator, "aten::lstm.input" for another; a function's own name otherwise."""
    import torch

    if isinstance(node.target, torch._ops.OpOverload):
        return overload_name(node.target)
    return getattr(node.target, "__name__", str(node.target))


def overload_name(target: Any) -> str:
    """The name of an ATen operator, as `operator_name` has it."""
    name, overload = str(target._schema.name), str(target._overloadname)
    return name if overload == "default" else f"{name}.{overload}"


def arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    """The positional arguments of a node, with defaults where it leaves them out."""
    import torch

    if not isinstance(node.target, torch._ops.OpOverload):
        return tuple(node.args)
    rest = [argument for argument in node.target._schema.arguments if not argument.kwarg_only][len(node.args) :]
    return (*node.args, *(node.kwargs.get(parameter.name, parameter.default_value) for parameter in rest))


def keywords(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a node that have no place."""
    import torch

    if not isinstance(node.target, torch._ops.OpOverload):
        return dict(node.kwargs)
    only = {argument.name for argument in node.target._schema.arguments if argument.kwarg_only}
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
    named = [word for word in words if word.startswith("File ") or ("(" in word and ".py:" in word)]
    line = users_line(error) or (named[-1] if named else "a line that is not known")
    return f"{type(error).__name__}: {first} ({line})"
