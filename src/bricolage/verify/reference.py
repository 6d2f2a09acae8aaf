"""The float64 reference: what the model would answer if rounding hardly existed.

Stretches of operators that the PyTorch lowering knows run as one float64 module; a single operator that it does not
know runs by the ONNX reference implementation. Without torch, everything does. What neither knows ONNX Runtime computes without
its optimisations, in the model's own types (`bricolage.verify.unoptimised`), where the caller allows it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import onnx_ir as ir

from bricolage.errors import InvalidGraph, NoReference, StatedOtherwise
from bricolage.graph.graph import describe, find_captured
from bricolage.verify.single_operators import run_operator, widen
from bricolage.verify.unoptimised import Unoptimised
from bricolage.work.values import ModelValue

if TYPE_CHECKING:
    from torch.fx import GraphModule

_LOG = logging.getLogger(__name__)

_KINDS = {"f": "float", "V": "float", "i": "integer", "u": "integer", "b": "bool"}
"""By numpy's letter. Libraries that lack an integer type compute in a wider one."""
LIBRARY_VARIABLE = "BRICOLAGE_REFERENCE"
"""Environment variable: "onnx" has everything evaluated by the ONNX reference implementation where nothing else is asked for, which
is slower, and starts sooner than torch. To see whether the reference itself is at fault."""

_MOST_BYTES = 1 << 30
"""Of weights in float64 that are held at a time: a model with more is evaluated part by part, and what a part holds is freed behind
it. Lowering it again on the next inputs takes a second or two for each of them."""
Library = Literal["torch", "onnx"]


class Values(dict[str, ModelValue]):
    """Values by name: arrays, lists of values for sequences, dicts for maps, None for empty optionals."""

    def __init__(self, values: Mapping[str, ModelValue] | None = None, borrowed: Collection[str] = ()) -> None:
        super().__init__(values or {})
        self.borrowed = frozenset(borrowed)
        """Types of operators without float64 semantics: a backend without its optimisations gave their answers, and what rests
        on them is no more exact than that."""


class Evaluate(Protocol):
    """What computes a reference: `evaluate`, or the same in another process."""

    def __call__(
        self,
        model: ir.Model,
        inputs: Mapping[str, ModelValue],
        *,
        dtype: type[np.floating] = ...,
        keep: Collection[str] = ...,
    ) -> Values:
        """Outputs of the model by name, and the intermediate values named in `keep`."""


def evaluate(
    model: ir.Model,
    inputs: Mapping[str, ModelValue],
    *,
    dtype: type[np.floating] = np.float64,
    keep: Collection[str] = (),
    library: Library | None = None,
) -> Values:
    """Outputs of the model by name, and the intermediate values named in `keep`: `Evaluator` used once.

    Raises:
        NoReference: an operator can be evaluated by no library, an input is missing, or `keep` names no value.
    """
    return Evaluator(model, dtype=dtype, keep=keep, library=library)(inputs)


