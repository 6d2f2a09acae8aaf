"""`tune`: better kernels than rules of thumb for a model on this machine, kept in the cost database, where decisions find them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.driver.joint_tuning import Order, Told
from bricolage.driver.model_tuning import Tuned, tune_model
from bricolage.driver.sources import GivenModel
from bricolage.errors import BadOption
from bricolage.tune.tuning_options import TuningOptions


def tune(
    source: Any,
    options: Options | None = None,
    *,
    tuning: TuningOptions | None = None,
    order: Order = "joint",
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
    told: Told = lambda *_: None,
) -> Tuned:
    """Searches for better kernels of what runs a model fastest, jointly with the graph, the layout, the fusion and the backend
    (`driver.joint_tuning`). Then the best races with what was found against itself without. Decisions for the model find the result
    in the cost database, and for other models what was best for kernels that do the same work.

    Args:
        source, example_inputs, inputs: as for `optimize`.
        options: backends, budget (10 minutes for each set of shapes by default), precision, threads, shapes.
        tuning: technique, rounds, and whether trials of before count.
        order: "joint" searches kernels for several choices of the passes before (graph variant, layout or arithmetic, fusion,
            backend) and drops the worse half again and again; "sequential" only for what is fastest without tuning.
        progress: is told what happens.
        told: is called with each implementation whose search went on, and what is found of it by then.

    Raises:
        NoBackend: nothing near the fastest can be tuned.
        BadOption: the budget is too short for a single search, or there is no such technique.
        and as `optimize`.

    Ctrl-C ends the search that runs and the ones to come; trials are kept, and what was found so far is confirmed and raced.
    """
    options, progress = options or Options(), progress or Silent()
    options.check_here()
    shares = options.profile.shares.tuning
    budget = options.budget_s if options.budget_s is not None else shares.alone_s
    if budget < shares.least_s:
        raise BadOption(option="--budget", value=f"{budget:g}s", advice=f"A search takes {shares.least_s:g}s at least")
    model = GivenModel(source, example_inputs, inputs=inputs)
    return tune_model(model, options, tuning or TuningOptions(), order, budget, progress, told)
