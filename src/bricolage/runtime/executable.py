"""`Executable`: a plan made ready on this machine."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from bricolage.base.late_imports import require_dependency
from bricolage.base.options import MOST_THREADS_A_CORE, available_cores
from bricolage.device.buffers import bindable
from bricolage.device.host import select_device
from bricolage.errors import BricolageError, ExecutableClosed
from bricolage.plan import artifact
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.plan import Plan, TensorSpec
from bricolage.runtime import forks, portable, signature
from bricolage.runtime.choosing import PackChoice
from bricolage.runtime.program import BoundProgram
from bricolage.runtime.programs import Known, PlanSource, Programs
from bricolage.runtime.ready import Ready
from bricolage.runtime.serving.request_statistics import ServingRecorder, ServingStatistics
from bricolage.runtime.spans import RunSpan
from bricolage.work.values import ModelValue

if TYPE_CHECKING:
    from bricolage.graph.graph import Graph
    from bricolage.runtime.serving.server import Server

_LOOKAHEAD = 2
"""Requests of `map` under way, as a multiple of what all streams run at a time."""


@dataclass(frozen=True)
class TracedRun:
    """A run and what ran when."""

    outputs: Mapping[str, ModelValue]
    """By name, as `Executable.run` returns them."""
    spans: tuple[RunSpan, ...]
    """In the order of their starts; `step` counts the regions of the bucket."""
    bucket: int | None
    """Index of the bucket; None where the shape was not planned, and the regions are others."""


class Executable:
    """A model, planned for this machine and ready to run.

    Call it with numpy arrays or torch tensors, by position, by input name, or with one mapping of names to arrays; it returns
    the same kind: one tensor, or a tuple where the model has several outputs. Plain numbers and lists of them are taken as the
    type of the input. Safe to call from several threads: calls take turns, since one run uses all cores.

    For many answers a second there are `submit` and `map`, whose requests run in the streams of an operating point
    (`serve`). Calls know nothing of them: at the same time both share the cores.

    Raises (when called):
        MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
        OtherConstant: an input that the model was optimised for never to change has another value.
        ForkedProcess: this process was forked after the executable was made, and a backend of it does not live on.
    """

    def __init__(self, plan: Plan, directory: Path, *, temporary: bool = False, lent: bool = False) -> None:
        """`directory` holds the plan's graphs and weights; a `temporary` one is removed with the executable, one that is `lent` is
        held by the process that lends it."""
        self._open(PlanSource(plan, directory, temporary=temporary, lent=lent))

    def _open(self, source: PlanSource) -> None:
        plan = self.plan = source.plan
        self.choice: PackChoice | None = None
        """Of a pack: which of its plans this is, and why."""
        self._source = source
        options = plan.provenance.options
        self._device = select_device(options.isa, options.cores)
        self._threads = min(options.threads, MOST_THREADS_A_CORE * available_cores())
        self._programs = Programs(self._source, self._device, self._threads)
        self._ready = Ready(plan.inputs)
        self._names = tuple(spec.name for spec in plan.outputs)
        self._positional = signature.by_position(plan) if plan.constants else ()
        self._maps = any(spec.keys for spec in plan.outputs)
        self._serving = threading.RLock()
        self._server: Server | None = None
        self._point = plan.operating_point
        self._closed = False
        forks.tell(self)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What the model takes; symbolic dimensions keep their names."""
        return self.plan.inputs

    @property
    def defaults(self) -> tuple[TensorSpec, ...]:
        """What the model takes by name where it is given, and has values for where it is not."""
        return self.plan.defaults

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What the model returns."""
        return self.plan.outputs

    def graph(self, bucket: int = 0) -> Graph:
        """The operator graph of a bucket, numbered as in the plan."""
        return self._source.graph(self.plan.buckets[bucket])

    def save(self, path: str | Path) -> Path:
        """Writes the artifact (see `bricolage.plan.artifact`).

        Raises:
            NotWritable: the folder is not writable or the disk is full.
        """
        target = Path(path)
        artifact.save(self.plan, self._source.directory, target)
        return target

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        """By its artifact: what is unpickled is loaded as from a file, on another machine too."""
        return portable.unpacked, (portable.pack_artifact(self.save),)

    def __copy__(self) -> Executable:
        """Another executable of the same plan and files, with programs and streams of its own."""
        twin = Executable.__new__(Executable)
        twin._open(self._source)
        twin.choice = self.choice
        return twin

    def __deepcopy__(self, memo: dict[int, object]) -> Executable:
        """As `copy.copy`: the files are never written again."""
        del memo
        return self.__copy__()

    def prepare(self, bucket: int = 0) -> None:
        """Compiles a bucket now rather than at its first call."""
        self._programs.bucket(bucket)

    def __call__(self, *args: ModelValue, **named: ModelValue) -> ModelValue:
        """Outputs for inputs, by position or by name; see the class."""
        ready = self._ready.find(args, named)
        if ready is not None:
            prepared, values, torch = ready
            results = prepared.run_in_order(values)
            if torch or self._maps:
                return _answer(results, self.plan.outputs, torch)
            return results[0] if len(results) == 1 else tuple(results)
        arrays, deliver = self._request(args, named)
        return deliver(self._run(arrays))

    def run(self, inputs: Mapping[str, ModelValue]) -> dict[str, ModelValue]:
        """Outputs by name for inputs by name, as numpy arrays. Where the model returns maps, a list of a dict for each row."""
        ready = self._ready.find((inputs,), {})
        if ready is not None:
            prepared, values, _ = ready
            return self._name_outputs(prepared.run_in_order(values))
        return self._name_outputs(self._run(self._collect(inputs)).values())

    def backends(self, inputs: Mapping[str, ModelValue]) -> frozenset[str]:
        """Names of those that run on inputs of these shapes. Compiles what is not compiled yet."""
        return self._programs.select(self._collect(inputs)).backends

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray] | None = None) -> BoundProgram:
        """Binds to the caller's own buffers, for repeated runs without any copy: the returned object is called without
        arguments, reads `inputs` and writes its `.outputs`. Not synchronised with other calls.

        Raises:
            ValueError: an array is not C-contiguous and aligned to 64 bytes (see `bricolage.device.buffers.allocate_aligned`); or
                shapes are known only at run time; or the artifact runs the user's file, which returns an input as it is.
        """
        arrays = self._collect(inputs)
        for name, array in {**arrays, **(outputs or {})}.items():
            if not bindable(array):
                raise ValueError(
                    f"'{name}' is not C-contiguous and aligned to 64 bytes; make it with allocate_aligned()"
                )
        prepared = self._programs.select(arrays)
        if not prepared.static:
            raise ValueError(
                "shapes are known only at run time, or the file that is run returns an input as it is; call the executable instead"
            )
        ends, output_buffers = zip(prepared.program.outputs, self.plan.outputs, strict=True), outputs or {}
        given = {info.name: output_buffers[spec.name] for info, spec in ends if spec.name in output_buffers}
        bound = prepared.program.bind(arrays, given)
        bound.outputs = dict(zip((spec.name for spec in self.plan.outputs), bound.outputs.values(), strict=True))
        return bound

    def trace(self, inputs: Mapping[str, ModelValue]) -> TracedRun:
        """As `run`, and when each region really ran, on which thread and core. Where shapes are known only at run time, there
        are no spans."""
        arrays = self._collect(inputs)
        overridden = signature.overridden(self.plan.defaults, arrays)
        spans: list[RunSpan] = []
        results = self._name_outputs(self._run(arrays, spans).values())
        sizes = signature.bound_dimensions(self.plan.inputs, arrays)
        return TracedRun(results, tuple(spans), self._source.planned(sizes, overridden))

    # --- requests -----------------------------------------------------------------------------------------------------

    def serve(self, point: OperatingPoint | None = None) -> Self:
        """Starts streams for the requests of `submit` and `map`; without `point`, those of the plan's operating point, or one
        stream that runs the plan as it is. The first `submit` does so if it was not called. Streams that there are already finish
        what they have first.

        Raises:
            BadOption: the streams would have more cores than the plan's device has, or than this process may use.
            NotBatchable: requests are to be put together, but the model has no batch dimension, or its rows depend on
                each other.
            NotEnoughMemory: the streams would take more than is free.
            ExecutableClosed: after `close`.
        """
        with self._serving:
            before, self._server = self._server, None
            self._point = point or self._point
        if before is not None and not self._closed:
            before.close()  # not under the lock: a callback of its requests may ask for it
        with self._serving:
            if self._closed:
                self._server = before
                raise ExecutableClosed(model=self.plan.model)
            if self._server is None:
                point = self.operating_point
                with require_dependency("to serve requests in streams"):
                    from bricolage.runtime.serving.server import Server

                    server = self._server = Server(self._source, point, self._programs_of(point))
                weakref.finalize(self, server.finish).atexit = False  # with the interpreter it ends by itself
        return self

    def submit(
        self, *args: ModelValue, block: bool = True, timeout: float | None = None, **named: ModelValue
    ) -> Future[ModelValue]:
        """A request with inputs as for a call; its answer, or its error, comes in a future (`asyncio.wrap_future` makes it one of
        asyncio's). Bad inputs are refused at once. Arrays may be written again when this returns. Where the queue is full it
        waits for room, at most `timeout` seconds, and not at all if `block` is false. An input of the name "block" or "timeout" can
        be given in a mapping.

        Raises:
            MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
            QueueFull: there is no room, or was none in time.
            ExecutableClosed: after `close`.
            BadOption, NotBatchable, NotEnoughMemory: see `serve`, where this starts the streams.
        """
        request = self._request(args, named)
        while True:
            try:
                return self._serves().submit(*request, block, timeout)
            except ExecutableClosed:
                if self._closed:
                    raise  # else another thread has just started other streams

    def map(self, inputs: Iterable[ModelValue], *, ahead: int | None = None) -> Iterator[ModelValue]:
        """The answers to inputs, in their order, each as a call takes one argument: an array, a mapping, or a tuple for several. At
        most `ahead` of them are under way or waiting to be fetched; by default twice as many as all streams run at a time.
        To stop fetching cancels what has not begun.

        Raises:
            as `submit`, and what a request raised, when its turn has come.
        """
        point = self._serves().point
        most = ahead or _LOOKAHEAD * point.streams * point.batch
        return self._map_ahead(iter(inputs), max(1, min(most, point.queue)))

    def _map_ahead(self, inputs: Iterator[ModelValue], most: int) -> Iterator[ModelValue]:
        under_way: deque[Future[ModelValue]] = deque()
        refused: BricolageError | None = None
        try:
            while True:
                while refused is None and len(under_way) < most:
                    try:
                        request = next(inputs)
                    except StopIteration:
                        break
                    try:
                        under_way.append(self.submit(request))
                    except BricolageError as error:
                        refused = error  # after the answers to those before it
                if not under_way:
                    break
                yield under_way.popleft().result()
            if refused is not None:
                raise refused
        finally:
            for future in under_way:
                future.cancel()

    @property
    def operating_point(self) -> OperatingPoint:
        """How requests are served, or would be: as `serve` was told, else as the plan says, else in one stream as calls run."""
        usable = min(len(self._device.cores), available_cores())
        return self._point or OperatingPoint(threads=min(self._threads, usable))

    def statistics(self) -> ServingStatistics:
        """Of the requests to the streams that there are, or were last."""
        with self._serving:
            return ServingRecorder().told(0) if self._server is None else self._server.statistics()

    def close(self, *, wait: bool = True, cancel: bool = False) -> None:
        """Takes no more requests. The streams finish those they have and end; with `cancel`, those that have not begun are
        cancelled; with `wait`, returns when all is done. Calls go on."""
        with self._serving:
            self._closed = True
            server = self._server
        if server is not None:
            server.close(wait=wait, cancel=cancel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=kind is not None)

    def _serves(self) -> Server:
        with self._serving:
            if self._server is None or self._closed:
                self.serve()
            assert self._server is not None
            return self._server

    def _programs_of(self, point: OperatingPoint) -> Callable[[int], Programs]:
        """What makes the programs of each stream."""
        groups = point.groups(self._device.cores, min(len(self._device.cores), available_cores()))
        if point.streams == 1 and point.threads == min(self._threads, len(self._device.cores)):
            return lambda _: self._programs
        source, device, program_cache = self._source, self._device, Known()
        shared = point.streams > 1
        return lambda n: Programs(source, device.group(groups[n]), point.threads, shared=shared, known=program_cache)

    def _request(
        self, args: tuple[ModelValue, ...], named: Mapping[str, ModelValue]
    ) -> tuple[dict[str, ModelValue], Callable[..., ModelValue]]:
        """Inputs of a call as arrays, and what makes its answer of the outputs."""
        by_position, by_name = signature.by_position_and_name(self.plan.inputs, args, named, self._positional)
        arrays = self._check_inputs(by_position, by_name)
        torch = any(signature.is_torch_tensor(value) for value in (*by_position, *by_name.values()))
        return arrays, partial(_deliver_outputs, specs=self.plan.outputs, torch=torch)

    def _check_inputs(self, args: Sequence[ModelValue], named: Mapping[str, ModelValue]) -> dict[str, ModelValue]:
        arrays = self._source.collect(args, named)
        for constant in self.plan.constants:
            if constant.name in named:
                self._ready.allow(constant.name, self._source.default(constant.name))
        return arrays

    def _collect(self, inputs: Mapping[str, ModelValue]) -> dict[str, ModelValue]:
        return self._check_inputs((), inputs)

    def _name_outputs(self, outputs: Iterable[ModelValue]) -> dict[str, ModelValue]:
        """As the model returns its outputs, by the names that it has for them."""
        results = signature.convert_to_maps(self.plan.outputs, outputs) if self._maps else outputs
        return dict(zip(self._names, results, strict=True))

    def _run(self, arrays: dict[str, ModelValue], spans: list[RunSpan] | None = None) -> dict[str, ModelValue]:
        checked = len(arrays)  # before defaults are added
        prepared = self._programs.select(arrays)
        # Where defaults are overridden, which program runs follows from them, too.
        if checked == len(self.plan.inputs):
            self._ready.add(arrays, prepared)
        return prepared.run(arrays, spans)

    def after_fork(self) -> None:
        """In a forked process: what does not live on is compiled again when it is asked for, and there are no streams until
        then."""
        self._programs.after_fork()
        self._ready.clear()
        self._serving = threading.RLock()
        if self._server is not None:
            forks.never_freed(self._server)
            self._server = None


def _deliver_outputs(outputs: Mapping[str, ModelValue], specs: Sequence[TensorSpec], torch: bool) -> ModelValue:
    """Outputs by name as a call returns them."""
    return _answer(outputs.values(), specs, torch)


def _answer(outputs: Iterable[ModelValue], specs: Sequence[TensorSpec], torch: bool) -> ModelValue:
    """Outputs in order as a call returns them: one tensor, or a tuple where the model has several."""
    results = [signature.to_torch(output) if torch else output for output in signature.convert_to_maps(specs, outputs)]
    return results[0] if len(results) == 1 else tuple(results)
