"""A training step as one graph without side effects: parameters and batch in, loss and gradients out.

`frontends.torch_training` follows a step as it runs, in place and by storages, for its time and memory. What is to be divided has
to be run again operator by operator on other tensors, so here PyTorch's own tracer writes down forward and backward phase as a
graph of `torch.fx`, on tensors without memory.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bricolage.errors import NotShardable
from bricolage.frontends.torch_operators import list_mutated_tensors
from bricolage.train.step.step import LossFunction, Tensors, TrainingStep, users_code

if TYPE_CHECKING:
    import torch

    from bricolage.train.pipeline.module_stages import Handed, ModuleStage


@dataclass(frozen=True)
class JointStep:
    """Placeholders of the graph are parameters, buffers and the batch, in this order; its outputs the loss and a gradient for each
    parameter (None for one that the loss does not need)."""

    graph: torch.fx.GraphModule
    parameters: tuple[str, ...]
    """That want a gradient."""
    buffers: tuple[str, ...]
    """And parameters that want none."""
    batch: int
    """Tensors of inputs and targets."""
    carried: tuple[bool, ...] = ()
    """Of a stage: what the one before hands on comes behind the batch; whether each has a gradient."""
    cotangents: int = 0
    """Of a stage: gradients of its outputs come last."""
    outputs: int = 1
    """Outputs before the gradients of parameters; those of what was carried come last."""

    @property
    def calls(self) -> list[str]:
        """Names of its operators, in their order, as plans of layouts have them."""
        return [
            node.name
            for node in self.graph.graph.nodes
            if node.op == "call_function" and node.target is not operator.getitem
        ]


def trace_joint(step: TrainingStep) -> JointStep:
    """The graph of a step's loss and gradients.

    Raises:
        NotShardable: it writes what lasts, as batch normalisation does, draws random numbers, or rests on values of tensors.
        BadTrainingCode: the module or the loss fails.
    """
    import torch

    trained: dict[str, torch.Tensor] = {
        name: parameter for name, parameter in step.module.named_parameters() if parameter.requires_grad
    }
    fixed: dict[str, torch.Tensor] = {
        name: parameter for name, parameter in step.module.named_parameters() if not parameter.requires_grad
    }
    fixed.update(step.module.named_buffers())
    inputs, targets = len(step.inputs), len(step.targets)

    def run(*given: torch.Tensor) -> list[torch.Tensor | None]:
        state = dict(zip([*trained, *fixed], given, strict=False))
        batch = given[len(state) :]
        out = torch.func.functional_call(step.module, state, tuple(batch[:inputs]))
        loss = step.loss(out, *batch[inputs:])
        return [loss, *torch.autograd.grad(loss, list(given[: len(trained)]), allow_unused=True)]

    leaves = [parameter.detach().requires_grad_() for parameter in trained.values()]
    given = [*leaves, *fixed.values(), *step.inputs, *step.targets]
    with users_code("the training step"):
        graph = _trace(run, given)
    return JointStep(_checked(graph), tuple(trained), tuple(fixed), inputs + targets)


@dataclass(frozen=True)
class StageExample:
    """Parts of a divided module that make a stage, with tensors of one micro-batch."""

    parts: Sequence[ModuleStage]
    inputs: Tensors
    carried: Sequence[Handed]
    """What the stage before hands on."""
    handed: Sequence[Handed]
    """What it hands on itself; empty for the last one."""
    targets: Tensors
    loss: LossFunction

    @property
    def last(self) -> bool:
        """Whether it ends with the loss."""
        return not self.handed


def stage_state(example: StageExample) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters of a stage that want a gradient, and what else it holds, by the module's names."""
    trained: dict[str, torch.Tensor] = {}
    fixed: dict[str, torch.Tensor] = {}
    for part in example.parts:
        for name, parameter in part.inner.named_parameters():
            (trained if parameter.requires_grad else fixed)[name] = parameter
        fixed.update(part.inner.named_buffers())
    return trained, fixed


