"""A training step of PyTorch as a graph: what it computes, where its memory goes, and when gradients are ready.

The step (forward, backward, update of the weights) runs once on tensors without memory (`FakeTensorMode`), below autograd, where
AOTAutograd traces as well; so the graph is that of the operators that PyTorch would run, in their order, without running one.
Unlike AOTAutograd's it is not made functional: an operator that works in place does so here, and a tensor ends where PyTorch lets
go of its memory. Control flow that rests on data has no answer on such tensors, and is refused with the line that asks.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from bricolage.errors import BricolageError, NotTraceable
from bricolage.work.graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor

if TYPE_CHECKING:
    import torch

Phase: TypeAlias = Literal["forward", "backward", "recompute", "update"]
Kind: TypeAlias = Literal["weights", "optimiser state", "inputs", "gradients", "activations", "temporary"]
OUTSIDE = -1
"""Born before the step."""


@dataclass(frozen=True)
class Storage:
    """A piece of memory: its bytes, the operators before which it is there and after which it is gone. None: it stays."""

    bytes: int
    born: int
    """Number of the operator that makes it, or `OUTSIDE`."""
    freed: int | None
    """Number of the operator before which it is given back."""
    kind: Kind
    layer: str = ""
    """Path of the module that makes it."""


@dataclass(frozen=True)
class Gradient:
    """The gradient of a parameter and the operator after which it is complete."""

    parameter: str
    bytes: int
    ready: int


@dataclass(frozen=True)
class TensorArgument:
    """What an operator is given in the place of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


