"""`schedule`: regions of an artifact's plan side by side, kept only if that wins a race."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bricolage.base.progress import Progress, Silent
from bricolage.driver.plan_scheduling import Effort, Scheduled, schedule_plan
from bricolage.errors import ForeignArtifact
from bricolage.plan import artifact
from bricolage.runtime.load import foreign


def schedule(
    path: str | Path,
    inputs: Mapping[str, np.ndarray],
    out: str | Path,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Scheduled:
    """Searches for a schedule of the bucket that these inputs belong to, and writes the artifact with it to `out` if it is faster
    than the plan as it stands. An `out` that is there already stays as it is otherwise.

    Args:
        path: of the artifact.
        inputs: by name, for timing and for the race.
        out: of the artifact that is written.
        effort: how much is measured.
        progress: is told what happens.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact, ForeignArtifact: as `load`.
        MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
        ArtifactFails: the plan crashes or hangs while its regions are timed.
        NotWritable: the result cannot be written.

    Ctrl-C once the regions are timed leaves out the race, so that nothing is written; a second one gives up.
    """
    plan, directory = artifact.load_artifact(Path(path))
    difference = foreign(plan)
    if difference:
        raise ForeignArtifact(path=path, difference=difference)
    return schedule_plan(plan, directory, inputs, Path(out), effort or Effort(), progress or Silent())
