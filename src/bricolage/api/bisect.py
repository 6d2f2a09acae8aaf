"""`bisect`: which change of a program makes its answer wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.driver.sources import GivenModel
from bricolage.trust import bisect as search
from bricolage.trust.bisect import Diagnosis
from bricolage.trust.changed_program import SubjectProgram
from bricolage.trust.fault_files import write_evidence
from bricolage.trust.workplace import TRIAL_S, open_workplace


@dataclass(frozen=True)
class Examined:
    """One program on one binding of the symbolic dimensions."""

    sizes: Mapping[str, int]
    diagnosis: Diagnosis
    files: tuple[Path, ...]
    """Regions and sources of kernels that were written for the culprits."""


def bisect(
    source: Any,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    unclaimed: bool = False,
    trial_s: float = TRIAL_S,
    output: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Examined, ...]:
    """Compares programs with the float64 reference; where one is wrong, not finite, crashes, hangs or fails, finds the changes at
    fault among the rules, regions, fused kernels and tuned parameters that made it.

    Args:
        source: as for `optimize`. Of an artifact the program is what its plan runs; of a model, the whole of it on each
            backend in each configuration, as it came and rewritten. Backends that compile slowly take part if they are named.
        options: what decides these programs, as for `optimize`; for an artifact, give those of its plan.
        example_inputs, inputs: as for `optimize`.
        unclaimed: give backends all operators of a model, also those that they do not claim.
        trial_s: longest time, in seconds, to compile a program, and to run it; beyond it, it counts as hanging.
        output: an existing folder for the regions and the C of kernels at fault.
        progress: is told what happens.

    Raises:
        As `optimize`; and NoReference: the model cannot be evaluated in float64.
    """
    options, progress = options or Options(), progress or Silent()
    examined: list[Examined] = []
    model = GivenModel(source, example_inputs, inputs=inputs)
    with open_workplace(model, options, progress, unclaimed=unclaimed, trial_s=trial_s) as place:
        for sizes, subject, oracle in place.subjects():
            program = SubjectProgram(subject, place.store, place.resources)
            findings = search.bisect_changes(program, place.prober, oracle.files(oracle.graph.everything), progress)
            written = write_evidence(program, findings, output, place.resources) if output is not None else ()
            examined.append(Examined(sizes, findings, written))
    return tuple(examined)
