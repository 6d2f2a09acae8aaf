"""What an engine knows of a job beyond its gang: its command, and the files by which the two speak.

The contract with a command is in `docs/manual/cluster-serve.md`: it finds a folder for checkpoints in BRICOLAGE_CHECKPOINT, writes
how many steps the checkpoint holds into the file `steps` there, and how many it has done into BRICOLAGE_PROGRESS.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bricolage.cluster.job_engine import Gang

SAVED = "steps"


@dataclass(frozen=True)
class JobWork:
    """A command that trains. Its folder is one that all nodes see."""

    name: str
    command: tuple[str, ...]
    folder: Path
    """Of the job: its checkpoint, its progress, its output, its locks."""
    directory: Path
    """In which the command runs."""
    steps: float = math.inf
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 30.0
    """From being asked to save to being killed."""

    @property
    def checkpoint(self) -> Path:
        """Where it saves."""
        return self.folder / "checkpoint"

    @property
    def output(self) -> Path:
        """What its processes print."""
        return self.folder / "output"

    def progress(self, attempt: int) -> Path:
        """Where the processes of an attempt write how many steps are done."""
        return self.folder / f"progress-{attempt}"

    def lock(self, rank: int) -> Path:
        """What the process of a rank holds while it runs."""
        return self.folder / f"lock-{rank}"

    def saved(self) -> float:
        """Steps that the checkpoint holds."""
        return number_in(self.checkpoint / SAVED) or 0.0

    def done(self, attempt: int) -> float | None:
        """Steps that an attempt has done; None until it says so."""
        return number_in(self.progress(attempt))

    def last_words(self) -> str:
        """The last line of its output."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - 2000, 0))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]

    def variables(
        self, gang: Gang, devices: Sequence[Sequence[int]], attempt: int, master: str
    ) -> list[dict[str, str]]:
        """What each process of a gang, one on each node, finds in its environment."""
        common = {
            **self.environment,
            "BRICOLAGE_JOB": self.name,
            "BRICOLAGE_CHECKPOINT": str(self.checkpoint),
            "BRICOLAGE_PROGRESS": str(self.progress(attempt)),
            "BRICOLAGE_ATTEMPT": str(attempt),
            "BRICOLAGE_KIND": gang.kind,
            "BRICOLAGE_GANG": str(gang.devices),
            "WORLD_SIZE": str(len(gang.nodes)),
            "MASTER_ADDR": master,
            # Attempts and jobs at one time differ; a port that others have fails the attempt, and the next has another.
            "MASTER_PORT": str(20_000 + (gang.number * 131 + attempt * 17) % 10_000),
        }
        if math.isfinite(self.steps):
            common["BRICOLAGE_STEPS"] = f"{self.steps:.0f}"
        return [
            {
                **common,
                "RANK": str(rank),
                "BRICOLAGE_DEVICES": ",".join(map(str, indices)),
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, indices)),
            }
            for rank, indices in enumerate(devices)
        ]


def number_in(path: Path) -> float | None:
    """The number that a file holds; None where there is none yet."""
    try:
        number = float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None
