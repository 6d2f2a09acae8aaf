"""What a process does that trains some lanes of a sweep on command, while others train the rest (`measure.worker_loop`)."""

from __future__ import annotations

from pathlib import Path

from bricolage.base.codec import decode, encode
from bricolage.base.torch_library import load_torch
from bricolage.device.device import Device
from bricolage.measure.launch import EntryPoint
from bricolage.measure.worker_loop import Commands, Tell
from bricolage.train.fuse.contestants import GroupTrainer, prepare_trainer
from bricolage.train.fuse.sweep import Sweep
from bricolage.train.run.rank import MODULES, ready

ENTRY = EntryPoint("bricolage.train.fuse.sweep_worker:commands", MODULES)
_WARM_S = 0.01


class _Lanes:
    """The commands."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lanes: GroupTrainer | None = None

    def prepare(self, sweep: object, names: list[str], kind: str) -> dict[str, object]:
        """Makes lanes ready, with one thread."""
        self._lanes = prepare_trainer(decode(Sweep, sweep, "sweep"), names, kind, 1)
        self._lanes.run(_WARM_S)
        return {}

    def run(self, seconds: float) -> dict[str, object]:
        """Trains for about so long."""
        assert self._lanes is not None
        return {"ran": self._lanes.run(seconds)}

    def finish(self, states: str) -> dict[str, object]:
        """Trains all lanes to their end, and writes their modules' states to a file."""
        assert self._lanes is not None
        outcome = self._lanes.finish(self._tell)
        load_torch().save(outcome.states, Path(states))
        return {"results": encode(list(outcome.results.values()))}


def commands(_device: Device, tell: Tell) -> Commands:
    """By name."""
    lanes = _Lanes(tell)
    return {"ready": ready, "prepare": lanes.prepare, "run": lanes.run, "finish": lanes.finish}