@dataclass(frozen=True)
class OperatorCall:
    """How an operator is called: tensors in its arguments are `TensorArgument`s."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class StepGraph:
    """A training step. Operators are numbered in the order in which PyTorch runs them; everything by operator has their length."""

    work: WorkGraph
    phases: tuple[Phase, ...]
    layers: tuple[str, ...]
    """Paths of modules; "" for what belongs to none, as the loss."""
    signatures: tuple[str, ...]
    """Operator, shapes, types and integers: two calls with one signature take the same time."""
    calls: Mapping[str, OperatorCall] = field(repr=False)
    """By signature."""
    storages: tuple[Storage, ...] = field(repr=False)
    gradients: tuple[Gradient, ...] = field(repr=False)
    """In the order in which they are complete."""

    def memory(self) -> list[int]:
        """Bytes that are taken while each operator runs: what is alive then, what it makes included."""
        count = len(self.work)
        steps = [0] * (count + 1)
        for one in self.storages:
            steps[max(one.born, 0)] += one.bytes
            if one.freed is not None:
                steps[min(one.freed, count)] -= one.bytes
        taken, total = [], 0
        for change in steps[:count]:
            total += change
            taken.append(total)
        return taken

    def peak(self) -> int:
        """Bytes at most."""
        return max(self.memory(), default=0)


class Steps(Protocol):
    """Something that trains: what `trace_step` follows."""

    def run(self, phase: Callable[[Phase], None] = ...) -> None:
        """One step; says which phase begins."""
        ...


def fake_copy(module: torch.nn.Module, mode: Any) -> torch.nn.Module:
    """A copy of a module whose tensors have shapes, types and strides, but no memory."""
    import torch

    known: dict[int, Any] = {}
    for part in module.modules():
        for one in [*part._parameters.values(), *part._buffers.values(), *vars(part).values()]:
            if isinstance(one, torch.Tensor) and id(one) not in known:
                fake = mode.from_tensor(one.detach())
                if isinstance(one, torch.nn.Parameter):
                    fake = torch.nn.Parameter(fake, one.requires_grad)
                known[id(one)] = fake
    return copy.deepcopy(module, known)


def trace_step(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    start: Callable[[torch.nn.Module, Sequence[torch.Tensor]], tuple[Steps, Callable[[], Mapping[str, list[Any]]]]],
) -> StepGraph:
    """The graph of a training step.

    Args:
        module: its module, which is left as it is.
        inputs: its batch, inputs and targets; only shapes, types and strides count.
        start: given a copy of both without memory, what runs a step, and what tells tensors that last: by the kind of storage
            ("weights", "optimiser state", "inputs").

    Raises:
        NotTraceable: the step's control flow rests on values of tensors, or an operator of it cannot run without memory.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = fake_copy(module, mode)
    batch = [mode.from_tensor(one.detach()) for one in inputs]
    recorder = _recorder()
    try:
        with _quiet(), mode:
            steps, lasting = start(twin, batch)
            steps.run()  # the optimiser makes its state in the first step
            recorder.all_known(lasting())
            with recorder, recorder.following(twin):
                steps.run(recorder.begin)
    except BricolageError:
        raise
    except Exception as error:
        reason = recorder.failed or error
        raise NotTraceable(reason=f"{_first_line(reason)} ({_users_line(reason)})") from error
    graph: StepGraph = recorder.graph(lasting())
    return graph


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the words of those who are used to data, and with the random state as it was."""
    import logging
    import warnings

    import torch

    state, logger = torch.get_rng_state(), logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        torch.set_rng_state(state)


@dataclass
class _Seen:
    """A storage as it is followed."""

    bytes: int
    born: int
    kind: Kind | None
    layer: str
    freed: int | None = None
    version: int = -1
    """The last operator that wrote it."""


def _recorder() -> Any:
    """A dispatch mode that writes down operators. In a function, since its base class is PyTorch's."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten, tree_map

    class Recorder(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is Any to a type checker
        def __init__(self) -> None:
            super().__init__()
            self.failed: Exception | None = None
            self._phase: Phase = "forward"
            self._operators: list[WorkOperator] = []
            self._phases: list[Phase] = []
            self._layers: list[str] = []
            self._signatures: list[str] = []
            self._calls: dict[str, OperatorCall] = {}
            self._storages: list[_Seen] = []
            self._alive: dict[int, int] = {}
            """By address of the storage object: its number."""
            self._edges: dict[tuple[int, int], set[int]] = {}
            """By storage and the operator that wrote it: operators that read that."""
            self._stack: list[str] = []
            self._ranges: list[tuple[int, str]] = []
            """From which number of autograd's on forward nodes belong to which layer."""
            self._gradients: list[Gradient] = []

        def begin(self, phase: Phase) -> None:
            self._phase = phase

        def known(self, kind: Kind, tensors: Sequence[Any]) -> None:
            for one in tensors:
                self._number(one, OUTSIDE, kind)

        def all_known(self, lasting: Mapping[str, list[Any]]) -> None:
            for kind, tensors in lasting.items():
                self.known(kind, tensors)  # type: ignore[arg-type]

        def _number(self, tensor: Any, born: int, kind: Kind | None = None) -> int:
            storage = tensor.untyped_storage()
            address = storage._cdata
            if address not in self._alive:
                number = len(self._storages)
                self._alive[address] = number
                self._storages.append(_Seen(storage.nbytes(), born, kind, self.layer(), version=born))
                weakref.finalize(storage, self._free, address, number).atexit = False
            return self._alive[address]

        def _free(self, address: int, number: int) -> None:
            if self._alive.get(address) == number:
                del self._alive[address]
            self._storages[number].freed = len(self._operators)

        def layer(self) -> str:
            if self._stack:
                return self._stack[-1]
            node = torch._C._current_autograd_node()
            if node is None:
                return ""
            try:
                wanted = node._sequence_nr()
            except (AttributeError, RuntimeError):
                return ""
            found = ""
            for start, name in self._ranges:
                if start > wanted:
                    break
                found = name
            return found

        @contextlib.contextmanager
        def following(self, module: torch.nn.Module) -> Iterator[None]:
            handles = []

            def enter(name: str) -> Callable[..., None]:
                def act(*_: Any) -> None:
                    self._stack.append(name)
                    if self._phase == "forward":
                        self._ranges.append((torch.autograd._get_sequence_nr(), name))

                return act

            def leave(*_: Any) -> None:
                if self._stack:
                    self._stack.pop()
                if self._phase == "forward":
                    self._ranges.append((torch.autograd._get_sequence_nr(), self._stack[-1] if self._stack else ""))

            def ready(name: str, size: int) -> Callable[..., None]:
                def act(_: Any) -> None:
                    self._gradients = [
                        one for one in self._gradients if one.parameter != name
                    ]  # of the last micro-batch
                    self._gradients.append(Gradient(name, size, len(self._operators) - 1))

                return act

            for name, part in module.named_modules():
                handles.append(part.register_forward_pre_hook(enter(name)))
                handles.append(part.register_forward_hook(leave, always_call=True))
            for name, one in module.named_parameters():
                if one.requires_grad:
                    handles.append(
                        one.register_post_accumulate_grad_hook(ready(name, one.numel() * one.element_size()))
                    )
            try:
                yield
            finally:
                for handle in handles:
                    handle.remove()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func.namespace == "prim":
                return func(*args, **kwargs)
            given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
            number = len(self._operators)
            read = {self._number(one, OUTSIDE): one for one in given}
            try:
                out = func(*args, **kwargs)
            except Exception as error:
                self.failed = self.failed or error
                raise
            made = [one for one in tree_flatten(out)[0] if isinstance(one, torch.Tensor)]
            phase = self._phase
            view = all(
                one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns
            ) and bool(func._schema.returns)
            written = {id(one) for one in _mutated(func, args, kwargs)}
            for place in read:
                self._edges.setdefault((place, self._storages[place].version), set()).add(number)
            moved = 0 if view else sum(_size(one) for one in [*given, *made])
            flops = 0.0 if view else _flops(func, args, kwargs, out, made)
            self._operators.append(WorkOperator(f"{number}: {_name(func)}", flops, moved, _name(func)))
            self._phases.append(phase)
            self._layers.append(self.layer())
            for place, one in read.items():
                if id(one) in written:
                    self._storages[place].version = number
            for one in made:
                self._number(one, number)
            signature = _signature(func, args, kwargs)
            self._signatures.append(signature)
            if signature not in self._calls:
                self._calls[signature] = OperatorCall(
                    func, tree_map(_argument, tuple(args)), tree_map(_argument, dict(kwargs))
                )
            return out

        def graph(self, lasting: Mapping[str, list[Any]]) -> StepGraph:
            for kind, tensors in lasting.items():
                for one in tensors:
                    place = self._alive.get(one.untyped_storage()._cdata)
                    if place is not None and self._storages[place].kind is None:
                        self._storages[place].kind = kind  # type: ignore[assignment]
            storages = [self._storage(one) for one in self._storages]
            tensors = []
            for (place, writer), readers in self._edges.items():
                readers = {one for one in readers if one > writer}
                producer = writer if writer >= 0 else GRAPH_INPUT
                tensors.append(
                    WorkTensor(f"s{place}.{writer}", producer, tuple(sorted(readers)), storages[place].bytes)
                )
            work = WorkGraph(tuple(self._operators), tuple(tensors))
            return StepGraph(
                work,
                tuple(self._phases),
                tuple(self._layers),
                tuple(self._signatures),
                self._calls,
                tuple(storages),
                tuple(self._gradients),
            )

        def _storage(self, one: _Seen) -> Storage:
            kind: Kind
            if one.kind is not None:
                kind = one.kind
            elif one.born == OUTSIDE:
                kind = "gradients" if one.freed is not None else "inputs"  # of the step before, given back by this one
            elif self._phases[one.born] in ("forward", "recompute") and self._ends_later(one):
                kind = "activations"
            else:
                kind = "temporary"
            return Storage(one.bytes, one.born, one.freed, kind, one.layer)

        def _ends_later(self, one: _Seen) -> bool:
            """Whether it is kept for the backward phase."""
            end = len(self._phases) - 1 if one.freed is None else min(one.freed, len(self._phases) - 1)
            return self._phases[end] != self._phases[one.born]

    return Recorder()


def _name(func: Any) -> str:
    name, overload = str(func._schema.name), str(func._overloadname)
    return name if overload == "default" else f"{name}.{overload}"


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _mutated(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors among its arguments that an operator writes."""
    import torch

    found = []
    for place, one in enumerate(func._schema.arguments):
        if one.alias_info is None or not one.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(one.name)
        found += [
            item for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, torch.Tensor)
        ]
    return found


def _argument(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return TensorArgument(tuple(value.shape), tuple(value.stride()), value.dtype, _size(value))
    return value


def _signature(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    import torch

    def word(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            kind = str(value.dtype).removeprefix("torch.")
            dense = "" if value.is_contiguous() else f"/{list(value.stride())}"
            return f"{kind}{list(value.shape)}{dense}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(word, value))}]"
        if isinstance(value, float):
            return "float"  # no operator takes longer for another
        return str(value)

    named = [f"{key}={word(value)}" for key, value in kwargs.items()]
    return f"{_name(func)}({', '.join([*map(word, args), *named])})"


def _flops(func: Any, args: Any, kwargs: Any, out: Any, made: Sequence[Any]) -> float:
    """Floating-point operations: PyTorch's own formulas, and one for each element that is made by what has none."""
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        formula = _formulas().get(_name(func))
    if formula is not None:
        try:
            return float(formula(*args, **kwargs, out_val=out))
        except (TypeError, ValueError, AttributeError, IndexError, AssertionError):
            pass
    return float(sum(one.numel() for one in made))


def _formulas() -> dict[str, Callable[..., float]]:
    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> float:
        batch, heads, rows, width = query.shape
        return float(2 * batch * heads * rows * key.shape[2] * (width + value.shape[3]))

    def attention_backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> float:
        return 2.5 * attention(query, key, value)  # five products instead of two

    def recurrent(x: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> float:
        return float(2 * x.shape[0] * x.shape[1] * (w_ih.numel() + w_hh.numel()))

    def recurrent_backward(x: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> float:
        return 2.0 * recurrent(x, w_ih, w_hh)

    return {
        "aten::_scaled_dot_product_flash_attention_for_cpu": attention,
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
        "aten::mkldnn_rnn_layer": recurrent,
        "aten::mkldnn_rnn_layer_backward": recurrent_backward,
    }


def _first_line(error: Exception) -> str:
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    if isinstance(error, DataDependentOutputException):
        return f"a decision rests on the value of a tensor ({error.func})"
    if isinstance(error, DynamicOutputShapeException):
        return f"a shape rests on values of a tensor ({error.func})"
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else ''}"


def _users_line(error: Exception) -> str:
    """The innermost line of code that is neither PyTorch's nor ours."""
    import traceback

    own = sys.modules["bricolage"].__path__[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "/torch/" not in frame.filename and not frame.filename.startswith(own):
            return f"{frame.filename}, line {frame.lineno}: {frame.line}"
    return "a line that is not known"
