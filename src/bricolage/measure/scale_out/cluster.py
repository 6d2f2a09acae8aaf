"""A Ray cluster as a driver sees it: its nodes, what each may do, and the work that goes to them. Nothing else imports ray.

Every node has one actor (`Station`), which reserves all of the node's processors, so that Ray gives them to nobody else. Nodes of
the driver's device class, with the same versions, measure; but those on the driver's own machine do not, since the driver does that
itself. Others may compile. A node that is lost or silent gives its work back; a new one, or one whose actor has died, is taken up.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeVar

from bricolage import telemetry
from bricolage._version import __version__
from bricolage.backends import registry
from bricolage.backends.trials import Build
from bricolage.cache import compiled_directory, machine_id
from bricolage.codec import DecodeError, decode, encode
from bricolage.costs.entries import Cost
from bricolage.device.device import Device
from bricolage.errors import MissingLibrary, NoMeasuringNode, UnreachableCluster
from bricolage.measure.scale_out.dispatch import Dispatch
from bricolage.measure.scale_out.items import (
    Code,
    Compiled,
    CompileItem,
    Measured,
    MeasureItem,
    NodeDescription,
    Setup,
    TrialItem,
    TriedBuilds,
)
from bricolage.measure.scale_out.parcels import Sender, install
from bricolage.measure.scale_out.station import Station
from bricolage.measure.specs import CandidateSpec, Limits, RegionTask, Stop, TimingPolicy
from bricolage.options import available_cores
from bricolage.plan.step import Step
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)
LOCAL = "local"
"""Address of a cluster of this machine's processes, which is started for a decision and ends with it."""
_LOCAL_STORE = 512 << 20
"""Bytes of shared memory for what travels within it."""
_KNOCK_S = 5.0
_ATTEMPTS_VARIABLE = "RAY_gcs_server_port_wait_time_s"
_JOINING_S = 90.0
"""Until nodes have said what they are: importing ray and us takes seconds, on a busy machine many."""
_WAIT_S = 0.2
_LOOK_S = 2.0
"""How often the cluster is asked for nodes that have joined."""
_PULSE_S = 5.0
_SILENCE_S = 60.0
"""A node that has not shown for so long that it lives is lost: it hangs, or the network has gone. On a busy machine the answer may
take seconds."""
_STARTS = 3
"""Actors that a node is given, where they keep dying."""
_QUEUED = 2
"""Regions that a node has at a time: one is measured while the next one's files arrive."""
T = TypeVar("T")
Take = Callable[[CandidateSpec, Cost, str], None]
"""Hears of a cost and of the machine that measured it."""


@dataclass
class _Node:
    """A node of the cluster with the actor that works there."""

    name: str
    """Ray's, of the node, and how many actors it has had: what dies is never taken for its successor."""
    ray_id: str
    slots: int
    actor: Any
    coming: Any
    """What it will say of itself; None once it has."""
    what: NodeDescription | None = None
    measures: bool = False
    alike: bool = False
    """Whether it is of the device class that is measured."""
    busy: dict[str, int] = field(default_factory=lambda: {"compile": 0, "measure": 0, "trial": 0})
    has: set[str] = field(default_factory=set)
    """Names of files that were sent there."""
    begun: float = field(default_factory=time.monotonic)
    pulse: Any = None
    """What it will answer to show that it lives."""
    heard: float = 0.0


@dataclass(frozen=True)
class _Flight:
    """An item on its way."""

    batch: int
    number: int
    node: _Node
    kind: str


@dataclass(frozen=True)
class _Asked:
    """A region to be measured, with what stands behind the item."""

    task: RegionTask
    specs: tuple[CandidateSpec, ...]
    item: MeasureItem


