"""The programs of a plan on one device, one for each shape, compiled when they are asked for."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import Backend, Resources
from bricolage.base import scratch
from bricolage.base.cache import Hold
from bricolage.base.late_imports import require_dependency
from bricolage.device.buffers import in_buffer
from bricolage.device.device import Device
from bricolage.device.host import select_device
from bricolage.errors import BricolageError, OtherConstant, SizeFailed
from bricolage.plan import artifact
from bricolage.plan.constant_inputs import same_value, words_of
from bricolage.plan.number_sets import parse_numbers
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.program_step import placement_steps
from bricolage.plan.race_outcome import Contestant
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.runtime import forks, signature
from bricolage.runtime.compile import compile_program
from bricolage.runtime.kept_program import keep_program, name_record, reopen_program
from bricolage.runtime.prepared import Prepared
from bricolage.runtime.program import Program
from bricolage.runtime.untried_sizes import Tried, size_class, trial, trying
from bricolage.work import bits as bitset
from bricolage.work.implementation import Assignment, Implementation, Placement
from bricolage.work.values import ModelValue

if TYPE_CHECKING:
    import onnx_ir as ir

    from bricolage.graph.graph import Graph
    from bricolage.graph.store import Store

_LOG = logging.getLogger(__name__)
_OTHER_SHAPES = 16
"""Programs kept for shapes outside the buckets; the least recently used is dropped."""

Known = weakref.WeakValueDictionary[Hashable, Program]
"""Programs by what they were compiled for, as long as they are referenced."""


class PlanSource:
    """A plan and the folder with its graphs and weights, which stays as long as this does."""

    def __init__(self, plan: Plan, directory: Path, *, temporary: bool = False, lent: bool = False) -> None:
        """A `temporary` folder is removed afterwards; one that is `lent` stays as long as another process says."""
        self.plan, self.directory = plan, directory
        self.kept = not temporary and not lent and artifact.is_kept(directory)
        """Whether the folder is an unpacked artifact in the cache, so that its name says what is in it."""
        self.tried = Tried(plan)
        self._defaults: Mapping[str, np.ndarray] | None = None
        if temporary:
            weakref.finalize(self, scratch.remove, directory)
        elif not (lent or scratch.owns(directory)):
            self._hold = Hold(directory)  # another process that trims the cache leaves it alone

    @cached_property
    def store(self) -> Store:
        """The folder's models of regions."""
        from bricolage.graph.store import Store

        return Store(self.directory)

    def graph(self, bucket: Bucket) -> Graph:
        """Of a bucket, numbered as in the plan."""
        from bricolage.graph.extract import graph_of

        return graph_of(self.directory / bucket.program.graph)

    def planned(self, sizes: Mapping[str, int], overridden: Mapping[str, tuple[int, ...]] | None = None) -> int | None:
        """The bucket of a shape, whose graph takes all inputs that are `overridden`; None where there is none."""
        for index, bucket in enumerate(self.plan.buckets):
            fits = all(sizes.get(name) == size for name, size in bucket.program.sizes.items())
            if fits and (overridden or {}).items() <= bucket.program.overridden.items():
                return index
        return None

    def collect(self, args: Sequence[ModelValue], named: Mapping[str, ModelValue]) -> dict[str, ModelValue]:
        """Inputs of a call by name as numpy arrays (see `signature.collect`), but for those that never change.

        Raises:
            MissingInput, UnknownInput, WrongType, WrongShape: they do not fit the model.
            OtherConstant: an input that never changes has another value.
        """
        plan = self.plan
        arrays = signature.collect(plan.inputs, args, named, plan.defaults)
        for constant in plan.constants:
            given = arrays.pop(constant.name, None)
            if given is not None and not same_value(given, self.default(constant.name)):
                raise OtherConstant(name=constant.name, actual=words_of(given), expected=constant.value)
        return arrays

    def read_model(self) -> ir.Model:
        """The whole model as it came, symbolic dimensions kept."""
        from bricolage.graph.model_interface import read_written_model

        return read_written_model(self.directory / artifact.MODEL)

    def default(self, name: str) -> np.ndarray:
        """What an input is where the caller does not give it."""
        if self._defaults is None:
            with require_dependency("to read the values of inputs that are left out"):
                from bricolage.graph.model_interface import interface

            default_tensors = interface(self.read_model()).defaults
            self._defaults = {
                input_name: in_buffer(np.asarray(tensor.numpy())) for input_name, tensor in default_tensors.items()
            }
        return self._defaults[name]


