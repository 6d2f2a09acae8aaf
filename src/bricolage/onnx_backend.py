"""bricolage as an ONNX backend (`onnx.backend.base`): a model is run in this process, at once and without measuring.

    import bricolage.onnx_backend as backend
    (y,) = backend.run_model(onnx.load("model.onnx"), [x])

It goes the way of every model: the frontend's checks, shapes bound to those of the inputs, claims, placement, compilation. Backends
are preferred in the order in which they are registered, or in that of `Options.backends`; how fast they are is not asked
(`bricolage.optimize` does that).
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.backend.base import Backend, BackendRep, namedtupledict

from bricolage.backends import registry
from bricolage.backends.interface import Kernel, RegionModel, Resources
from bricolage.base import scratch
from bricolage.base.options import Options
from bricolage.device.buffers import allocate_aligned
from bricolage.device.host import select_device
from bricolage.driver.heuristic_placement import Failures, place_by_preference, usable_backends
from bricolage.driver.sources import working_folder
from bricolage.errors import BackendFailed, BadOption, BricolageError, Refused
from bricolage.frontends import to_model
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import prepare as prepare_graph
from bricolage.graph.prepare import symbolic_dimensions
from bricolage.graph.store import Store
from bricolage.plan.planned_interface import input_specs, output_specs
from bricolage.plan.program_step import Step
from bricolage.runtime import signature
from bricolage.runtime.compile import compile_step
from bricolage.runtime.program import BoundProgram, BoundStage, Program
from bricolage.work.implementation import Assignment, Implementation, Placement
from bricolage.work.values import ModelValue

Place = Callable[[Graph, Failures], Placement]
"""Who runs what of a graph, given with which operators backends have failed."""

_LOG = logging.getLogger(__name__)
_SHAPES = 16
"""Programs kept for different shapes; the least recently used is dropped."""
_REASON_LENGTH = 300


@dataclass
class _Placed:
    """A graph with who runs it; `bound` is None where shapes are known only at run time."""

    placement: Placement
    program: Program
    bound: BoundProgram | None


class _Failed(Exception):
    """A part of a placement failed to compile or to run; its cause says why."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Representation(BackendRep):  # type: ignore[misc]
    """A model that is ready to run on inputs of any shape that it takes. Safe to call from several threads."""

    def __init__(self, model: ir.Model, place: Place, options: Options) -> None:
        """`model` is checked. Where its shapes are fixed it is compiled now.

        Raises:
            Unclaimed: no backend takes some operator.
        """
        self._model, self._place = model, place
        self._inputs, self._outputs = input_specs(model), output_specs(model)
        self._threads, self._device = options.threads, select_device(options.isa, options.cores)
        directory = working_folder()
        weakref.finalize(self, scratch.remove, directory)
        self._store = Store(directory)
        self._store.share([model])
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._placed: OrderedDict[tuple[tuple[str, int], ...], _Placed] = OrderedDict()
        self._failed: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
        if not symbolic_dimensions(model):
            self._ready({})

    def run(self, inputs: ModelValue, **kwargs: Any) -> tuple[ModelValue, ...]:  # noqa: ARG002 -- the signature is ONNX's
        """The outputs, in order and by name, as numpy arrays (lists of them for sequences, None for an empty optional).

        Args:
            inputs: a sequence in the order of the model's inputs, a mapping by name, or a single array.
            kwargs: are ignored.

        Raises:
            MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
            Unclaimed: no backend takes some operator at these shapes.
            BricolageError: the only backends that take some operator fail with it.
        """
        named = inputs if isinstance(inputs, Mapping) else {}
        given = () if isinstance(inputs, Mapping) else inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        arrays = signature.collect(self._inputs, given, named)
        sizes = signature.bound_dimensions(self._inputs, arrays)
        with self._lock:
            while True:
                ready = self._ready(sizes)
                try:
                    results = _run(ready, arrays)
                except _Failed as failure:
                    self._note(sizes, ready.placement, failure)
                    continue
                names = [spec.name for spec in self._outputs]
                ordered = (results[info.name] for info in ready.program.outputs)
                return tuple(namedtupledict("Outputs", names)(*ordered))

    def placement(self, sizes: Mapping[str, int]) -> Placement:
        """Who runs what at these sizes of the symbolic dimensions.

        Raises:
            Unclaimed: no backend takes some operator.
        """
        with self._lock:
            return self._ready(sizes).placement

    def _ready(self, sizes: Mapping[str, int]) -> _Placed:
        """The program for these sizes. A backend that fails to compile a part loses that part to others."""
        key = tuple(sorted(sizes.items()))
        while key not in self._placed:
            graph = prepare_graph(self._model, sizes)
            self._store.share([graph.model], f"weights-{next(self._numbers)}.data")
            placement = self._place(graph, self._failed.get(key, {}))
            try:
                self._placed[key] = self._compile(graph, placement)
            except _Failed as failure:
                self._note(sizes, placement, failure)
        if len(self._placed) > _SHAPES:
            self._placed.popitem(last=False)
        self._placed.move_to_end(key)
        return self._placed[key]

    def _compile(self, graph: Graph, placement: Placement) -> _Placed:
        identities = Identities(graph)
        alone = len({assignment.implementation.backend for assignment in placement}) == 1
        resources = Resources(threads=self._threads, device=self._device, alone=alone)
        stages: list[BoundStage] = []
        taken = list(placement)
        for number, assignment in enumerate(placement):
            region = Region(graph, assignment.region)
            step = Step(assignment.implementation, self._store.region(region, identities.key(region)))
            try:
                (kernel, region_model), used = _compile_part(step, resources)
            except BricolageError as error:
                raise _Failed(number) from error
            stages.append(BoundStage(kernel, region_model.inputs, region_model.outputs))
            taken[number] = replace(assignment, implementation=used)
        placement = tuple(taken)
        program = Program(stages, graph.inputs, [info.name for info in graph.outputs], self._device)
        try:
            bound = program.bind() if program.static else None
        except Exception as error:  # whatever a framework raises
            raise _Failed(_unbound(stages)) from _failure(placement[_unbound(stages)], "to bind", error)
        return _Placed(placement, program, bound)

    def _note(self, sizes: Mapping[str, int], placement: Placement, failure: _Failed) -> None:
        """Takes the operators of a part from the backend that has failed with it.

        Raises:
            BricolageError: the failure itself, where no other backend claims these operators.
        """
        key = tuple(sorted(sizes.items()))
        part = placement[failure.number]
        failed = self._failed.setdefault(key, {})
        failed[part.implementation.backend] = failed.get(part.implementation.backend, 0) | part.region
        self._placed.pop(key, None)
        try:
            self._place(prepare_graph(self._model, sizes), failed)
        except BricolageError:
            assert failure.__cause__ is not None
            raise failure.__cause__ from None