class Evaluator:
    """Evaluates one model on any number of inputs; what was prepared for the first is used for the next.

    Args:
        model: with unique value names (see `bricolage.frontends`); symbolic dimensions are allowed.
        dtype: np.float64 computes everything in float64, also what the model casts to float16, bfloat16 or float32;
            np.float32 computes in the types that the model states.
        keep: names of intermediate values to return as well; all others are freed as soon as nothing needs them.
        library: "onnx" forces the ONNX reference implementation; by default torch is used where it is installed, unless
            $BRICOLAGE_REFERENCE says otherwise.
        borrowing: whether ONNX Runtime may compute operators that nothing knows in float64, without its optimisations. In worker
            processes only, which it may end.
        threads: of torch. More than one helps large matrix products on an idle machine, and costs far more than it
            brings where other processes want the same cores: float64 convolutions are thousands of small loops.

    Raises:
        NoReference: `keep` names a value that the model does not have.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        dtype: type[np.floating] = np.float64,
        keep: Collection[str] = (),
        library: Library | None = None,
        borrowing: bool = False,
        threads: int = 1,
    ) -> None:
        self._model = model
        self._borrowing, self._borrowed = borrowing, set[str]()
        self._keep = tuple(keep)
        self._whole: Unoptimised | None = None
        self._threads = threads
        self._wide = np.dtype(dtype) == np.float64
        self._constants = {
            name: value for name, value in model.graph.initializers.items() if not value.is_graph_input()
        }
        self._order = list(dict.fromkeys([*(value.name or "" for value in model.graph.outputs), *keep]))
        self._declared = {name: describe(value) for name, value in _values(model.graph).items()}
        unknown = sorted(set(keep) - set(self._declared))
        if unknown:
            raise NoReference(reason=f"the model has no value '{unknown[0]}'")
        self._stretches = _stretches(model, library or _usual_library())

    def __call__(self, inputs: Mapping[str, ModelValue]) -> Values:
        """Outputs, then kept values, by name. `inputs` are arrays, or lists of arrays for sequences, by name.

        Raises:
            NoReference: an operator can be evaluated by no library, or an input is missing.
            InvalidGraph: an output or a kept value has another type or shape than the model states.
        """
        values = self._enter_inputs(inputs)
        outputs = self._whole_model(inputs) if self._whole is not None else None
        if outputs is None:
            try:
                outputs = self._by_stretches(values)
            except NoReference as error:
                if not self._borrowing:
                    raise
                outputs = self._whole_model(inputs, str(error.facts["reason"]))
        for name, value in outputs.items():
            self._check(name, value)
        return outputs

    def _by_stretches(self, values: Values) -> Values:
        wanted = set(self._order)
        readers = Counter(name for stretch in self._stretches for name in stretch.reads)
        todo, done = self._stretches[::-1], list[_Stretch]()
        while todo:
            stretch = todo.pop()
            needed = {name for name in stretch.writes if name in wanted or readers[name]}
            try:
                results = self._run(stretch, values, needed)
            except _Halve:
                first, second = stretch.halves()
                readers.subtract(list(stretch.reads))
                readers.update([*first.reads, *second.reads])
                todo += [second, first]
                continue
            values.update(results)
            readers.subtract(list(stretch.reads))
            for name in stretch.reads:
                if not readers[name] and name not in wanted:
                    values.pop(name, None)
            done.append(stretch)
        self._stretches = done
        outputs = {name: values[name] if name in values else self._constant(name) for name in self._order}
        return Values(outputs, self._borrowed)

    def _whole_model(self, inputs: Mapping[str, ModelValue], why: str = "") -> Values:
        """All of it on ONNX Runtime without its optimisations, where it does not take the one operator at fault. `why`: that
        cannot be run otherwise."""
        try:
            if self._whole is None:
                self._whole = Unoptimised.of_model(self._model, self._keep)
            results = self._whole(inputs)
        except NoReference as error:
            raise NoReference(reason=why or error.facts["reason"]) from error
        outputs = {name: results[name] if name in results else self._constant(name) for name in self._order}
        return Values({name: widen(value) if self._wide else value for name, value in outputs.items()}, self._borrowed)

    def _check(self, name: str, value: ModelValue) -> None:
        """Whether a value is what the model says it is: buffers and other backends rest on it.

        Raises:
            InvalidGraph, StatedOtherwise: it has another type, or shape.
        """
        info = self._declared.get(name)
        if info is None or info.dtype is None or not isinstance(value, np.ndarray):
            return
        kinds = [_KINDS.get(dtype.kind) for dtype in (info.numpy, value.dtype)]
        if None not in kinds and kinds[0] != kinds[1]:
            raise InvalidGraph(reason=f"'{name}' is stated to be {info.numpy}, and its values are {value.dtype}")
        stated = info.shape if info.shape is not None else value.shape
        if len(stated) != value.ndim or any(
            isinstance(wanted, int) and wanted != size for wanted, size in zip(stated, value.shape, strict=True)
        ):
            raise StatedOtherwise(
                reason=f"'{name}' is stated to be {list(stated)}, and its values are {list(value.shape)}"
            )

    def _enter_inputs(self, inputs: Mapping[str, ModelValue]) -> Values:
        values = Values()
        for value in self._model.graph.inputs:
            name = value.name or ""
            if name in inputs:
                values[name] = widen(inputs[name]) if self._wide else inputs[name]
            elif name in self._model.graph.initializers:  # a default, which the caller may override
                values[name] = self._constant(name)
            else:
                raise NoReference(reason=f"input '{name}' is missing")
        return values

    def _constant(self, name: str) -> ModelValue:
        tensor = self._model.graph.initializers[name].const_value
        if tensor is None:
            raise NoReference(reason=f"constant '{name}' has no value")
        return widen(tensor.numpy()) if self._wide else tensor.numpy()

    def _run(self, stretch: _Stretch, values: Values, needed: set[str]) -> Values:
        if not stretch.together:
            return self._run_onnx(stretch, values, needed)
        try:
            return self._run_torch(stretch, values, needed)
        except Exception as error:  # whatever torch raises, only the operator at fault goes to the ONNX reference
            _LOG.debug("torch could not evaluate %d operators: %s", len(stretch.nodes), error)
            if len(stretch.nodes) > 1:
                raise _Halve from error
        stretch.together = False
        return self._run_onnx(stretch, values, needed)

    def _run_torch(self, stretch: _Stretch, values: Values, needed: set[str]) -> Values:
        import torch

        from bricolage.lowering.torch.arrays import from_numpy, to_numpy

        names = [name for name in stretch.reads if name not in self._constants]
        results = [name for name in stretch.writes if name in needed]
        if not results:
            return Values()
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            if stretch.module is None:
                stretch.module = self._lower_stretch(stretch, names, results)
            with torch.no_grad():
                # Not called as a module, which would print a trace where an operator fails that another library evaluates.
                outputs = stretch.module.forward(*(from_numpy(values[name]) for name in names))
        finally:
            torch.set_num_threads(threads)
        computed = Values({name: to_numpy(output) for name, output in zip(results, outputs, strict=True)})
        if len(self._stretches) > 1 and _wide_bytes(self._constants.values()) > _MOST_BYTES:
            stretch.module = None
        return computed

    def _lower_stretch(self, stretch: _Stretch, names: list[str], results: list[str]) -> GraphModule:
        import torch

        from bricolage.lowering.torch import lower

        graph = self._model.graph
        view = ir.GraphView(
            [stretch.reads[name] for name in names],
            [stretch.writes[name] for name in results],
            nodes=stretch.nodes,
            initializers=[value for name, value in stretch.reads.items() if name in self._constants],
            opset_imports=dict(graph.opset_imports),
            name="stretch",
        )
        part = ir.Model(view.clone(), ir_version=self._model.ir_version)
        return lower(part, float_dtype=torch.float64 if self._wide else None)

    def _run_onnx(self, stretch: _Stretch, values: Values, needed: set[str]) -> Values:
        (node,) = stretch.nodes
        read = {name: self._constant(name) if name in self._constants else values[name] for name in stretch.reads}
        try:
            if stretch.borrowed is None:
                results = run_operator(node, self._model.graph.opset_imports, read, wide=self._wide)
            else:
                results = self._borrow(stretch, read)
        except Exception as error:  # the ONNX reference implementation has no common exception
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            if reason.startswith("Node type"):  # with a list of what it knows in the domain
                reason = "neither bricolage nor the onnx package computes it"
            failure = f"operator '{node.name}' ({node.op_type}) cannot be run: {reason}"
            if not self._borrowing:
                raise NoReference(reason=failure) from error
            _LOG.debug("by ONNX Runtime without its optimisations: %s", failure)
            self._borrowed.add(node.op_type)
            try:
                results = self._borrow(stretch, read)
            except NoReference as second:
                raise NoReference(reason=f"{failure}; {second.facts['reason']}") from error
        return Values({name: value for name, value in results.items() if name in needed})

    def _borrow(self, stretch: _Stretch, read: Mapping[str, ModelValue]) -> dict[str, ModelValue]:
        """What ONNX Runtime makes of one operator."""
        stretch.borrowed = stretch.borrowed or Unoptimised.of_node(stretch.nodes[0], self._model, read)
        borrowed = stretch.borrowed(read)
        return {name: widen(value) for name, value in borrowed.items()} if self._wide else borrowed


class _Halve(Exception):
    """A stretch failed as a whole; its halves are tried."""


@dataclass(eq=False)
class _Stretch:
    """Consecutive operators that are evaluated by one torch module, or one operator where `together` is False."""

    nodes: tuple[ir.Node, ...]
    together: bool
    reads: dict[str, ir.Value] = field(init=False)
    writes: dict[str, ir.Value] = field(init=False)
    module: GraphModule | None = None
    """The torch module, once it is made."""
    borrowed: Unoptimised | None = None
    """What computes a single operator that nothing knows in float64."""

    def __post_init__(self) -> None:
        self.reads = _reads(self.nodes)
        self.writes = {value.name: value for node in self.nodes for value in node.outputs if value.name}

    def halves(self) -> tuple[_Stretch, _Stretch]:
        middle = len(self.nodes) // 2
        return _Stretch(self.nodes[:middle], True), _Stretch(self.nodes[middle:], True)


def prepare_library() -> None:
    """Imports what models are evaluated with where nothing else is asked for: torch takes a second or two."""
    if _usual_library() == "torch":
        import bricolage.lowering.torch  # noqa: F401


def _usual_library() -> Library:
    if os.environ.get(LIBRARY_VARIABLE) == "onnx" or not importlib.util.find_spec("torch"):
        return "onnx"
    return "torch"


def _stretches(model: ir.Model, library: Library) -> list[_Stretch]:
    """The nodes in their order, cut where the lowering must hand over to the ONNX reference."""
    if library == "onnx":
        return [_Stretch((node,), False) for node in model.graph]
    from bricolage.lowering.common import opset_for
    from bricolage.lowering.torch import find_refusal

    imports = {str(domain): int(version) for domain, version in model.graph.opset_imports.items()}
    stretches: list[_Stretch] = []
    together: list[ir.Node] = []
    held: dict[str, ir.Value] = {}
    for node in model.graph:
        reason = find_refusal(node, opset_for(node, imports))
        if reason is None:
            constants = {name: value for name, value in _reads([node]).items() if value.const_value is not None}
            if together and _wide_bytes({**held, **constants}.values()) > _MOST_BYTES:
                stretches.append(_Stretch(tuple(together), True))
                together, held = [], {}
            together.append(node)
            held.update(constants)
            continue
        _LOG.debug("by the ONNX reference: %s (%s)", node.name, reason)
        if together:
            stretches.append(_Stretch(tuple(together), True))
            together, held = [], {}
        stretches.append(_Stretch((node,), False))
    if together:
        stretches.append(_Stretch(tuple(together), True))
    return stretches


def _wide_bytes(values: Iterable[ir.Value]) -> int:
    """Of constants in float64."""
    return sum(value.const_value.size * 8 for value in values if value.const_value is not None)


def _reads(nodes: Sequence[ir.Node]) -> dict[str, ir.Value]:
    """Values that the nodes read from outside, by name, in order."""
    inner_values = {value for node in nodes for value in node.outputs}
    read: dict[str, ir.Value] = {}
    for node in nodes:
        for value in (*node.inputs, *find_captured(node)):
            if value is not None and value.name and value not in inner_values:
                read.setdefault(value.name, value)
    return read


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    """By name, what the graph computes, is given or holds."""
    computed = {value.name: value for node in graph for value in node.outputs if value.name}
    return {**graph.initializers, **{value.name or "": value for value in graph.inputs}, **computed}
