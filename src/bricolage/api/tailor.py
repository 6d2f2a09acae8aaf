"""`tailor`: a model in, an equal model out that one backend runs fastest, by timing variants of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage.api.rewrite import RewriteTrace, Rewritten, at_opset, taking_part, verify_rewritten
from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.device.host import select_device
from bricolage.driver.checking import file_constants
from bricolage.driver.constants import fold_inputs
from bricolage.driver.context import DecisionContext, open_context
from bricolage.driver.sources import PreparedBucket, Source, open_source, working_folder
from bricolage.errors import BadOption
from bricolage.frontends import to_model
from bricolage.graph.model_interface import interface
from bricolage.graph.prepare import prepare, simplify
from bricolage.rewrite.engine.pipeline import PipelineRunner
from bricolage.rewrite.rule import Rule
from bricolage.tune.rewrites import RewriteTuner, RewriteTuningResult
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import Evaluate


def tailor(
    source: Any,
    backend: str,
    options: Options | None = None,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    opset: int | None = None,
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    own: Sequence[Rule] = (),
    progress: Progress | None = None,
) -> Rewritten:
    """The variant of a model that one backend runs fastest on this machine: rules, cost-based ones too, are taken or left by what
    they do to the measured time of the whole model (see `bricolage.tune.rewrites`).

    Args:
        source, only, skip, example_inputs, own: as for `rewrite`.
        opset: to which the model is raised; by default newer ones are tried, too.
        backend: name of the backend, alone.
        options: threads, budget, precision, one size for each symbolic dimension; the model keeps these open.
        inputs: real inputs by name; by default they are generated.

    Raises:
        MissingBackend, UnknownBackend, NoBackend: the backend is not there, or does not run the model.
        NotAccurate: its answer is not accurate enough.
        UnboundDimension: a dimension has no size.
        BadOption: a dimension has several.
        WrongRewrite: the answer changed; variants are made in no one order, so all rules are named.
        and as `rewrite`.
    """
    options, progress = options or Options(), progress or Silent()
    options.check_here()
    for name, several in options.shapes.items():
        if len(several) > 1:
            raise BadOption(option="--shape", value=f"{name}={several}", advice="Give one size to measure with")
    rules = taking_part(only, skip, own)
    original = to_model(source, example_inputs=example_inputs)
    inputs, options = fold_inputs(original, options, inputs), replace(options, constants={})
    start = at_opset(original, opset)
    simplify(start)
    if inputs is not None:
        inputs = {name: array for name, array in inputs.items() if name not in interface(original).defaults}
    engines, device = registry.available((backend,)), select_device(options.isa, options.cores)
    with scratch.using(working_folder()) as directory:
        opened = open_source(original, options, directory, example_inputs=None, dynamic=None, given=inputs)
        (bucket,) = opened.buckets
        with open_context(options, engines, device, progress, database=directory / "costs.sqlite") as context:
            tuning, evaluate = _tune_rules(context, opened, bucket, start, rules, raising=opset is None)
            if tuning.rewrite_config is None:
                trace = RewriteTrace(start, (), None, None)
            else:
                result = PipelineRunner(start, rules).run(tuning.rewrite_config)
                trace = RewriteTrace(result.model, result.applications, None, None)
            graph = prepare(original, bucket.sizes)
            rewritten = verify_rewritten(
                original, graph, start, trace, bucket.sizes, options.seed, file_constants(evaluate, opened.store)
            )
    return replace(rewritten, tailored=tuning)


def _tune_rules(
    context: DecisionContext,
    opened: Source,
    bucket: PreparedBucket,
    start: ir.Model,
    rules: Sequence[Rule],
    *,
    raising: bool,
) -> tuple[RewriteTuningResult, Evaluate]:
    """Which rules make the model fastest, and what computes its references."""
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
