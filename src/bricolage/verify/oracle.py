"""The oracle: for every region that is measured, real inputs and the float64 outputs that it must reproduce."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage.graph.extract import extract_region
from bricolage.graph.graph import Graph, Region, describe
from bricolage.graph.store import Store
from bricolage.verify.bound import REGION_DRAWS, draws_for, error_limits, rounding_errors
from bricolage.verify.held_back import HeldBack
from bricolage.verify.named_arrays import digest, load_values, save_expected, save_tensors
from bricolage.verify.quantised import EXACT_BOUND, accepted_bound, is_quantised
from bricolage.verify.randomness import mark_drawn, random_outputs
from bricolage.verify.reference import Evaluate, Values, evaluate
from bricolage.verify.single_operators import narrow
from bricolage.verify.variations import Variation, Varied, evaluate_variations, write_variations
from bricolage.work.values import ModelValue

JUDGEMENT = 8
"""Raised whenever answers are judged in another way, or the reference computes something else: judgements and decisions on record
are not found any more then."""


@dataclass(frozen=True)
class _Expected:
    """Float64 outputs of the whole graph, and how far rounding moves them."""

    outputs: Values
    rounding: Mapping[str, float]
    quantised: bool = False

    @property
    def limits(self) -> dict[str, float]:
        """For each output the error that is still float32's own."""
        return error_limits(self.rounding, self.outputs, borrowed=bool(self.outputs.borrowed), quantised=self.quantised)


@dataclass
class KnownReferences:
    """References of whole graphs, with their variations: decisions for one model on several devices have them in common."""

    _known: dict[str, tuple[_Expected, tuple[Varied, ...]]] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._known)