def trace_stage(example: StageExample) -> JointStep:
    """The graph of a stage's outputs and gradients, for one micro-batch. Its placeholders are parameters, buffers, inputs, of the
    last stage targets, what is carried, and gradients of the outputs (of the loss too); its outputs what is handed on or the loss,
    gradients of parameters, and of what is carried.

    Raises:
        NotShardable: as `trace_joint` does.
        BadTrainingCode: the module or the loss fails.
    """
    import torch

    trained, fixed = stage_state(example)
    targets = example.targets if example.last else ()
    kinds = tuple(kind.gradient for kind in example.carried)
    ends = [0, *itertools.accumulate([len(trained), len(fixed), len(example.inputs), len(targets), len(kinds)])]

    def run(*given: torch.Tensor) -> list[torch.Tensor | None]:
        weights, kept, inputs, wanted, carried = (list(given[a:b]) for a, b in itertools.pairwise(ends))
        state = dict(zip([*trained, *fixed], [*weights, *kept], strict=True))
        outputs = _run_parts(example, state, inputs, carried)
        if example.last:
            outputs = (example.loss(outputs[0] if len(outputs) == 1 else outputs, *wanted),)
        roots = [output for output in outputs if output.requires_grad]
        leaves = [*weights, *(tensor for tensor, kind in zip(carried, kinds, strict=True) if kind)]
        gradients = torch.autograd.grad(roots, leaves, list(given[ends[-1] :]), allow_unused=True)
        return [*outputs, *gradients]

    leaves = [parameter.detach().requires_grad_() for parameter in trained.values()]
    carried = [kind.empty(torch.device("cpu")).zero_().requires_grad_(kind.gradient) for kind in example.carried]
    seeds = [kind.empty(torch.device("cpu")).zero_() for kind in example.handed if kind.gradient]
    seeds = [torch.ones(())] if example.last else seeds
    with users_code("a stage of the training step"):
        graph = _trace(run, [*leaves, *fixed.values(), *example.inputs, *targets, *carried, *seeds])
    batch = len(example.inputs) + len(targets)
    outputs = max(1, len(example.handed))
    return JointStep(_checked(graph), tuple(trained), tuple(fixed), batch, kinds, len(seeds), outputs)


def _run_parts(
    example: StageExample,
    state: dict[str, torch.Tensor],
    inputs: Sequence[torch.Tensor],
    carried: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """The outputs of all parts, with weights and buffers of a state."""
    import torch

    values = tuple(carried)
    named = {f"input{number}": tensor for number, tensor in enumerate(inputs)}
    for part in example.parts:
        names = [*dict(part.inner.named_parameters()), *dict(part.inner.named_buffers())]
        given = {f"inner.{name}": state[name] for name in names}
        outputs = torch.func.functional_call(part, given, values, named)
        values = outputs if isinstance(outputs, tuple) else (outputs,)
    return values


def _trace(run: Callable[..., object], given: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """Raises NotShardable where a decision rests on a value."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        return make_fx(run, decomposition_table=_means(), tracing_mode="fake")(*given)
    except torch._subclasses.fake_tensor.DataDependentOutputException as error:
        raise NotShardable(reason=f"a decision rests on the value of a tensor ({error.func})") from error


def _checked(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Without what nothing reads. Raises NotShardable where an operator cannot be divided."""
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        _check(node)
    graph.recompile()
    return graph


def _means() -> dict[torch._ops.OpOverload, Callable[..., object]]:
    """Gradients of losses that are means, in operators of which each part knows over how many elements the mean is: computed on a
    part, they would divide by the part's."""
    import torch
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    operators = [
        aten.mse_loss_backward,
        aten.smooth_l1_loss_backward,
        aten.huber_loss_backward,
        aten.binary_cross_entropy_backward,
    ]
    return get_decompositions(operators)  # type: ignore[return-value]


def _check(node: torch.fx.Node) -> None:
    import torch

    function = node.target
    if not isinstance(function, torch._ops.OpOverload):
        return
    names = [argument.name for argument in function._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in function._schema.arguments}
    drops = {**defaults, **dict(zip(names, node.args, strict=False))}
    if torch.Tag.nondeterministic_seeded in function.tags and drops.get("dropout_p", 1.0) != 0.0:
        raise NotShardable(reason=f"{function} draws random numbers; train without dropout")
    if list_mutated_tensors(function, *called_with(node, lambda source: source.meta.get("val"))):
        raise NotShardable(
            reason=f"{function} writes in place, as normalisation over a batch does with what it has seen"
        )


def tensor_arguments(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """What a node reads, in the order of its arguments, each as often as it stands there."""
    sources: list[torch.fx.Node] = []

    def see(one: torch.fx.Node) -> torch.fx.Node:
        sources.append(one)
        return one

    called_with(node, see)
    return sources


def called_with(
    node: torch.fx.Node, value: Callable[[torch.fx.Node], object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a node with something in the place of each node that it reads. Lists and dictionaries are Python's own."""
    from torch.fx.node import map_arg

    args, kwargs = map_arg((node.args, dict(node.kwargs)), value)  # type: ignore[arg-type]
    return tuple(plain_lists(argument) for argument in args), {
        name: plain_lists(argument) for name, argument in kwargs.items()
    }


def plain_lists(value: object) -> object:
    """Lists and tuples of their own kind, as DTensor's schema wants them: `torch.fx` has immutable ones."""
    if isinstance(value, tuple):
        return (
            tuple(plain_lists(element) for element in value)
            if type(value).__name__ in ("tuple", "immutable_tuple")
            else value
        )
    if isinstance(value, list):
        return [plain_lists(element) for element in value]
    if isinstance(value, dict):
        return {name: plain_lists(element) for name, element in value.items()}
    return value
