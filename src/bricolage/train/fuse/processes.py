"""Several processes, each of which trains some lanes of a group (`worker`)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bricolage.base.codec import decode, encode
from bricolage.base.torch_library import load_torch
from bricolage.base.undo import undo_on_failure
from bricolage.train.fuse.alone import LaneResult
from bricolage.train.fuse.contestants import Outcome, Told
from bricolage.train.fuse.sweep import Sweep
from bricolage.train.fuse.sweep_worker import ENTRY
from bricolage.train.run.process_group import open_group

_PREPARED_S = 300.0
_SILENCE_S = 120.0
"""Without any answer or report while they should train."""


class InProcesses:
    """Lanes divided among processes, which train them one after another, or each its own as one."""

    def __init__(self, sweep: Sweep, names: Sequence[str], processes: int, kind: str) -> None:
        """Starts the processes and makes their lanes ready; `kind` is "serial" or "fused".

        Raises:
            TrainingWorkerFailed: one of them fails, ends, or does not answer.
        """
        self.how = "processes" if kind == "serial" else "fused processes"
        count = min(processes, len(names))
        self.group = open_group(ENTRY, count, 1)
        with undo_on_failure(self.close):
            parts = [{"sweep": encode(sweep), "names": list(names[rank::count]), "kind": kind} for rank in range(count)]
            self.group.ask_each("prepare", _PREPARED_S, parts)

    def run(self, seconds: float) -> tuple[int, float]:
        """All at once for about so long: their samples, and the time until the last was done.

        Raises:
            TrainingWorkerFailed: one of them fails, ends, or does not answer.
        """
        began = time.perf_counter()
        answers = [
            decode(tuple[int, float], answer["ran"], "ran")
            for answer in self.group.ask("run", _SILENCE_S, seconds=seconds)
        ]
        samples = sum(count for count, _ in answers)
        rate = sum(count / spent for count, spent in answers if spent > 0)
        return samples, samples / rate if rate > 0 else time.perf_counter() - began

    def finish(self, told: Told) -> Outcome:
        """See `GroupTrainer`.

        Raises:
            TrainingWorkerFailed: one of them fails, ends, or does not answer.
        """
        torch = load_torch()
        paths = [self.group.folder / f"states-{rank}.pt" for rank in range(len(self.group))]
        outcome = Outcome()
        answers = self.group.ask_each(
            "finish",
            _SILENCE_S,
            [{"states": str(path)} for path in paths],
            tell=lambda samples: told(int(str(samples))),
        )
        for facts, path in zip(answers, paths, strict=True):
            results = decode(tuple[LaneResult, ...], facts["results"], "results")
            # Our own process has written it a moment ago. A module may keep more than tensors.
            outcome.add(Outcome({result.name: result for result in results}, torch.load(path, weights_only=False)))
        self.close()
        return outcome

    def close(self) -> None:
        """Ends the processes."""
        self.group.close()