def _compile_part(step: Step, resources: Resources) -> tuple[tuple[Kernel, RegionModel], Implementation]:
    """A part's kernel and model, and as what it runs: where the backend's optimisations may have refused it, without them.

    Raises:
        BricolageError: as `compile_step`, in either.
    """
    implementation = step.implementation
    try:
        return compile_step(step, resources, ephemeral=True), implementation
    except Refused as error:
        backend = registry.get(implementation.backend)
        config = backend.unoptimised(implementation.config) if backend.optimiser_refuses else None
        if config is None:
            raise
        other = replace(implementation, config=config)
        compiled = compile_step(replace(step, implementation=other), resources, ephemeral=True)
        _LOG.warning("a part runs on %s: %s", other, error.sentence)
        return compiled, other


def _run(ready: _Placed, arrays: Mapping[str, ModelValue]) -> dict[str, object]:
    """One run, part by part, so that a failure is known by its part."""
    parts = ready.program.stages
    if ready.bound is None:
        tensors: dict[str, object] = dict(arrays)
        for number, part in enumerate(parts):
            given = [tensors[info.name] for info in part.inputs]
            results = _part(ready, number, lambda part=part, given=given: part.kernel.run(given))  # type: ignore[misc]
            tensors.update(zip((info.name for info in part.outputs), results, strict=True))
        return tensors
    for name, buffer in ready.bound.inputs.items():
        np.copyto(buffer, arrays[name])
    for number, call in enumerate(ready.bound.calls):
        _part(ready, number, call)
    return {name: buffer.copy() for name, buffer in ready.bound.outputs.items()}


