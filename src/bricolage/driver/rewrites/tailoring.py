"""The variant of a model that one backend runs fastest, by timing variants of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.device.host import select_device
from bricolage.driver.constants import fold_inputs
from bricolage.driver.context import DecisionContext, open_context
from bricolage.driver.rewrites.model_rewriting import simplify_at_opset
from bricolage.driver.rewrites.verified_rewrite import (
    RewriteSubject,
    RewriteTrace,
    Rewritten,
    file_constants,
    verify_rewritten,
)
from bricolage.driver.sources import GivenModel, Source, open_source, working_folder
from bricolage.graph.model_interface import interface
from bricolage.graph.prepare import prepare
from bricolage.rewrite.engine.pipeline import PipelineRunner
from bricolage.rewrite.rule import Rule
from bricolage.tune.rewrites import RewriteTuner, RewriteTuningResult
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import Evaluate


def tailor_model(
    original: ir.Model,
    backend: str,
    options: Options,
    rules: Sequence[Rule],
    progress: Progress,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    opset: int | None = None,
) -> Rewritten:
    """The variant that a backend runs fastest, checked. Inputs that never change become weights in `original`. Arguments and
    errors as for `tailor`; `rules` are all that take part.
    """
    arrays, options = fold_inputs(original, options, inputs), replace(options, constants={})
    start = simplify_at_opset(original, opset)
    if arrays is not None:
        arrays = {name: array for name, array in arrays.items() if name not in interface(original).defaults}
    engines, device = registry.available((backend,)), select_device(options.isa, options.cores)
    with scratch.using(working_folder()) as directory:
        opened = open_source(GivenModel(original, inputs=arrays), options, directory)
        with open_context(options, engines, device, progress, database=directory / "costs.sqlite") as context:
            tuning, evaluate = _tune_rules(context, opened, start, rules, raising=opset is None)
            if tuning.rewrite_config is None:
                trace = RewriteTrace(start, ())
            else:
                result = PipelineRunner(start, rules).run(tuning.rewrite_config)
                trace = RewriteTrace(result.model, result.applications)
            sizes = opened.buckets[0].sizes
            subject = RewriteSubject(original, prepare(original, sizes), start, sizes, options.seed)
            rewritten = verify_rewritten(subject, trace, file_constants(evaluate, opened.store))
    return replace(rewritten, tailored=tuning)


def _tune_rules(
    context: DecisionContext, opened: Source, start: ir.Model, rules: Sequence[Rule], *, raising: bool
) -> tuple[RewriteTuningResult, Evaluate]:
    """Which rules make the model fastest, and what computes its references."""
    (bucket,) = opened.buckets
    options, progress, session = context.options, context.progress, context.session(opened, bucket.graph)
    arrays, _ = context.inputs(opened, bucket.graph, session)
    oracle = Oracle(
        bucket.graph,
        arrays,
        opened.store,
        options.bound,
        opened.digest,
        literal=options.tolerance is not None,
        evaluate=session.evaluate,
    )
    progress.start("float64 reference")
    oracle.compute()
    progress.finish()
    tuner = RewriteTuner(
        start,
        bucket.sizes,
        rules=rules,
        oracle=oracle,
        backend=session.backends[0],
        options=options,
        budget=session.budget,
        measurer=session.measurer,
        progress=progress,
        device=context.device,
        raising=raising,
    )
    return tuner.run(Deadline(session.budget.total_s)), session.evaluate