class Programs:
    """Programs for the shapes that are asked for, on one device and a number of threads. Safe to call from several threads;
    runs take turns, whatever their shapes."""

    def __init__(
        self, source: PlanSource, device: Device, threads: int, *, shared: bool = False, known: Known | None = None
    ) -> None:
        """`shared`: others compute on other cores, so that schedules of regions, which are for all cores, do not hold. `known`:
        what others compiled of the same plan for as many threads; its code and weights are used again where backends can."""
        self.source, self.device, self.threads = source, device, threads
        self._shared, self._known = shared, known
        self._compiling, self._turn = threading.RLock(), threading.RLock()
        self._buckets: dict[int, Prepared] = {}
        self._others: dict[Hashable, Prepared] = {}
        forks.hold(self)

    def select(self, arrays: dict[str, ModelValue]) -> Prepared:
        """The program for the shapes of these inputs, to which the defaults are added that it takes."""
        plan = self.source.plan
        overridden = signature.overridden(plan.defaults, arrays) if plan.defaults else {}
        prepared = self.of_sizes(signature.bound_dimensions(plan.inputs, arrays), overridden, arrays)
        if plan.defaults:
            for info in prepared.program.inputs:
                if info.name not in arrays:
                    arrays[info.name] = self.source.default(info.name)
        return prepared

    def of_sizes(
        self,
        sizes: Mapping[str, int],
        overridden: Mapping[str, tuple[int, ...]] | None = None,
        arrays: Mapping[str, ModelValue] | None = None,
    ) -> Prepared:
        """The program for these sizes of the symbolic dimensions, that takes the inputs that are `overridden` with these shapes;
        `arrays` are inputs of these sizes, if there are some.

        Raises:
            SizeFailed: nothing runs it at these sizes.
        """
        overridden = overridden or {}
        index = self.source.planned(sizes, overridden)
        if index is not None:
            return self.bucket(index)
        key = tuple(sorted(sizes.items())), tuple(sorted(overridden.items()))
        with self._compiling:
            if key not in self._others:
                with require_dependency("to run sizes that were not planned"):
                    self._others[key] = self._other_shape(sizes, overridden, arrays)
                if len(self._others) > _OTHER_SHAPES:
                    del self._others[min(self._others, key=lambda other: self._others[other].used)]
            return self._others[key]

    def bucket(self, index: int) -> Prepared:
        """The program of a bucket of the plan."""
        with self._compiling:
            if index not in self._buckets:
                self._buckets[index] = self._open_bucket(index)
            return self._buckets[index]

    def _open_bucket(self, index: int) -> Prepared:
        """From what an earlier process has kept of it, or compiled from its graph."""
        bucket = self.source.plan.buckets[index]
        placement = placement_of(bucket)
        schedule = None if self._shared else bucket.program.schedule
        cores = () if schedule is None else schedule.cores
        resources, record = self._resources(placement), None
        if self.source.kept and (self._known is None or (index, placement) not in self._known):
            origin = self.source.directory.name, bucket.program.graph
            record = name_record(origin, placement, resources, cores)
            program = reopen_program(record, self.source.directory, placement, resources, cores)
            if program is not None:
                return self._prepare(index, placement, program)
        with require_dependency("to compile an artifact at its first run on a machine"):
            prepared = self._compile(index, self.source.graph(bucket), placement, cores)
        if record is not None:
            keep_program(record, prepared.program)
        return prepared

    def hold(self, patience_s: float) -> bool:
        """Keeps calls from running while this process forks, where a backend's locks would be left held."""
        delicate = any(not bucket.lives for bucket in (*self._buckets.values(), *self._others.values()))
        return delicate and self._turn.acquire(timeout=patience_s)

    def release(self) -> None:
        """Ends what `hold` began."""
        self._turn.release()

    def after_fork(self) -> None:
        """In a forked process: locks may have been held by threads that are not there any more, and what does not live on is
        compiled again when it is asked for."""
        self._compiling, self._turn = threading.RLock(), threading.RLock()
        for prepared in (*self._buckets.values(), *self._others.values()):
            if prepared.lives:
                prepared.after_fork(self._turn)
            else:
                forks.never_freed(prepared)
        self._buckets = {index: entry for index, entry in self._buckets.items() if entry.lives}
        self._others = {key: entry for key, entry in self._others.items() if entry.lives}

    def _other_shape(
        self,
        sizes: Mapping[str, int],
        overridden: Mapping[str, tuple[int, ...]],
        arrays: Mapping[str, ModelValue] | None,
    ) -> Prepared:
        """A shape outside the buckets, or inputs in the place of defaults: the first of its `_ways` that is right, tried in another
        process where nothing of its class of sizes (see `bricolage.runtime.untried_sizes`) was tried before.

        Raises:
            SizeFailed: none is.
            UnfitInputs: the model cannot be computed at these sizes.
        """
        plan, key = self.source.plan, (tuple(sorted(sizes.items())), tuple(sorted(overridden.items())))
        from bricolage.graph.prepare import prepare_for_call

        graph = prepare_for_call(self.source.read_model(), sizes, overridden)
        which = size_class(sizes, [bucket.program.sizes for bucket in plan.buckets])
        tried = self.source.tried
        right = tried.get(which) if trying() else 0
        bound = max(bucket.verification.bound for bucket in plan.buckets)
        reasons: list[str] = []
        for way, placement in enumerate(self._ways(graph, sizes)):
            if right is not None and way < right:
                continue
            names = "+".join(sorted({str(assignment.implementation) for assignment in placement}))
            untried = trying() and (right is None or way > right)
            why = self._run_trial(graph, placement, bound, arrays) if untried else ""
            if not why:
                try:
                    prepared = self._compile(key, graph, placement)
                except BricolageError as error:
                    why = error.sentence
                else:
                    if untried:
                        tried.put(which, way)
                    return prepared
            _LOG.warning("%s does not run the shape %s: %s", names, dict(sizes), why)
            reasons.append(f"{names}: {why}")
        sizes_text = ", ".join(f"{name}={size}" for name, size in sorted(sizes.items()))
        raise SizeFailed(sizes=sizes_text, reasons="; ".join(reasons))

    def _ways(self, graph: Graph, sizes: Mapping[str, int]) -> Iterator[Placement]:
        """How a shape outside the buckets may be run, the best first: as the nearest bucket, then on single backends.

        Regions on backends that compile slowly go to the fastest single backend that compiles quickly, since a caller
        waits. That backend runs all of the graph where the plan divides a rewritten one (rules belong to deciding, and the
        artifact holds them for the planned shapes only), and where the graph of this shape differs in structure. Backends whose
        optimisations may refuse a graph follow without them. The float64 reference is the last: slow, and right.
        """
        from bricolage.backends.reference import REFERENCE

        bucket = min(self.source.plan.buckets, key=lambda b: _distance(b.program.sizes, sizes))
        quick = self._quick_implementations(bucket)
        _LOG.info("new shape %s: planned as %s", dict(sizes), dict(bucket.program.sizes))
        whole = [
            (Assignment(graph.everything.bits, implementation),)
            for implementation in (*quick, *_without_optimisations(quick), REFERENCE)
        ]
        if bucket.program.variant != ORIGINAL or len(graph) != bucket.program.operators:
            yield from whole
            return
        chosen = tuple(
            replace(assignment, implementation=(*quick, REFERENCE)[0])
            if registry.get(assignment.implementation.backend).compiles_slowly
            else assignment
            for assignment in placement_of(bucket)
        )
        yield chosen
        yield from (placement for placement in whole if placement != chosen)

    def _quick_implementations(self, bucket: Bucket) -> list[Implementation]:
        """One of each backend that compiles quickly and is installed here: accepted baselines first, the fastest before others."""
        quick = {backend.name: backend for backend in registry.available() if not backend.compiles_slowly}
        implementations: dict[str, Implementation] = {}
        for baseline in ranked_baselines(bucket.race.contestants):
            if baseline.backend in quick:
                implementations.setdefault(baseline.backend, baseline)
        for name, backend in quick.items():
            if name not in implementations:
                implementations[name] = first_implementation(backend, self.source.plan)
        return list(implementations.values())

    def _run_trial(
        self, graph: Graph, placement: Placement, bound: float, arrays: Mapping[str, ModelValue] | None
    ) -> str:
        """Why a program may not be run in this process; empty where it may."""
        from bricolage.graph.identity import Identities

        store, everything = self.source.store, graph.everything
        model = store.region(everything, Identities(graph).key(everything))
        ends = [info.name for info in graph.inputs], [info.name for info in graph.outputs]
        return trial(model, placement_steps(graph, placement, store), ends, self._resources(placement), bound, arrays)

    def _resources(self, placement: Placement) -> Resources:
        backends = {assignment.implementation.backend for assignment in placement}
        return Resources(self.threads, self.device, alone=len(backends) == 1 and not self._shared)

    def _compile(
        self, key: Hashable, graph: Graph, placement: Placement, cores: Sequence[tuple[int, ...]] | None = None
    ) -> Prepared:
        resources = self._resources(placement)
        steps = placement_steps(graph, placement, self.source.store)
        ends = [info.name for info in graph.inputs], [info.name for info in graph.outputs]
        like = None if self._known is None else self._known.get((key, placement))
        program = compile_program(steps, *ends, resources, cores=cores, like=like)
        return self._prepare(key, placement, program)

    def _prepare(self, key: Hashable, placement: Placement, program: Program) -> Prepared:
        if self._known is not None:
            self._known.setdefault((key, placement), program)
        backends = frozenset(assignment.implementation.backend for assignment in placement)
        return Prepared(program, backends, self._turn)


