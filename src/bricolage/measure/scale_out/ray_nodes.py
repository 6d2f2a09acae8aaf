"""A Ray cluster as a driver sees it: what each of its nodes may do, and the work that goes to them.

Nodes of the driver's device class, with the same versions, measure; others may compile (see `membership`). A node that is lost or
silent gives its work back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bricolage.backends import registry
from bricolage.backends.kernel_trials import Build
from bricolage.base.cache import compiled_directory
from bricolage.base.codec import decode, encode
from bricolage.base.ray_session import describe_error
from bricolage.base.undo import Closing, undo_on_failure
from bricolage.costs.entries import Cost
from bricolage.device.device import Device
from bricolage.errors import NoMeasuringNode
from bricolage.measure.scale_out.dispatch import Dispatch
from bricolage.measure.scale_out.membership import JOINING_S, WAIT_S, ClusterNode, Membership, who
from bricolage.measure.scale_out.messages import (
    Code,
    Compiled,
    CompileItem,
    Measured,
    MeasureItem,
    NodeDescription,
    TrialItem,
    TriedBuilds,
)
from bricolage.measure.scale_out.parcels import Sender, install
from bricolage.measure.specs import CandidateSpec, Limits, RegionTask, Stop, TimingPolicy
from bricolage.plan.program_step import Step
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)
_QUEUED = 2
"""Regions that a node has at a time: one is measured while the next one's files arrive."""
T = TypeVar("T")
Take = Callable[[CandidateSpec, Cost, str], None]
"""Hears of a cost and of the machine that measured it."""


@dataclass(frozen=True)
class _Flight:
    """An item on its way."""

    batch: int
    number: int
    node: ClusterNode
    kind: str


@dataclass(frozen=True)
class _Asked:
    """A region to be measured, with what stands behind the item."""

    task: RegionTask
    specs: tuple[CandidateSpec, ...]
    item: MeasureItem


