"""What runs on a node: an actor with worker processes of its own. Compilations share its cores, and wait while something is
timed on its machine.

Costs that it measures are in its machine's own database before they are answered. So what a driver never heard of, because it was
killed, is found there when it asks again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bricolage._version import __version__
from bricolage.backends import registry
from bricolage.backends.kernel_trials import Trial
from bricolage.base import scratch
from bricolage.base.cache import cache_directory, compiled_directory, machine_id
from bricolage.base.codec import decode, encode
from bricolage.base.options import default_isa
from bricolage.costs.database import FILE, Database
from bricolage.costs.entries import Cost
from bricolage.device.device import Device
from bricolage.device.host import select_device
from bricolage.measure import cores
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.scale_out.messages import (
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
from bricolage.measure.scale_out.parcels import Received, install, pack_folder
from bricolage.measure.specs import CandidateSpec, Regime, RegionTask
from bricolage.measure.worker_process import Answer
from bricolage.plan.program_step import Step

_TICK_S = 0.2
_PATIENCE_S = 120.0
"""For files that were sent with another item."""


class _LimitsWanted(Exception):
    """An answer cannot be judged without what rounding does to the region, which the driver knows."""


class Station:
    """The actor. Items come encoded, with what they need that is not here yet; batches have ascending numbers."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = decode(Setup, setup, "setup")
        for name, reference in self._setup.registered.items():
            registry.register(name, reference)
        self._folder = scratch.temporary()
        self._received = Received(self._folder)
        self._here: dict[str, asyncio.Event] = {}
        """By name of a file, that it has arrived."""
        self._given_up = -1
        """Number of the last batch of which nothing is wanted any more."""
        self._own = threading.local()
        self._compiling = ThreadPoolExecutor(max(1, self._setup.slots), initializer=self._open_pool)
        self._timing = ThreadPoolExecutor(1, initializer=self._open_measuring)

    @property
    def _device(self) -> Device:
        """The node's own, kept to the instruction set of the decision and to that of the node's environment."""
        return select_device(self._setup.isa or default_isa())

    async def describe(self) -> dict[str, Any]:
        """What this node is."""
        versions = registry.versions()
        what = NodeDescription(socket.gethostname(), os.getpid(), machine_id(), self._device, __version__, versions)
        return dict(encode(what))

    async def compile(
        self, batch: int, item: dict[str, Any], names: Sequence[str], contents: Sequence[Awaitable[bytes]]
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """A `Compiled`, and contents by name."""
        asked = decode(CompileItem, item, "item")
        await self._have(asked.needs, names, contents)
        loop = asyncio.get_running_loop()
        compiled, parts = await loop.run_in_executor(self._compiling, self._compile, batch, asked)
        return dict(encode(compiled)), parts

    async def measure(
        self, batch: int, item: dict[str, Any], names: Sequence[str], contents: Sequence[Awaitable[bytes]]
    ) -> dict[str, Any]:
        """A `Measured`."""
        asked = decode(MeasureItem, item, "item")
        await self._have(asked.needs, names, contents)
        loop = asyncio.get_running_loop()
        return dict(encode(await loop.run_in_executor(self._timing, self._measure, batch, asked)))

    async def trial(
        self, batch: int, item: dict[str, Any], names: Sequence[str], contents: Sequence[Awaitable[bytes]]
    ) -> dict[str, Any]:
        """A `TriedBuilds`."""
        asked = decode(TrialItem, item, "item")
        await self._have(asked.needs, names, contents)
        loop = asyncio.get_running_loop()
        return dict(encode(await loop.run_in_executor(self._timing, self._try, batch, asked)))

    async def pulse(self) -> None:
        """Answers as long as this process lives."""

    async def give_up(self, batch: int) -> None:
        """Nothing of this batch and those before it is wanted any more."""
        self._given_up = max(self._given_up, batch)

    async def _have(self, needs: Sequence[str], names: Sequence[str], contents: Sequence[Awaitable[bytes]]) -> None:
        """Keeps what is sent with an item, and waits for the rest of what it needs, which was sent with items before it.

        Raises:
            ValueError: something else has arrived than what was sent.
            TimeoutError: something has not arrived.
        """
        for name, content in zip(names, contents, strict=True):
            self._received.put(name, await content)
            self._here.setdefault(name, asyncio.Event()).set()
        async with asyncio.timeout(_PATIENCE_S):
            for name in needs:
                await self._here.setdefault(name, asyncio.Event()).wait()

    # --- in threads of their own: a pool belongs to one -----------------------------------------------------------------

    def _open_pool(self) -> None:
        self._own.pool = Pool(self._setup.memory_limit)

    def _open_measuring(self) -> None:
        self._open_pool()
        self._own.pool.sharing = True
        self._own.database = Database(cache_directory() / FILE)  # however the driver keeps its own

    def _compile(self, batch: int, item: CompileItem) -> tuple[Compiled, dict[str, bytes]]:
        begun = time.monotonic()
        if batch <= self._given_up:
            return Compiled("lost", "it was not wanted any more"), {}
        pool: Pool = self._own.pool
        with scratch.using(scratch.temporary()) as folder, cores.compiling():
            answer = self._ask_to_compile(pool, batch, item, folder)
            code: list[Code] = []
            contents: dict[str, bytes] = {}
            for code_folder in sorted(path for path in folder.iterdir() if path.is_dir() and answer.ok):
                files, parts = pack_folder(code_folder)
                code.append(Code(item.implementation.backend, code_folder.name, files))
                contents.update(parts)
        pool.recycle()
        return Compiled(answer.outcome, answer.reason, time.monotonic() - begun, tuple(code)), contents

    def _ask_to_compile(self, pool: Pool, batch: int, item: CompileItem, folder: Path) -> Answer:
        device = self._device
        name = item.implementation.backend
        threads = min(item.threads, device.threads)
        worker = pool.worker(Regime((name,), threads, False, device))
        step = Step(item.implementation, self._received.path(item.model))
        pool.submit(
            worker,
            item.limit_s,
            "compile",
            step=encode(step),
            threads=item.threads,
            device=encode(item.device),
            folder=str(folder),
        )
        while True:
            for _, answer in pool.wait(_TICK_S):
                return answer
            if batch <= self._given_up:
                pool.end(worker.regime)
                return Answer("lost", "it was not wanted any more")

    def _measure(self, batch: int, item: MeasureItem) -> Measured:
        machine = machine_id()
        if batch <= self._given_up:
            return Measured(machine, (None,) * len(item.implementations))
        whole = self._device
        device = whole if item.cores >= whole.threads else whole.group(whole.cores[: item.cores])
        for code in item.code:
            parent = compiled_directory(device.fingerprint(), code.backend, registry.version(code.backend))
            install(parent, code.folder, code.files, self._received.read)
        model = self._received.path(item.model)
        specs = tuple(
            CandidateSpec(item.region_key, (Step(implementation, model),), item.outputs, item.threads, False, device)
            for implementation in item.implementations
        )

        def limits() -> Mapping[str, float]:
            if item.limits is None:
                raise _LimitsWanted
            return item.limits

        inputs, expected = self._received.path(item.inputs), self._received.path(item.expected)
        task = RegionTask(inputs, expected, item.bound, specs, item.data, limits if item.may_ask else None)
        pool: Pool = self._own.pool
        measurer = Measurer(
            self._own.database,
            pool,
            self._folder,
            limits=item.run,
            policy=item.policy,
            cores=device.threads,
            retrying=item.retrying,
        )
        try:
            costs = measurer.measure([task], should_stop=lambda: batch <= self._given_up)
        except _LimitsWanted:
            pool.clear()
            return Measured(machine, wants_limits=True)
        return Measured(machine, tuple(_filter_cost(costs.get(spec)) for spec in specs))

    def _try(self, batch: int, item: TrialItem) -> TriedBuilds:
        machine, pool = machine_id(), self._own.pool
        if batch <= self._given_up:
            return TriedBuilds(machine, reason="it was not wanted any more")
        step = Step(item.implementation, self._received.path(item.model))
        regime = Regime((item.implementation.backend,), item.threads, True, self._device, owner="tuning")
        with pool.exclusive():
            answer = pool.ask(
                pool.worker(regime),
                item.limit_s,
                "trial",
                step=encode(step),
                threads=item.threads,
                builds=encode(list(item.builds)),
                rounds=item.rounds,
            )
        if not answer.ok:
            return TriedBuilds(machine, reason=f"{answer.outcome}: {answer.reason}")
        return TriedBuilds(machine, decode(tuple[dict[str, Trial], ...], answer.facts["trials"], "trials"))


def _filter_cost(cost: Cost | None) -> Cost | None:
    """A cost as it is answered: what says nothing of the candidate is left to the next caller."""
    return None if cost is None or cost.outcome == "lost" or cost.foreign else cost