def _unbound(stages: Sequence[BoundStage]) -> int:
    """The first stage that does not bind to buffers of its own."""
    for number, stage in enumerate(stages):
        try:
            stage.kernel.bind(
                *([allocate_aligned(i.sizes, i.numpy) for i in infos] for infos in (stage.inputs, stage.outputs))
            )
        except Exception:  # whatever a framework raises
            return number
    return len(stages) - 1


def _failure(part: Assignment, stage: str, error: Exception) -> BackendFailed:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_REASON_LENGTH]
    return BackendFailed(backend=part.implementation.backend, stage=stage, reason=reason)


def _part(ready: _Placed, number: int, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except BricolageError as error:
        raise _Failed(number) from error
    except Exception as error:  # whatever a framework raises
        raise _Failed(number) from _failure(ready.placement[number], "to run", error)


class BricolageBackend(Backend):  # type: ignore[misc]
    """The backend in the shape that ONNX asks for. All devices but "CPU" are refused."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model is one that `prepare` takes."""
        try:
            cls.prepare(model, device, **kwargs)
        except BricolageError:
            return False
        return True

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", *, options: Options | None = None, **kwargs: Any
    ) -> Representation:
        """The model ready to run. Of the options, `backends` (in order of preference), `threads`, `isa` and `cores` count; other
        keywords are ignored.

        Raises:
            UsageError: the model is not usable.
            BadOption: the device is not the processor.
            NoBackend, Unclaimed: no backend is installed that takes some operator.
        """
        del kwargs
        if not cls.supports_device(device):
            raise BadOption(option="device", value=device, advice="Use 'CPU'")
        chosen = options or Options()
        where = select_device(chosen.isa, chosen.cores)
        backends = usable_backends(registry.available(chosen.backends))
        return Representation(
            to_model(model), lambda graph, failed: place_by_preference(graph, backends, where, failed), chosen
        )

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: ModelValue, device: str = "CPU", **kwargs: Any
    ) -> tuple[ModelValue, ...]:
        """Outputs of one run; see `prepare` and `Representation.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: ModelValue,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[ModelValue, ...]:
        """Outputs of one operator on arrays, in the opset of the keyword `opset_version` or the newest.

        Args:
            node: the operator; its named inputs are given in their order.
            inputs: arrays, in a sequence or by name.
            device: "CPU".
            outputs_info: element types and shapes of the outputs; by default they are inferred.
            kwargs: as for `prepare`.
        """
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in dict.fromkeys(node.input) if name]
        values = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=True))
        arrays = {name: np.asarray(value) for name, value in values.items()}
        entering = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)
            )
            for name, array in arrays.items()
        ]
        if outputs_info is None:
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
            node_outputs = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {info.name: info.type for info in entering},
                {name: onnx.numpy_helper.from_array(array) for name, array in arrays.items()},
                opset_imports=[onnx.helper.make_opsetid(node.domain, opset)],
            )
            leaving = [onnx.helper.make_value_info(name, node_outputs[name]) for name in node.output if name]
        else:
            leaving = [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape)
                )
                for name, (dtype, shape) in zip(filter(None, node.output), outputs_info, strict=True)
            ]
        graph = onnx.helper.make_graph([node], "node", entering, leaving)
        imports = [onnx.helper.make_opsetid(node.domain, opset)]
        model = onnx.helper.make_model(
            graph, opset_imports=imports, ir_version=onnx.helper.find_min_ir_version_for(imports)
        )
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on a device: the processor alone."""
        return device.partition(":")[0] == "CPU"


is_compatible = BricolageBackend.is_compatible
prepare = BricolageBackend.prepare
run_model = BricolageBackend.run_model
run_node = BricolageBackend.run_node
supports_device = BricolageBackend.supports_device
