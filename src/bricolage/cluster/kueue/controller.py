"""The controller: lists once, watches, decides after each batch of events and at least every so often, writes what is news."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from bricolage.cluster.kueue.admission_check import CheckVerdict, learn_durations, verdicts
from bricolage.cluster.kueue.api import Conflict, Expired, KueueClient
from bricolage.cluster.kueue.objects import KueueState, Resource, state_of
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.errors import KueueNoChecks, KueueUnavailable

CONTROLLER = "bricolage/policy"
"""`spec.controllerName` of the admission checks that are ours."""
_SETTLE_S = 0.05
"""Events that come so soon after one are one batch."""
_Events: TypeAlias = "queue.Queue[tuple[str, Resource] | Exception]"


@dataclass
class KueueController:
    """A policy behind Kueue's admission checks.

    Raises, in each method: KueueUnavailable, PolicyRefuses.
    """

    client: KueueClient
    policy: str
    controller: str = CONTROLLER
    resource: str = "nvidia.com/gpu"
    every_s: float = 30.0
    """At most so long without a look."""
    told: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.time
    _workloads: dict[str, Resource] = field(default_factory=dict, init=False)
    _since: str = field(default="", init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self.entry = find_policy(self.policy)

    def look(self) -> KueueState:
        """Lists everything, and says that the checks' controller is there.

        Raises:
            KueueNoChecks: no admission check names this controller.
        """
        if not self.client.version:
            self.client.connect()
        checks = [
            check
            for check in self.client.listed("admissionchecks")[0]
            if check["spec"].get("controllerName") == self.controller
        ]
        if not checks:
            raise KueueNoChecks(controller=self.controller)
        for check in checks:
            conditions = (check.get("status") or {}).get("conditions") or ()
            if not any(row.get("type") == "Active" and row.get("status") == "True" for row in conditions):
                self.client.activate(check)
        self._checks = frozenset(str(check["metadata"]["name"]) for check in checks)
        self._cluster_queues = self.client.listed("clusterqueues")[0]
        self._local_queues = self.client.listed("localqueues")[0]
        rows, self._since = self.client.listed("workloads")
        self._workloads = {_key(row): row for row in rows}
        return self.state()

    def state(self) -> KueueState:
        """As far as it is known."""
        return state_of(
            list(self._workloads.values()), self._cluster_queues, self._local_queues, self._checks, self.resource, self.clock()
        )  # fmt: skip

    def decide(self, state: KueueState) -> list[CheckVerdict]:
        """Writes what is news; what has changed meanwhile is decided again after its event."""
        written = []
        for verdict in verdicts(state, self.entry, learn_durations(state)):
            if verdict.news:
                try:
                    self.client.decide(verdict)
                    written.append(verdict)
                except Conflict:
                    self.told(f"{verdict.workload.key} has changed meanwhile; it is decided on again")
        return written

    def run(self, over: Callable[[], bool], show: Callable[[list[CheckVerdict]], None]) -> None:
        """Until `over` says so, which is asked after each look. An API that does not answer for a while is asked again, once it
        has answered."""
        show(self.decide(self.look()))
        pause = 0.5
        events: _Events | None = self._watch()
        try:
            while not over():
                try:
                    if events is None:
                        state = self.look()
                        events = self._watch()
                    else:
                        state = self._next(events)
                    show(self.decide(state))
                    pause = 0.5
                except Expired:
                    self.told("the watch began too long ago; everything is listed anew")
                    events = None
                except KueueUnavailable as error:
                    self.told(f"{error.sentence}; it is asked again in {pause:g} s")
                    events = None
                    time.sleep(pause)
                    pause = min(2.0 * pause, self.every_s)
        finally:
            self._ended.set()

    def _next(self, events: _Events) -> KueueState:
        """After the next batch of events; or, where none comes for long, as time has passed."""
        try:
            first = events.get(timeout=self.every_s)
        except queue.Empty:
            return self.state()
        until = time.monotonic() + _SETTLE_S
        self._take(first)
        while (left := until - time.monotonic()) > 0:
            try:
                self._take(events.get(timeout=left))
            except queue.Empty:
                break
        return self.state()

    def _take(self, event: tuple[str, Resource] | Exception) -> None:
        if isinstance(event, Exception):
            raise event
        kind, row = event
        if kind == "DELETED":
            self._workloads.pop(_key(row), None)
        elif kind in ("ADDED", "MODIFIED"):
            self._workloads[_key(row)] = row

    def _watch(self) -> _Events:
        """Begins a watch where the last list ended, in a thread: reading it blocks."""
        self._ended.set()
        self._ended = threading.Event()
        events: _Events = queue.Queue()
        threading.Thread(target=self._pump, args=(events, self._since, self._ended), daemon=True).start()
        return events

    def _pump(self, events: _Events, since: str, ended: threading.Event) -> None:
        try:
            while not ended.is_set():
                for kind, row in self.client.watched("workloads", since, self.every_s):
                    since = str(row["metadata"].get("resourceVersion", since))
                    events.put((kind, row))
                    if ended.is_set():
                        return
        except (Expired, KueueUnavailable) as error:
            events.put(error)


def _key(row: Resource) -> str:
    return f"{row['metadata'].get('namespace', '')}/{row['metadata']['name']}"