class Oracle:
    """The reference values of one graph on one set of inputs, computed when they are first needed.

    Regions get the values that flow into them in the float64 run, rounded to the graph's own types, and must reproduce
    what float64 makes of exactly these. So a region is judged on realistic numbers, and by its own error alone. A rewritten
    graph as a whole is judged by what float64 makes of the `original`. What rounding in float32 may do to an output is
    measured for the whole graph and for each region (`bricolage.verify.bound`). A quantised graph and its regions are judged
    against exact integers, whatever the precision word allows (`bricolage.verify.quantised`).
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, np.ndarray],
        store: Store,
        bound: float,
        model: str,
        name: str = "original",
        original: Oracle | None = None,
        *,
        literal: bool = False,
        evaluate: Evaluate = evaluate,
        known: KnownReferences | None = None,
        held_back: HeldBack | None = None,
        prefix: str = "",
    ) -> None:
        """`bound`: relative error that is accepted whatever rounding does; `literal`: and nothing more. `model`: digest of the
        model with its weights. `name`: of the graph, in names of files. `evaluate`: computes the reference, here or in
        another process. `known`: where what is computed is kept for others, and found again. `held_back`: samples on which whole
        graphs are judged, too. `prefix`: of files, where several graphs of one folder have references of their own."""
        self.graph = graph
        self.store = store
        self._name, self._model = name, model
        self._original = original
        self._evaluate = evaluate
        self._known = known
        self.held_back = held_back
        self._inputs = dict(inputs)
        self._quantised = is_quantised(graph.model)
        self._bound, self._literal = bound if literal else accepted_bound(graph.model, bound), literal
        self._values: dict[str, np.ndarray] = {}
        self._whole: _Expected | None = None
        self._files: dict[int, tuple[Path, Path, float]] = {}
        self._own: dict[int, Mapping[str, float]] = {}
        self._varied: tuple[Varied, ...] | None = None
        self._prefix = prefix
        self._variations: tuple[Variation, ...] | None = None
        self._alone = False

    def of(self, name: str, graph: Graph) -> Oracle:
        """The oracle of an equal graph, which is judged by this one's reference."""
        return Oracle(
            graph,
            self._inputs,
            self.store,
            self._bound,
            self._model,
            name,
            self,
            literal=self._literal,
            evaluate=self._evaluate,
            held_back=self.held_back,
        )

    def quantised(self, name: str, graph: Graph, made_from: str) -> Oracle:
        """The oracle of a quantised graph of this model: it is judged by exact integers, its own reference, and on the samples that
        are held back by this one's. `made_from`: digest of what its scales rest on."""
        return Oracle(
            graph,
            self._inputs,
            self.store,
            EXACT_BOUND,
            f"{self._model} {made_from}",
            name,
            evaluate=self._evaluate,
            held_back=self.held_back,
            prefix=f"{name}-",
        )

    def judges_as(self, other: Oracle) -> bool:
        """Whether whole graphs have the reference that they have there."""
        return (self._original or self) is (other._original or other)

    def compute(self, *, varied: bool = False) -> None:
        """Computes the whole model's reference now; where it is to be `varied`, with its variations, while the evaluator holds the
        model: the one with noise takes its place."""
        if not varied:
            self._reference()
        elif self._original is None and self._whole is None:
            asked = "" if self._known is None else digest(f"{self._model} {self._shapes()}", self._inputs)
            if self._known is not None and asked in self._known._known:
                self._whole, self._varied = self._known._known[asked]
                return
            outputs = self._outputs(self.graph.model, self._inputs)
            self._varied = evaluate_variations(self.graph, self._inputs, outputs, self._evaluate)
            self._whole = self._moved(outputs)
            if self._known is not None:
                self._known._known[asked] = self._whole, self._varied

    def _shapes(self) -> str:
        """The sizes that the graph was prepared for."""
        return repr([(info.name, info.shape) for info in (*self.graph.inputs, *self.graph.outputs)])

    def variations(self) -> tuple[Variation, ...]:
        """Other inputs on which the whole graph must be right."""
        if self._original is not None:
            return self._original.variations()
        if self._variations is None:
            expected = self._reference()
            if self._varied is None:
                self._varied = evaluate_variations(self.graph, self._inputs, expected.outputs, self._evaluate)
            self._variations = write_variations(
                self.graph, self._varied, expected.outputs, expected.rounding, self.store, self._evaluate, self._prefix
            )
            if self.held_back is not None:
                self._variations += self.held_back.files
        return self._variations

    def without_variations(self) -> None:
        """From now on answers are judged on the inputs themselves alone."""
        self._variations = self.held_back.files if self.held_back is not None else ()
        self._alone = True
        self.__dict__.pop("_data", None)

    @property
    def accepted(self) -> float:
        """Relative error that is accepted whatever rounding does."""
        return self._bound

    @property
    def original_error(self) -> float:
        """How far rounding in float32 moves the answer: the largest error of an output in the draws."""
        return max(self._reference().rounding.values(), default=0.0)

    @property
    def bound(self) -> float:
        """The largest relative error that any output of the whole model may have."""
        expected = self._reference()
        rounding_limit = 0.0 if self._literal else max(expected.limits.values(), default=0.0)
        return max(self._bound, rounding_limit)

    @property
    def outputs(self) -> Values:
        """Of the whole model on its inputs, in float64, by name."""
        return self._reference().outputs

    @property
    def borrowed(self) -> frozenset[str]:
        """Types of operators of the whole model that have no float64 semantics; see `verify.reference.Values`."""
        return self._reference().outputs.borrowed

    @cached_property
    def _data(self) -> str:
        if self._original is not None:
            return self._original._data
        alone = " alone" if self._alone else ""
        held = f" {self.held_back.data.digest}" if self.held_back is not None else ""
        return digest(f"{self._model} {JUDGEMENT} {self._literal}{alone}{held}", self._inputs)[:24]

    def data(self, region: Region) -> str:
        """Digest of the values behind a region's reference: the model's weights, its inputs, and where in the model
        the region lies. The error of an answer holds for these only. Every variant of the graph as a whole has that
        of the original."""
        if region.bits == self.graph.everything.bits:
            return self._data
        return f"{self._data}-{self._name}-{hashlib.sha256(f'{region.bits:x}'.encode()).hexdigest()[:12]}"

    def remember(self, regions: Iterable[Region]) -> None:
        """Computes, in one run, the values that flow into these regions."""
        needed = {value.name or "" for region in regions for value in region.inputs}
        missing = needed - set(self._values) - set(self._inputs)
        if missing:
            computed = self._evaluate(self.graph.model, self._inputs, dtype=np.float64, keep=missing)
            self._values.update(
                {
                    value.name or "": _narrow_to_declared(computed[value.name or ""], value)
                    for value in self._made(missing)
                }
            )

    def entering(self, region: Region) -> dict[str, np.ndarray]:
        """The values that flow into a region, by name."""
        self.remember([region])
        names = [value.name or "" for value in region.inputs]
        return {name: self._inputs[name] if name in self._inputs else self._values[name] for name in names}

    def files(self, region: Region) -> tuple[Path, Path, float]:
        """Paths of the region's inputs and of its expected outputs (.npz), and the relative error accepted. For the graph as a
        whole the limits of its outputs stand with them; for others `error_limits` gives these."""
        if region.bits not in self._files:
            if region.bits == self.graph.everything.bits and self._original is not None:
                self._files[region.bits] = self._original.files(self._original.graph.everything)
            elif region.bits == self.graph.everything.bits:
                expected = self._reference()
                self._files[region.bits] = self._write(
                    f"{self._prefix}whole", self._inputs, expected.outputs, self._limits(expected)
                )
            else:
                outputs, name = self._outputs(extract_region(region), self.entering(region)), f"oracle-{self._name}"
                self._files[region.bits] = self._write(
                    f"{name}-{len(self._files)}", self.entering(region), outputs, dict.fromkeys(outputs, 0.0)
                )
        return self._files[region.bits]

    def limits(self, region: Region) -> Mapping[str, float]:
        """For each output of a region the error that is still float32's own. It takes `REGION_DRAWS` evaluations, the first
        time."""
        if region.bits not in self._own:
            inputs, model = self.entering(region), extract_region(region)
            outputs = Values(
                load_values(self.files(region)[1], [value.name or "" for value in model.graph.outputs]),
                self.borrowed & {operator.op_type for operator in region.operators},
            )
            rounding = rounding_errors(model, inputs, outputs, REGION_DRAWS, self._evaluate)
            self._own[region.bits] = self._limits(_Expected(outputs, rounding, self._quantised))
        return self._own[region.bits]

    def _reference(self) -> _Expected:
        if self._original is not None:
            return self._original._reference()
        if self._whole is None:
            self._whole = self._moved(self._outputs(self.graph.model, self._inputs))
        return self._whole

    def _moved(self, outputs: Values) -> _Expected:
        """With how far rounding moves them."""
        draws = draws_for(self.graph)
        rounding = rounding_errors(self.graph.model, self._inputs, outputs, draws, self._evaluate)
        return _Expected(outputs, rounding, self._quantised)

    def _outputs(self, model: ir.Model, inputs: Mapping[str, ModelValue]) -> Values:
        computed, chance = self._evaluate(model, inputs, dtype=np.float64), random_outputs(model)
        names = (value.name or "" for value in model.graph.outputs)
        return Values(
            {name: mark_drawn(computed[name]) if name in chance else computed[name] for name in names},
            computed.borrowed,
        )

    def _limits(self, expected: _Expected) -> dict[str, float]:
        limits = expected.limits
        return dict.fromkeys(limits, 0.0) if self._literal else limits

    def _write(
        self, name: str, inputs: Mapping[str, ModelValue], outputs: Mapping[str, ModelValue], own: Mapping[str, float]
    ) -> tuple[Path, Path, float]:
        given = self.store.directory / f"{name}-inputs.npz"
        wanted = self.store.directory / f"{name}-expected.npz"
        save_tensors(given, inputs)
        save_expected(wanted, outputs, own)
        return given, wanted, self._bound

    def _made(self, names: set[str]) -> Iterable[ir.Value]:
        for operator in self.graph.operators:
            yield from (value for value in operator.outputs if value.name in names)


def _narrow_to_declared(value: ModelValue, declared: ir.Value) -> ModelValue:
    """A value of the reference in the type that the model states; strings, sequences and maps by their members."""
    info = describe(declared)
    if isinstance(value, np.ndarray) and info.dtype not in (None, ir.DataType.STRING):
        return value.astype(info.numpy, copy=False)
    return narrow(value, declared)
