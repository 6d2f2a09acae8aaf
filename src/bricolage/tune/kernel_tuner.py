"""Kernel tuning: better choices for a region's kernels than its backend's rules of thumb, found by trials in a worker process.

Kernels that do the same work are one task (`work.config_space`). A search technique proposes points of a task's grid; a task
scheduler says which tasks have the next trials; the worker times choices in turns with the usual ones; at the end the best of each
task are timed again, longer, and only what is surely faster is kept. Every trial is in the database when it ends: a search that is
interrupted goes on from there, and what was fastest for the same work elsewhere, or for the work most like it, is tried first."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from bricolage.backends import registry
from bricolage.base.codec import DecodeError, decode, encode
from bricolage.base.deadline import Deadline
from bricolage.device.device import Device
from bricolage.measure.measurer import Measurer
from bricolage.plan.program_step import Step
from bricolage.plan.tuned import TunedKernels
from bricolage.tune.kernel_search import KernelSearch, Snapshot, TuningResult, regime
from bricolage.tune.tuning_options import TuningOptions
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)


class KernelTuner:
    """Finds configurations. What was found once for a region (by its identity: weights change no time), an
    implementation, a device and a number of threads is not searched again unless asked; so what is tuned, what races and what
    ships are the same kernels."""

    def __init__(self, measurer: Measurer, device: Device, threads: int, options: TuningOptions | None = None) -> None:
        self._options = options or TuningOptions()
        self._measurer, self._device, self._threads = measurer, device, threads
        self._since = 0.0 if self._options.resume else time.time()

    def tune(self, step: Step, region_key: str, version: str, deadline: Deadline) -> TunedKernels:
        """What is best for the region of a step; as it is where the search fails, ends too late, or finds nothing better.
        `version`: of its backend."""
        stored = self.known(step, region_key, version)
        if stored is not None or deadline():
            return TunedKernels(step.implementation) if stored is None else stored
        return self.search(step, region_key, version, deadline).tuned

    def known(self, step: Step, region_key: str, version: str) -> TunedKernels | None:
        """What an earlier search found for the region of a step, if there was one."""
        data = self._measurer.database.get_config(self._key(step, region_key, version))
        try:
            return None if data is None else decode(TunedKernels, data, "config")
        except DecodeError as error:
            _LOG.info("a stored configuration is of another version (%s)", error)
            return None

    def transferred(self, step: Step, region_key: str, version: str, deadline: Deadline) -> Implementation:
        """The implementation of a step with what searches of other regions found best for the same work, on this machine and with
        this version, without any trial; as it is where they found nothing."""
        base, database = _strip_tuned_parameters(step.implementation), self._measurer.database
        if deadline() or not database.has_trials(base.backend, version, self._device.fingerprint(), self._threads):
            return step.implementation
        search = self._new_search(replace(step, implementation=base), region_key, version)
        return replace(base, config=search.transferred(deadline))

    def structures(self, step: Step, deadline: Deadline) -> list[Implementation]:
        """The implementation of a step with other kernels, as earlier passes could decide (`Backend.structures`)."""
        base = replace(step.implementation, config=step.implementation.config.base)
        configs = self._new_search(replace(step, implementation=base), "", "").structures(deadline)
        return [replace(base, config=config) for config in configs]

    def search(
        self,
        step: Step,
        region_key: str,
        version: str,
        deadline: Deadline,
        told: Callable[[Snapshot], None] = lambda _: None,
        *,
        final: bool = True,
    ) -> TuningResult:
        """Searches now, whatever is known, until `deadline` or until nothing is left to try. An interruption ends the search, not
        the process: what was found so far is timed again and kept. `told` hears of each batch of trials. Where it is not `final`,
        trials are all that is kept: tasks tell what may be expected of them, and the worker stays for the next search (`close`)."""
        base = _strip_tuned_parameters(step.implementation)
        search = self._new_search(replace(step, implementation=base), region_key, version)
        outcome = search.run(deadline, told, final=final)
        if not outcome.reason:
            plain = replace(step, implementation=replace(base, config=base.config.base))
            for keyed_step in dict.fromkeys(
                [replace(step, implementation=base), plain]
            ):  # who asks for the plain one gets this
                self._measurer.database.put_config(self._key(keyed_step, region_key, version), encode(outcome.tuned))
        return outcome

    def close(self, backend: str) -> None:
        """Ends the worker that a search which was not final has left."""
        self._measurer.pool.end(regime(backend, self._threads, self._device))

    def _new_search(self, step: Step, region_key: str, version: str) -> KernelSearch:
        return KernelSearch(
            step,
            region_key,
            version=version,
            measurer=self._measurer,
            device=self._device,
            threads=self._threads,
            options=self._options,
            since=self._since,
        )

    def _key(self, step: Step, region_key: str, version: str) -> str:
        base = _strip_tuned_parameters(step.implementation)
        facts = [region_key, base.backend, version, base.config.text, self._device.fingerprint(), self._threads]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _strip_tuned_parameters(implementation: Implementation) -> Implementation:
    """Without the parameters that a tuner searches for: what is left are choices of earlier passes."""
    structural, config = registry.get(implementation.backend).structural, implementation.config
    kept = {name: value for name, value in config.parameters if name in structural}
    return replace(implementation, config=config.tuned(kept))
