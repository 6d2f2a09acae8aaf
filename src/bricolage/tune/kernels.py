"""Kernel tuning: better parameters of a region's kernels, found by its backend in a worker process and kept in the database."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace

from bricolage.codec import DecodeError, decode, encode
from bricolage.deadline import Deadline
from bricolage.device.device import Device
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Regime
from bricolage.plan.step import Step
from bricolage.work.implementation import Implementation, KernelConfig

_LOG = logging.getLogger(__name__)
_AT_A_TIME_S = 60.0
"""Seconds of a search that goes on; what it found is kept after each."""
_SEARCHING = 0.8
"""Part of what is left that a search may plan with: it also gets ready, and answers."""


class KernelTuner:
    """Finds configurations. What was found once for a region (by its identity: weights change no time), an
    implementation, a device and a number of threads is not searched again; so what is tuned, what races and what
    ships are the same kernels."""

    def __init__(self, measurer: Measurer, device: Device, threads: int) -> None:
        self._measurer, self._device, self._threads = measurer, device, threads

    def tune(self, step: Step, region_key: str, version: str, deadline: Deadline) -> Implementation:
        """The implementation of a step with the parameters that are best for its region; as it is where the search
        fails, ends too late, or finds nothing better. `version`: of its backend."""
        base, key = step.implementation, self._key(step, region_key, version)
        database = self._measurer.database
        known = self.known(step, region_key, version)
        if known is None and not deadline():
            config, again = base.config.base, True
            while again and not deadline():
                found, again = self._search(replace(step, implementation=replace(base, config=config)), deadline)
                if found is not None:
                    known = config = found
                    database.put_config(key, encode(found))
        return base if known is None else replace(base, config=known)

    def known(self, step: Step, region_key: str, version: str) -> KernelConfig | None:
        """What an earlier search found for the region of a step, if there was one."""
        return _decoded(self._measurer.database.get_config(self._key(step, region_key, version)))

    def _key(self, step: Step, region_key: str, version: str) -> str:
        base = step.implementation
        facts = [region_key, base.backend, version, base.config.base.text, self._device.fingerprint(), self._threads]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def _search(self, step: Step, deadline: Deadline) -> tuple[KernelConfig | None, bool]:
        """Alone in a worker, with every other one stopped: kernels are compared while it searches. What was found, and whether
        there is more to find."""
        pool = self._measurer.pool
        regime = Regime((step.implementation.backend,), self._threads, True, self._device, owner="tuning")
        seconds = min(_AT_A_TIME_S, deadline.left * _SEARCHING)
        asked = {"step": encode(step), "threads": self._threads, "seconds": seconds}
        try:
            with pool.exclusive():
                answer = pool.ask(pool.worker(regime), deadline.left, "tune", **asked)
        finally:
            pool.end(regime)
        if not answer.ok:
            _LOG.info("%s is not tuned: %s (%s)", step.implementation, answer.outcome, answer.reason)
            return None, False
        return _decoded(answer.facts["config"]), bool(answer.facts.get("again"))


def _decoded(data: object) -> KernelConfig | None:
    try:
        return None if data is None else decode(KernelConfig, data, "config")
    except DecodeError as error:
        _LOG.info("a stored configuration is of another version (%s)", error)
        return None