class Cluster(Closing):
    """Open for one driver, and used by one thread of it."""

    def __init__(self, address: str, device: Device, memory_limit: int | None = None) -> None:
        """Joins a cluster, or starts one of this machine's processes (`LOCAL`). `address`: as `ray.init` takes it; `device`: for
        which everything is compiled and measured; `memory_limit`: resident bytes of one worker process.

        Raises:
            MissingLibrary: ray is not installed.
            UnreachableCluster: there is no cluster at that address, or it has other versions of Python or Ray.
            NoMeasuringNode: none of its nodes is of the device's class, with the same versions.
        """
        self._device = device
        self._members = Membership(address, device, memory_limit)
        self._ray, self._errors = self._members.ray, self._members.errors
        self._batch = 0
        self._flights: dict[Any, _Flight] = {}
        self._sender = Sender()
        self._sent: dict[str, Any] = {}
        """By name, where Ray keeps what is on its way."""
        self._code: dict[tuple[Step, int], tuple[Code, ...]] = {}
        self.lost = 0
        """Answers that never came, because their node went away."""
        self.duplicates = 0
        """Items that were given to a second node."""
        self.dropped = 0
        """Results that came twice."""
        with undo_on_failure(self.close):
            self._members.enlist()
            self._members.settle(JOINING_S)
            if not any(node.alike for node in self._members.ready):
                reasons = "; ".join(dict.fromkeys(self._members.reasons)) or "it has no node with processors"
                raise NoMeasuringNode(address=address, device=device, reasons=reasons)

    def close(self) -> None:
        """Ends the actors, and a cluster that was started here."""
        self._flights.clear()
        self._sent.clear()
        self._members.close()

    @property
    def nodes(self) -> int:
        """How many nodes work for this driver now."""
        return len(self._members.ready)

    def describe(self) -> list[tuple[NodeDescription, bool]]:
        """What each node says of itself, and whether it measures."""
        return [(node.what, node.measures) for node in self._members.ready if node.what is not None]

    # --- work -------------------------------------------------------------------------------------------------------

    def compile(self, specs: Sequence[CandidateSpec], limit_s: float, should_stop: Stop) -> int:
        """Has the steps of programs compiled, all over the cluster, by backends whose code serves elsewhere, and puts that code
        into the cache here, where loading looks for it. What fails is left out: loading meets the same and says why. Returns how
        many folders were new.
        """
        asked: dict[tuple[Step, int], CompileItem] = {}
        for spec in specs:
            for step in spec.steps:
                key = (step, spec.threads)
                if key in asked or key in self._code or spec.cores or spec.serving is not None:
                    continue
                if registry.get(step.implementation.backend).travels != "no":
                    parcel = self._sender.region(step.path)
                    asked[key] = CompileItem(
                        step.implementation, parcel.name, parcel.needs, spec.threads, spec.device, limit_s
                    )
        if len(asked) < 2:
            return 0  # alone it is as quick here
        keys = list(asked)
        installed = 0

        def take(number: int, answer: tuple[dict[str, Any], dict[str, bytes]]) -> None:
            nonlocal installed
            compiled, contents = decode(Compiled, answer[0], "answer"), answer[1]
            step, item = keys[number][0], asked[keys[number]]
            if compiled.outcome != "ok":
                _LOG.info(
                    "%s was not compiled elsewhere: %s (%s)", step.implementation, compiled.outcome, compiled.reason
                )
            for code in compiled.code:
                parent = self._locate_code(item.device, code.backend)
                installed += install(parent, code.folder, code.files, contents.__getitem__)
                for relative in code.files:
                    self._sender.file(parent / code.folder / relative, "")
            self._code[keys[number]] = compiled.code

        items = list(asked.values())
        self._spread("compile", items, lambda item: item.needs, self._may_compile, take, should_stop)
        return installed

    def measure(
        self,
        tasks: Sequence[tuple[RegionTask, Sequence[CandidateSpec]]],
        policy: TimingPolicy,
        limits: Limits,
        take: Take,
        should_stop: Stop,
        *,
        retrying: bool = False,
    ) -> None:
        """Measures candidates of regions on nodes of the device's class, all of a region on one; `take` hears of each cost as
        soon as it is here. What no node could measure is left to the caller, as is everything where no other machine measures.
        """
        asked = [
            self._build_request(task, tuple(specs), policy, limits, retrying)
            for task, specs in tasks
            if specs and self.measuring
        ]
        if not asked:
            return

        def take_costs(number: int, answer: dict[str, Any]) -> MeasureItem | None:
            measured, (task, specs) = decode(Measured, answer, "answer"), (asked[number].task, asked[number].specs)
            if measured.wants_limits and task.limits is not None:
                again = replace(asked[number].item, limits=dict(task.limits()))
                asked[number] = replace(asked[number], item=again)
                return again
            for spec, cost in zip(specs, measured.costs, strict=False):
                if cost is not None:
                    take(spec, cost, measured.machine)
            return None

        items = [request.item for request in asked]
        self._spread("measure", items, lambda item: item.needs, self._may_measure, take_costs, should_stop)

    def trials(
        self, step: Step, builds: Sequence[Build], rounds: int, threads: int, limit_s: float, should_stop: Stop
    ) -> list[TriedBuilds | None]:
        """What came of each build, timed on nodes of the device's class, each in turns with the usual kernels there; None for those
        that no node could time, which are left to the caller."""
        outcomes: list[TriedBuilds | None] = [None] * len(builds)
        parcel = self._sender.region(step.path)
        parts = [list(range(start, len(builds), self.measuring)) for start in range(min(self.measuring, len(builds)))]
        items = [
            TrialItem(
                step.implementation,
                parcel.name,
                parcel.needs,
                threads,
                tuple(builds[number] for number in numbers),
                rounds,
                limit_s,
            )
            for numbers in parts
        ]

        def take(number: int, answer: dict[str, Any]) -> None:
            tried = decode(TriedBuilds, answer, "answer")
            if tried.reason:
                _LOG.info("trials elsewhere came to nothing: %s", tried.reason)
            for position, trial in zip(parts[number], tried.trials, strict=False):
                outcomes[position] = TriedBuilds(tried.machine, (trial,))

        self._spread("trial", items, lambda item: item.needs, self._may_try, take, should_stop)
        return outcomes

    @property
    def measuring(self) -> int:
        """How many other machines measure."""
        return sum(node.measures for node in self._members.ready)

    def _may_try(self, item: TrialItem, node: ClusterNode) -> bool:
        what = node.what
        return node.measures and what is not None and self._agrees(item.implementation, what, True)

    def _build_request(
        self, task: RegionTask, specs: tuple[CandidateSpec, ...], policy: TimingPolicy, limits: Limits, retrying: bool
    ) -> _Asked:
        """`specs`: of one region, which differ in their implementations."""
        first = specs[0]
        model = self._sender.region(first.steps[0].path)
        inputs, expected = (self._sender.file(path, ".npz") for path in (task.inputs, task.expected))
        code = tuple(code for spec in specs for step in spec.steps for code in self._code.get((step, spec.threads), ()))
        parts = dict.fromkeys(name for step_code in code for name in step_code.files.values())
        item = MeasureItem(
            first.region_key,
            tuple(spec.steps[0].implementation for spec in specs),
            outputs=first.outputs,
            threads=first.threads,
            cores=first.device.threads,
            model=model.name,
            inputs=inputs,
            expected=expected,
            needs=(*model.needs, inputs, expected, *parts),
            bound=task.bound,
            data=task.data,
            limits=None,
            may_ask=task.limits is not None,
            policy=policy,
            run=limits,
            retrying=retrying,
            code=code,
        )
        return _Asked(task, specs, item)

    def _spread(
        self,
        kind: str,
        items: Sequence[T],
        needs: Callable[[T], Sequence[str]],
        may: Callable[[T, ClusterNode], bool],
        take: Callable[[int, Any], T | None],
        should_stop: Stop,
    ) -> None:
        """Gives items to nodes until each has a result, no node is left that could do one, or `should_stop`. `take` gets each first
        result, and may return the item in another form, to be done again."""
        self._members.enlist()
        self._batch += 1
        batch = self._batch
        work = Dispatch(items, lambda item, name: name in self._members.nodes and may(item, self._members.nodes[name]))

        def collect(timeout_s: float) -> None:
            for flight, answer in self._collect_answers(timeout_s):
                name = flight.node.name
                if flight.batch != batch or flight.kind != kind:
                    self.dropped += answer is not None
                    continue
                if answer is None:
                    work.failed(flight.number, name)
                    continue
                if not work.done(flight.number, name, time.monotonic()):
                    continue
                try:
                    again = take(flight.number, answer)
                except ValueError as error:
                    _LOG.warning("node %s has answered nonsense: %s", who(flight.node), error)
                    continue
                if again is not None:
                    work.restore(flight.number, again)

        try:
            while work.open and not should_stop():
                for node in self._members.ready:
                    while node.busy[kind] < (node.slots if kind == "compile" else _QUEUED):
                        assignment = work.next(node.name, time.monotonic())
                        if assignment is None:
                            break
                        number, item = assignment
                        if not self._send(kind, batch, number, item, needs(item), node):
                            work.failed(number, node.name)
                            break
                if work.hopeless([node.name for node in self._members.ready]) and not self._members.coming:
                    break
                collect(WAIT_S)
                self._members.drop_silent()
                self._members.enlist()
                self._members.settle(0.0)
            collect(0.0)
        finally:
            self.duplicates += work.duplicates
            self.dropped += work.dropped
            self._sent.clear()  # what is on its way is kept by Ray
            for node in {flight.node.name: flight.node for flight in self._flights.values()}.values():
                node.actor.give_up.remote(batch)

    def _send(self, kind: str, batch: int, number: int, item: object, needs: Sequence[str], node: ClusterNode) -> bool:
        """Whether an item is on its way, with what its node does not have."""
        missing = [name for name in dict.fromkeys(needs) if name not in node.has]
        try:
            for name in missing:
                if name not in self._sent:
                    self._sent[name] = self._ray.put(self._sender.read(name))
        except (OSError, ValueError, *self._errors) as error:
            _LOG.warning("a region cannot be sent to other nodes: %s", error)
            return False
        method = getattr(node.actor, kind)
        answer = method.remote(batch, encode(item), missing, [self._sent[name] for name in missing])
        node.has.update(missing)
        node.busy[kind] += 1
        self._flights[answer] = _Flight(batch, number, node, kind)
        return True

    def _collect_answers(self, timeout_s: float) -> list[tuple[_Flight, Any]]:
        """What was answered, waiting so long for the first; None for what will never be."""
        if not self._flights:
            time.sleep(min(timeout_s, WAIT_S))
            return []
        flying = list(self._flights)
        ready, _ = self._ray.wait(flying, num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait(flying, num_returns=len(flying), timeout=0)
        answers: list[tuple[_Flight, Any]] = []
        for reference in ready:
            flight = self._flights.pop(reference)
            flight.node.busy[flight.kind] -= 1
            try:
                answers.append((flight, self._ray.get(reference)))
            except self._errors as error:
                self.lost += 1
                _LOG.warning("node %s has not answered: %s", who(flight.node), describe_error(error))
                if isinstance(error, self._ray.exceptions.RayActorError):
                    self._members.remove(flight.node)
                flight.node.has.clear()  # whatever of it has not arrived
                answers.append((flight, None))
        return answers

    # --- who may do what ----------------------------------------------------------------------------------------------

    def _may_compile(self, item: CompileItem, node: ClusterNode) -> bool:
        return node.what is not None and self._agrees(item.implementation, node.what, node.alike)

    def _may_measure(self, item: MeasureItem, node: ClusterNode) -> bool:
        what = node.what
        return (
            node.measures
            and what is not None
            and all(self._agrees(implementation, what, True) for implementation in item.implementations)
        )

    def _agrees(self, implementation: Implementation, what: NodeDescription, alike: bool) -> bool:
        """Whether a node has the version of a backend that is here, and the machine that it needs."""
        name = implementation.backend
        if what.versions.get(name) != registry.version(name):
            return False
        ours = self._device
        return alike or (
            registry.get(name).travels == "anywhere"
            and (what.device.system, what.device.architecture) == (ours.system, ours.architecture)
        )

    def _locate_code(self, device: Device, backend: str) -> Any:
        return compiled_directory(device.fingerprint(), backend, registry.version(backend))