class Cluster:
    """Open for one driver, and used by one thread of it."""

    def __init__(self, address: str, device: Device, memory_limit: int | None = None) -> None:
        """Joins a cluster, or starts one of this machine's processes (`LOCAL`). `address`: as `ray.init` takes it; `device`: for
        which everything is compiled and measured; `memory_limit`: resident bytes of one worker process.

        Raises:
            MissingLibrary: ray is not installed.
            UnreachableCluster: there is no cluster at that address, or it has other versions of Python or Ray.
            NoMeasuringNode: none of its nodes is of the device's class, with the same versions.
        """
        telemetry.disable()
        try:
            import ray
            from ray.exceptions import RayError
        except ImportError as error:
            raise MissingLibrary(name="ray", purpose="to use a cluster", extra="ray", reason=error) from error
        self._ray, self._errors = ray, (RayError,)
        self._address, self._device = address, device
        self._machine = machine_id()
        self._memory_limit = memory_limit
        self._owner = not ray.is_initialized()
        if self._owner:
            self._join()
        self._nodes: dict[str, _Node] = {}
        self._started: dict[str, int] = {}
        self._refused: set[str] = set()
        self._reasons: list[str] = []
        """Why nodes do not measure."""
        self._looked = -_LOOK_S
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
        try:
            self._enlist()
            self._settle(_JOINING_S)
            if not any(node.alike for node in self._ready):
                reasons = "; ".join(dict.fromkeys(self._reasons)) or "it has no node with processors"
                raise NoMeasuringNode(address=address, device=device, reasons=reasons)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the actors, and a cluster that was started here."""
        for node in list(self._nodes.values()):
            self._remove(node)
        self._flights.clear()
        self._sent.clear()
        if self._owner:
            self._ray.shutdown()

    @property
    def nodes(self) -> int:
        """How many nodes work for this driver now."""
        return len(self._ready)

    def describe(self) -> list[tuple[NodeDescription, bool]]:
        """What each node says of itself, and whether it measures."""
        return [(node.what, node.measures) for node in self._ready if node.what is not None]

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
        made = 0

        def take(number: int, answer: tuple[dict[str, Any], dict[str, bytes]]) -> None:
            nonlocal made
            found, contents = decode(Compiled, answer[0], "answer"), answer[1]
            step, item = keys[number][0], asked[keys[number]]
            if found.outcome != "ok":
                _LOG.info("%s was not compiled elsewhere: %s (%s)", step.implementation, found.outcome, found.reason)
            for code in found.code:
                parent = self._compiled(item.device, code.backend)
                made += install(parent, code.folder, code.files, contents.__getitem__)
                for relative in code.files:
                    self._sender.file(parent / code.folder / relative, "")
            self._code[keys[number]] = found.code

        items = list(asked.values())
        self._spread("compile", items, lambda item: item.needs, self._may_compile, take, should_stop)
        return made

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
        soon as it is here. What nobody could find out is left to the caller, as is everything where no other machine measures.
        """
        asked = [
            self._asked(task, tuple(specs), policy, limits, retrying)
            for task, specs in tasks
            if specs and self.measuring
        ]
        if not asked:
            return

        def taken(number: int, answer: dict[str, Any]) -> MeasureItem | None:
            found, (task, specs) = decode(Measured, answer, "answer"), (asked[number].task, asked[number].specs)
            if found.wants_limits and task.limits is not None:
                again = replace(asked[number].item, limits=dict(task.limits()))
                asked[number] = replace(asked[number], item=again)
                return again
            for spec, cost in zip(specs, found.costs, strict=False):
                if cost is not None:
                    take(spec, cost, found.machine)
            return None

        items = [one.item for one in asked]
        self._spread("measure", items, lambda item: item.needs, self._may_measure, taken, should_stop)

    def trials(
        self, step: Step, builds: Sequence[Build], rounds: int, threads: int, limit_s: float, should_stop: Stop
    ) -> list[TriedBuilds | None]:
        """What came of each build, timed on nodes of the device's class, each in turns with the usual kernels there; None for those
        that nobody could time, which are left to the caller."""
        found: list[TriedBuilds | None] = [None] * len(builds)
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
            told = decode(TriedBuilds, answer, "answer")
            if told.reason:
                _LOG.info("trials elsewhere came to nothing: %s", told.reason)
            for position, trial in zip(parts[number], told.trials, strict=False):
                found[position] = TriedBuilds(told.machine, (trial,))

        self._spread("trial", items, lambda item: item.needs, self._may_try, take, should_stop)
        return found

    @property
    def measuring(self) -> int:
        """How many other machines measure."""
        return sum(node.measures for node in self._ready)

    def _may_try(self, item: TrialItem, node: _Node) -> bool:
        what = node.what
        return node.measures and what is not None and self._agrees(item.implementation, what, True)

    def _asked(
        self, task: RegionTask, specs: tuple[CandidateSpec, ...], policy: TimingPolicy, limits: Limits, retrying: bool
    ) -> _Asked:
        """`specs`: of one region, which differ in their implementations."""
        first = specs[0]
        model = self._sender.region(first.steps[0].path)
        inputs, expected = (self._sender.file(path, ".npz") for path in (task.inputs, task.expected))
        code = tuple(code for spec in specs for step in spec.steps for code in self._code.get((step, spec.threads), ()))
        parts = dict.fromkeys(name for one in code for name in one.files.values())
        item = MeasureItem(
            first.region_key,
            tuple(spec.steps[0].implementation for spec in specs),
            first.outputs,
            first.threads,
            first.device.threads,
            model.name,
            inputs,
            expected,
            (*model.needs, inputs, expected, *parts),
            task.bound,
            task.data,
            None,
            task.limits is not None,
            policy,
            limits,
            retrying,
            code,
        )
        return _Asked(task, specs, item)

    def _spread(
        self,
        kind: str,
        items: Sequence[T],
        needs: Callable[[T], Sequence[str]],
        may: Callable[[T, _Node], bool],
        take: Callable[[int, Any], T | None],
        should_stop: Stop,
    ) -> None:
        """Gives items to nodes until each has a result, nobody is left who could do one, or `should_stop`. `take` gets each first
        result, and may return the item in another form, to be done again."""
        self._enlist()
        self._batch += 1
        batch = self._batch
        work = Dispatch(items, lambda item, name: name in self._nodes and may(item, self._nodes[name]))

        def collect(timeout_s: float) -> None:
            for flight, answer in self._arrived(timeout_s):
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
                    _LOG.warning("node %s has answered nonsense: %s", _who(flight.node), error)
                    continue
                if again is not None:
                    work.restore(flight.number, again)

        try:
            while work.open and not should_stop():
                for node in self._ready:
                    while node.busy[kind] < (node.slots if kind == "compile" else _QUEUED):
                        found = work.next(node.name, time.monotonic())
                        if found is None:
                            break
                        number, item = found
                        if not self._send(kind, batch, number, item, needs(item), node):
                            work.failed(number, node.name)
                            break
                if work.hopeless([node.name for node in self._ready]) and not self._coming:
                    break
                collect(_WAIT_S)
                self._hear()
                self._enlist()
                self._settle(0.0)
            collect(0.0)
        finally:
            self.duplicates += work.duplicates
            self.dropped += work.dropped
            self._sent.clear()  # what is on its way is kept by Ray
            for node in {flight.node.name: flight.node for flight in self._flights.values()}.values():
                node.actor.give_up.remote(batch)

    def _send(self, kind: str, batch: int, number: int, item: object, needs: Sequence[str], node: _Node) -> bool:
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

    def _arrived(self, timeout_s: float) -> list[tuple[_Flight, Any]]:
        """What was answered, waiting so long for the first; None for what will never be."""
        if not self._flights:
            time.sleep(min(timeout_s, _WAIT_S))
            return []
        flying = list(self._flights)
        ready, _ = self._ray.wait(flying, num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait(flying, num_returns=len(flying), timeout=0)
        found: list[tuple[_Flight, Any]] = []
        for reference in ready:
            flight = self._flights.pop(reference)
            flight.node.busy[flight.kind] -= 1
            try:
                found.append((flight, self._ray.get(reference)))
            except self._errors as error:
                self.lost += 1
                _LOG.warning("node %s has not answered: %s", _who(flight.node), _said(error))
                if isinstance(error, self._ray.exceptions.RayActorError):
                    self._remove(flight.node)
                flight.node.has.clear()  # whatever of it has not arrived
                found.append((flight, None))
        return found

    # --- who may do what ----------------------------------------------------------------------------------------------

    @property
    def _ready(self) -> list[_Node]:
        return [node for node in self._nodes.values() if node.what is not None]

    @property
    def _coming(self) -> list[_Node]:
        return [node for node in self._nodes.values() if node.coming is not None]

    def _may_compile(self, item: CompileItem, node: _Node) -> bool:
        return node.what is not None and self._agrees(item.implementation, node.what, node.alike)

    def _may_measure(self, item: MeasureItem, node: _Node) -> bool:
        what = node.what
        return node.measures and what is not None and all(self._agrees(one, what, True) for one in item.implementations)

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

    def _compiled(self, device: Device, backend: str) -> Any:
        return compiled_directory(device.fingerprint(), backend, registry.version(backend))

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address == LOCAL:
            quiet |= {"num_cpus": available_cores(), "include_dashboard": False, "object_store_memory": _LOCAL_STORE}
        host, colon, port = self._address.rpartition(":")
        try:
            with ExitStack() as stack:
                if self._address != LOCAL:
                    stack.enter_context(_one_attempt())
                if colon and "/" not in host and port.isdigit():
                    socket.create_connection((host, int(port)), _KNOCK_S).close()
                stack.enter_context(_own_sigterm())
                self._ray.init(address=self._address, **quiet)
        except Exception as error:  # Ray raises whatever went wrong within
            raise UnreachableCluster(address=self._address, reason=_said(error)) from error

    def _enlist(self) -> None:
        """An actor for every living node that has none and may have one. Looks at most every few seconds."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if time.monotonic() < self._looked + _LOOK_S:
            return
        self._looked = time.monotonic()
        known = {node.ray_id for node in self._nodes.values()}
        for facts in self._ray.nodes():
            ray_id, slots = str(facts["NodeID"]), int(facts["Resources"].get("CPU", 0))
            if not facts["Alive"] or slots < 1 or ray_id in known or ray_id in self._refused:
                continue
            if self._started.get(ray_id, 0) >= _STARTS:
                self._refuse(ray_id, f"the processes of {facts['NodeManagerHostname']} keep ending")
                continue
            setup = Setup(self._device.isa, slots, self._memory_limit, registry.added())
            where = NodeAffinitySchedulingStrategy(node_id=ray_id, soft=False)
            actor = self._ray.remote(Station).options(num_cpus=slots, scheduling_strategy=where).remote(encode(setup))
            self._started[ray_id] = self._started.get(ray_id, 0) + 1
            name = f"{ray_id}-{self._started[ray_id]}"
            self._nodes[name] = _Node(name, ray_id, slots, actor, actor.describe.remote())

    def _settle(self, timeout_s: float) -> None:
        """Hears what nodes that are coming say of themselves, waiting at most so long for all of them."""
        coming = {node.coming: node for node in self._coming}
        if not coming:
            return
        ready, late = self._ray.wait(list(coming), num_returns=len(coming), timeout=timeout_s)
        for reference in ready:
            node = coming[reference]
            node.coming = None
            try:
                self._admit(node, decode(NodeDescription, self._ray.get(reference), "node"))
            except (DecodeError, *self._errors) as error:
                self._remove(node)
                self._refuse(node.ray_id, f"node {node.ray_id[:8]} has not started: {_said(error)}")
        for node in (coming[reference] for reference in late):
            if time.monotonic() > node.begun + _JOINING_S - _WAIT_S:
                self._remove(node)
                self._refuse(
                    node.ray_id,
                    f"node {node.ray_id[:8]} gave no processor within {_JOINING_S:.0f} s: others have them, or it is slow",
                )

    def _hear(self) -> None:
        """Gives up nodes that hang: what they had is answered with an error then."""
        now = time.monotonic()
        for node in self._ready:
            if node.pulse is not None and self._ray.wait([node.pulse], timeout=0)[0]:
                node.pulse, node.heard = None, now
            elif node.pulse is None and now > node.heard + _PULSE_S:
                node.pulse = node.actor.pulse.remote()
            elif node.pulse is not None and now > node.heard + _SILENCE_S:
                _LOG.warning("node %s has been silent for %.0f s and is given up", _who(node), now - node.heard)
                self._remove(node)

    def _admit(self, node: _Node, what: NodeDescription) -> None:
        ours, theirs = self._device, what.device
        same = theirs.fingerprint() == ours.fingerprint()
        if what.bricolage != __version__:
            self._remove(node)
            self._refuse(node.ray_id, f"{what.host} has bricolage {what.bricolage}, here is {__version__}")
            return
        node.what, node.heard = what, time.monotonic()
        node.alike = same and any(what.versions.get(name) == version for name, version in self._versions().items())
        node.measures = node.alike and theirs.threads >= ours.threads and what.machine != self._machine
        if not node.alike:
            why = f"is another device ({theirs})" if not same else "has other versions of every backend"
            self._reasons.append(f"{what.host} {why}")
            _LOG.info("%s %s: it compiles at most", what.host, why)

    def _versions(self) -> dict[str, str]:
        return {one.name: registry.version(one.name) for one in registry.available()}

    def _refuse(self, ray_id: str, reason: str) -> None:
        self._refused.add(ray_id)
        self._reasons.append(reason)
        _LOG.warning("a node of the cluster is left out: %s", reason)

    def _remove(self, node: _Node) -> None:
        self._nodes.pop(node.name, None)
        try:
            self._ray.kill(node.actor)
        except self._errors as error:
            _LOG.debug("node %s had gone: %s", _who(node), error)


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray takes the signal for itself and leaves it taken: who asks us to end would end without our last words."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _one_attempt() -> Iterator[None]:
    """Within it Ray tries once to find a cluster, which takes up to 20 seconds, instead of twenty times."""
    given = os.environ.get(_ATTEMPTS_VARIABLE)
    os.environ.setdefault(_ATTEMPTS_VARIABLE, "1")
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(_ATTEMPTS_VARIABLE, None)


def _who(node: _Node) -> str:
    return f"{node.what.host} (process {node.what.pid})" if node.what is not None else node.ray_id[:8]


def _said(error: BaseException) -> str:
    """The first line of an error, or of what raised it on a node."""
    cause = getattr(error, "cause", None)
    told = cause if isinstance(cause, BaseException) else error
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    return f"{type(told).__name__}: {lines[0] if lines else ''}"[:300]
