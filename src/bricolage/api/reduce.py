"""`reduce`: the least model that shows a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.driver.sources import GivenModel
from bricolage.errors import NotReduced
from bricolage.trust.bisect import Diagnosis, bisect_changes
from bricolage.trust.changed_program import SubjectProgram
from bricolage.trust.model_reduction import Reduced, reduce_culprit
from bricolage.trust.repro import write_repro
from bricolage.trust.workplace import TRIAL_S, open_workplace


@dataclass(frozen=True)
class Repro:
    """A fault, and the folder's files that show it."""

    diagnosis: Diagnosis
    """Of the program in which it was found."""
    reduced: Reduced
    files: tuple[Path, ...]


def reduce(
    source: Any,
    output: Path,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    unclaimed: bool = False,
    trial_s: float = TRIAL_S,
    progress: Progress | None = None,
) -> Repro | None:
    """Looks for a program that fails as `bisect` does, and makes the model, its shapes and its numbers smaller as long as the
    change at fault still fails in the same way; None where none of them fails, and nothing is written then.

    Args:
        output: an existing folder for the repro.
        options: as for `bisect`; the budget is that of making the model smaller. After it, or a Ctrl-C, the least model by
            then is written.
        source, example_inputs, inputs, unclaimed, trial_s, progress: as for `bisect`.

    Raises:
        As `bisect`; and NotReduced: no change at fault fails in the same way by itself.
        NotWritable: the folder is not writable.
    """
    options, progress = options or Options(), progress or Silent()
    model = GivenModel(source, example_inputs, inputs=inputs)
    with open_workplace(model, options, progress, unclaimed=unclaimed, trial_s=trial_s) as place:
        for _, subject, oracle in place.subjects():
            program = SubjectProgram(subject, place.store, place.resources)
            diagnosis = bisect_changes(program, place.prober, oracle.files(oracle.graph.everything), progress)
            if not diagnosis.faulty:
                continue
            reduced = reduce_culprit(program, diagnosis, oracle, place)
            if reduced is None:
                raise NotReduced(program=diagnosis.name, verdict=diagnosis.verdict)
            return Repro(diagnosis, reduced, write_repro(reduced, output, options.threads))
    return None
