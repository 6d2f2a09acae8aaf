"""`bench`: every backend side by side on one model, measured afresh."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.api.optimize import make_measurer, make_plan, open_pool
from bricolage.api.sources import Prepared, Source, measuring_inputs, open_source, tensor_specs, working_folder
from bricolage.backends import registry
from bricolage.errors import ForeignPlan
from bricolage.graph.extract import graph_of, share_weights
from bricolage.measure.database import Database
from bricolage.optimize.candidates import Way
from bricolage.optimize.final_race import Challenger
from bricolage.optimize.place import compete
from bricolage.options import Options
from bricolage.plan import artifact
from bricolage.plan.plan import ORIGINAL, Plan, numbers
from bricolage.progress import Progress, Silent
from bricolage.rewrite.variants import GraphVariant
from bricolage.work import bits as bitset

CHALLENGER = "bricolage"
"""Name of an artifact's plan among the contestants."""


def bench(
    source: Any,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    rivals: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Plan:
    """Races every backend that can run the model as a whole, and for an artifact its plan too, interleaved. Nothing is taken
    from the cost database or written to it: this is an independent check of what `optimize` decided.

    `rivals` are other artifacts of the same model; their plans race too, as "FILE (rival 1)" and so on.

    Each bucket of the result has all contestants with medians, intervals, errors, and their speed-up over the best single
    backend.

    Raises:
        As `optimize`.
    """
    options, progress = options or Options(), progress or Silent()
    racing = [(f"{Path(rival).stem} (rival {n})", *artifact.load(Path(rival))) for n, rival in enumerate(rivals, 1)]
    if isinstance(source, str | Path) and Path(source).suffix == artifact.SUFFIX:
        racing.insert(0, (CHALLENGER, *artifact.load(Path(source))))
    backends = registry.available(options.backends)
    directory = working_folder()
    try:
        opened = open_source(source, options, directory, example_inputs=example_inputs, dynamic=None, given=inputs)
        decided = []
        with Database(directory / "costs.sqlite") as database, open_pool(options) as pool:
            for bucket in opened.buckets:
                forms, challengers = _racing(racing, opened, bucket)
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


def _racing(
    plans: Sequence[tuple[str, Plan, Path]], opened: Source, prepared: Prepared
) -> tuple[list[GraphVariant], list[Challenger]]:
    """The forms of the graph that race, the original first, and the plans for these sizes. Plans come with their names and the
    folders of their artifacts.

    Raises:
        ForeignPlan: a plan is for another model.
    """
    forms, challengers = [GraphVariant(ORIGINAL, prepared.graph)], []
    for name, plan, kept in plans:
        graph = opened.model.graph
        if (plan.inputs, plan.outputs) != tuple(tensor_specs(v, opened.model) for v in (graph.inputs, graph.outputs)):
            raise ForeignPlan(name=name, difference="its inputs or outputs are others")
        for bucket in plan.buckets:
            if dict(bucket.sizes) != dict(prepared.sizes):
                continue
            form = forms[0]
            if bucket.form != ORIGINAL:
                own = graph_of(kept / bucket.graph)
                own.model.graph.name = f"{own.model.graph.name} of {name}"  # other files than those of another plan
                share_weights([own.model], opened.directory, f"{Path(bucket.graph).stem}-{len(forms)}.data")
                form = GraphVariant(f"{bucket.form} {name}", own)
                forms.append(form)
            if len(form.graph) != bucket.operators:
                difference = f"it has {bucket.operators} operators where the model has {len(form.graph)}"
                raise ForeignPlan(name=name, difference=difference)
            division = tuple((bitset.of(numbers(r.operators)), Way(r.backend, r.variant)) for r in bucket.regions)
            challengers.append(Challenger(name, division, None, form.name))
            break
    return forms, challengers
