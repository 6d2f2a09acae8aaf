"""`bench`: every backend side by side on one model, measured afresh."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.api.optimize import make_measurer, make_plan, open_pool
from bricolage.api.sources import measuring_inputs, open_source, working_folder
from bricolage.backends import registry
from bricolage.cost.database import Database
from bricolage.graph import bits as bitset
from bricolage.options import Options
from bricolage.placement.candidates import Way
from bricolage.placement.contest import Challenger
from bricolage.placement.place import compete
from bricolage.plan import artifact
from bricolage.plan.plan import Plan, numbers
from bricolage.progress import Progress, Silent

CHALLENGER = "bricolage"
"""Name of an artifact's plan among the contestants."""


def bench(
    source: Any,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Races every backend that can run the model as a whole, and for an artifact its plan too, interleaved. Nothing is taken
    from the cost database or written to it: this is an independent check of what `optimize` decided.

    Each bucket of the result has all contestants with medians, intervals, errors, and their speed-up over the best single
    backend.

    Raises:
        As `optimize`.
    """
    options, progress = options or Options(), progress or Silent()
    planned: Plan | None = None
    if isinstance(source, str | Path) and Path(source).suffix == artifact.SUFFIX:
        planned, _ = artifact.load(Path(source))
    backends = registry.available(options.backends)
    directory = working_folder()
    try:
        opened = open_source(source, options, directory, example_inputs=example_inputs, dynamic=None, given=inputs)
        decided = []
        with Database(directory / "costs.sqlite") as database, open_pool(options) as pool:
            for bucket in opened.buckets:
                arrays, origin = measuring_inputs(bucket.graph, options, inputs, alone=len(opened.buckets) == 1)
                decided.append(
                    compete(
                        bucket.graph,
                        arrays,
                        backends,
                        options,
                        make_measurer(options, database, pool, opened, len(bucket.graph)),
                        directory,
                        progress,
                        challengers=_challengers(planned, bucket.sizes, len(bucket.graph)),
                        sizes=bucket.sizes,
                        graph_file=bucket.file,
                        inputs_from=origin,
                    )
                )
        return make_plan(opened, decided, options, backends)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _challengers(planned: Plan | None, sizes: Mapping[str, int], operators: int) -> list[Challenger]:
    """The artifact's plan for these sizes, if it has one for this very graph."""
    for bucket in planned.buckets if planned is not None else ():
        if dict(bucket.sizes) == dict(sizes) and bucket.operators == operators:
            division = tuple((bitset.of(numbers(r.operators)), Way(r.backend, r.variant)) for r in bucket.regions)
            return [Challenger(CHALLENGER, division, None)]
    return []