def placement_of(bucket: Bucket) -> Placement:
    """The assignments of a plan's regions."""
    return tuple(Assignment(bitset.of(parse_numbers(r.operators)), r.implementation) for r in bucket.program.regions)


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Sum over dimensions of |log ratio|: twice as long counts the same at every length."""
    return sum(abs(math.log(max(size, 1) / max(other.get(name, 1), 1))) for name, size in one.items())


def first_implementation(backend: Backend, plan: Plan) -> Implementation:
    """A backend that the plan does not speak of, in its first configuration for the plan's precision and device."""
    options = plan.provenance.options
    device = select_device(options.isa, options.cores)
    return Implementation(backend.name, backend.configs(options.precision, device)[0], device.name)


def _without_optimisations(implementations: Sequence[Implementation]) -> Iterator[Implementation]:
    """Of those whose backend's optimisations may refuse a graph, the configurations without them."""
    for implementation in implementations:
        backend = registry.get(implementation.backend)
        config = backend.unoptimised(implementation.config) if backend.optimiser_refuses else None
        if config is not None:
            yield replace(implementation, config=config)


def ranked_baselines(contestants: Sequence[Contestant]) -> list[Implementation]:
    """Implementations of accepted baselines that run our graph, fastest first; the user's file is there only where it ships."""
    accepted = [c for c in contestants if c.kind == "baseline" and c.accepted and not c.as_it_comes]
    timed = [c for c in accepted if c.median_ms is not None]
    ordered = sorted(timed, key=lambda c: c.median_ms or 0.0)
    return [c.implementation for c in ordered if c.implementation is not None]
