"""`bench`: every backend side by side on one model, measured afresh."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.api.optimize import make_measurer, make_plan, open_pool
from bricolage.api.sources import Prepared, measuring_inputs, open_source, working_folder
from bricolage.backends import registry
from bricolage.cost.database import Database
from bricolage.graph import bits as bitset
from bricolage.graph.extract import graph_of, share_weights
from bricolage.options import Options
from bricolage.placement.candidates import Way
from bricolage.placement.contest import Challenger
from bricolage.placement.place import compete
from bricolage.plan import artifact
from bricolage.plan.plan import Plan, numbers
from bricolage.progress import Progress, Silent
from bricolage.rewrite.forms import ORIGINAL, Form

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
    kept = Path()
    if isinstance(source, str | Path) and Path(source).suffix == artifact.SUFFIX:
        planned, kept = artifact.load(Path(source))
    backends = registry.available(options.backends)
    directory = working_folder()
    try:
        opened = open_source(source, options, directory, example_inputs=example_inputs, dynamic=None, given=inputs)
        decided = []
        with Database(directory / "costs.sqlite") as database, open_pool(options) as pool:
            for bucket in opened.buckets:
                forms, challengers = _planned(planned, bucket, kept, directory)
                arrays, origin = measuring_inputs(bucket.graph, options, inputs, alone=len(opened.buckets) == 1)
                decided.append(
                    compete(
                        forms,
                        arrays,
                        backends,
                        options,
                        make_measurer(options, database, pool, opened, len(bucket.graph)),
                        directory,
                        progress,
                        challengers=challengers,
                        sizes=bucket.sizes,
                        file=bucket.file,
                        inputs_from=origin,
                    )
                )
        return make_plan(opened, decided, options, backends)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _planned(
    planned: Plan | None, prepared: Prepared, kept: Path, directory: Path
) -> tuple[list[Form], list[Challenger]]:
    """The forms of the graph that race, and the artifact's plan for these sizes, if it has one. The artifact's files lie in
    `kept`, `directory` is the working folder."""
    forms = [Form(ORIGINAL, prepared.graph)]
    for bucket in planned.buckets if planned is not None else ():
        if dict(bucket.sizes) != dict(prepared.sizes):
            continue
        if bucket.form != ORIGINAL:
            graph = graph_of(kept / bucket.graph)
            share_weights([graph.model], directory, f"{Path(bucket.graph).stem}.data")
            forms.append(Form(bucket.form, graph))
        if len(forms[-1].graph) == bucket.operators:
            division = tuple((bitset.of(numbers(r.operators)), Way(r.backend, r.variant)) for r in bucket.regions)
            return forms, [Challenger(CHALLENGER, division, None, forms[-1].name)]
    return forms, []
