"""Trains one step's description as a job of a served cluster: `python -m bricolage.train.job step.toml`.

It keeps the contract of `docs/manual/cluster-serve.md`: goes on from its checkpoint, says how far it is, saves when it is asked to
end. A step draws its batch by the spec's seed and its number, so that a run that was stopped takes the
batches that it would have taken.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bricolage.base import scratch
from bricolage.base.signal_handlers import keep_handlers
from bricolage.base.torch_library import load_torch
from bricolage.errors import BricolageError
from bricolage.train.step.spec import StepSpec, read_spec
from bricolage.train.step.step import TrainingStep, build, call

_SAVE_S = 60.0
"""Between checkpoints."""
_TELL_S = 0.5
"""Between two words of progress."""
_STATE = "state.pt"


class _Training:
    """What is saved and gone on from."""

    def __init__(self, spec: StepSpec, folder: Path) -> None:
        self.spec, self.folder, self.torch = spec, folder, load_torch()
        self.step: TrainingStep = build(spec)
        self.optimiser = self.step.make_optimiser()
        self.done = 0
        if (folder / _STATE).exists():
            state = self.torch.load(folder / _STATE, weights_only=True)
            self.step.module.load_state_dict(state["module"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.done = int(state["done"])

    def run(self) -> None:
        """One step, on its own batch."""
        inputs, targets = call(self.spec.batch, self.spec.folder, self.spec.batch_size, self.spec.seed + self.done)
        batch = (
            inputs if isinstance(inputs, tuple) else (inputs,),
            targets if isinstance(targets, tuple) else (targets,),
        )
        replace(self.step, inputs=batch[0], targets=batch[1]).run(self.optimiser)
        self.done += 1

    def save(self) -> None:
        """The checkpoint, then how many steps it holds: what is killed between the two has the newer one, and says the older."""
        state = {"module": self.step.module.state_dict(), "optimiser": self.optimiser.state_dict(), "done": self.done}
        with scratch.write_whole(self.folder / _STATE) as partial:
            self.torch.save(state, partial)
        _tell(self.folder / "steps", self.done)


def _tell(path: Path, steps: int) -> None:
    with scratch.write_whole(path) as partial:
        partial.write_text(str(steps), encoding="ascii")


def train_job(spec: StepSpec, checkpoint: Path, progress: Path, steps: int) -> None:
    """Trains until `steps` steps are done, or until SIGTERM, and saves.

    Raises:
        MissingLibrary, BadTrainingCode: as `step.build` does.
    """
    asked: list[int] = []
    with keep_handlers(signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
        _train(_Training(spec, checkpoint), progress, steps, asked)


def _train(training: _Training, progress: Path, steps: int, asked: Sequence[int]) -> None:
    """Until that many steps are done, or a signal is among those `asked`; saves."""
    _tell(progress, training.done)
    saved = last_report = time.monotonic()
    while training.done < steps and not asked:
        training.run()
        now = time.monotonic()
        if now > last_report + _TELL_S:
            last_report = now
            _tell(progress, training.done)
        if now > saved + _SAVE_S:
            saved = now
            training.save()
    training.save()


def main() -> int:
    """As a cluster starts it."""
    try:
        checkpoint, progress = Path(os.environ["BRICOLAGE_CHECKPOINT"]), Path(os.environ["BRICOLAGE_PROGRESS"])
        steps, world = int(os.environ["BRICOLAGE_STEPS"]), int(os.environ["WORLD_SIZE"])
    except KeyError as error:
        print(f"{error} is not set: `bricolage cluster submit` runs this", file=sys.stderr)
        return 2
    if world > 1:
        print("a training step runs on the devices of one node; give a command of its own for more", file=sys.stderr)
        return 2
    try:
        load_torch().set_num_threads(int(os.environ["BRICOLAGE_GANG"]))
        train_job(read_spec(Path(sys.argv[1])), checkpoint, progress, steps)
    except BricolageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
