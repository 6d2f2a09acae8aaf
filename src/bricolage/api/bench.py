"""`bench`: every backend side by side on one model, measured afresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.options import Options
from bricolage.base.progress import Progress, Silent
from bricolage.device.host import select_device
from bricolage.driver.bucket_decision import make_plan
from bricolage.driver.context import open_context
from bricolage.driver.decide import compete
from bricolage.driver.given_samples import NO_DATA
from bricolage.driver.promising_variants import write_variant_files
from bricolage.driver.sources import GivenModel, PreparedBucket, Source, open_source, working_folder
from bricolage.driver.state import Challenger
from bricolage.driver.throughput_decision import compare_operating_points
from bricolage.errors import BadOption, ForeignPlan
from bricolage.graph.extract import graph_of
from bricolage.plan import artifact
from bricolage.plan.plan import Plan
from bricolage.plan.planned_interface import input_specs, output_specs
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant
from bricolage.runtime.programs import placement_of

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
    target: str = "",
) -> Plan:
    """Races every backend that can run the model as a whole, and for an artifact its plan too, interleaved. Nothing is taken
    from the cost database or written to it: this is an independent check of what `optimize` decided.

    `rivals` are other artifacts of the same model; their plans race too, as "FILE (rival 1)" and so on.

    `target`: of a pack, whose plan races; by default that of its first one.

    For throughput, every backend races in every layout of streams and batches, and plans at their operating points.

    Each bucket of the result has all contestants with medians, intervals, errors, and their speed-up over the best single
    backend.

    Raises:
        As `optimize`.
    """
    options, progress = options or Options(), progress or Silent()
    options.check_here()
    NO_DATA.check(options)
    if options.weights is not None:
        advice = "A model is raced as it is here; bricolage optimize and bricolage quantize make another one of it"
        raise BadOption(option="--weights", value=options.weights, advice=advice)
    racing = [
        (f"{Path(rival).stem} (rival {n})", *artifact.load_artifact(Path(rival))) for n, rival in enumerate(rivals, 1)
    ]
    if artifact.is_named(source):
        plans, kept = artifact.plans(Path(source), target)
        racing.insert(0, (CHALLENGER, next(iter(plans.values())), kept))
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    with scratch.using(working_folder()) as directory:
        opened = open_source(GivenModel(source, example_inputs, inputs=inputs), options, directory)
        decided = []
        with open_context(options, backends, device, progress, database=directory / "costs.sqlite") as context:
            if options.objective == "throughput":
                base, served = compare_operating_points(context, opened, racing)
                return replace(make_plan(opened, [base], options, backends, device), throughput=served)
            for bucket in opened.buckets:
                variants, challengers = _racing(racing, opened, bucket)
                session = context.session(opened, bucket.graph)
                arrays, origin = context.inputs(opened, bucket.graph, session)
                bucket_plan = compete(session, variants, arrays, opened.digest, challengers)
                decided.append(bucket.complete_decision(bucket_plan, origin))
        return make_plan(opened, decided, options, backends, device)


def planned_targets(source: Path, target: str, options: Options) -> dict[str, Options]:
    """The plans of a pack that race, by their targets' names, each with what it was planned for; under the empty name the options
    of what has no targets.

    Args:
        source: a model, an artifact or a pack.
        target: of a pack, the one that races; all where it is empty.
        options: of the race; threads, instructions, precision and memory are a target's own.

    Raises:
        BadOption, NotPack, NoTarget: a target is named, and there is a model, an artifact with one plan, or no such target.
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact: the artifact cannot be read.
    """
    if not artifact.is_named(source):
        if target:
            raise BadOption(option="--target", value=target, advice="It is for packs")
        return {"": options}
    targets = {}
    for name, plan in artifact.plans(source, target)[0].items():
        planned = plan.provenance.options
        there = replace(options, threads=planned.threads, isa=planned.isa)
        there = replace(there, precision=planned.precision, memory_limit_mb=planned.memory_limit_mb)
        targets[name] = there if name else options
    return targets


def _racing(
    plans: Sequence[tuple[str, Plan, Path]], opened: Source, prepared: PreparedBucket
) -> tuple[list[GraphVariant], list[Challenger]]:
    """The variants of the graph that race, the original first, and the plans for these sizes. Plans come with their
    names and the folders of their artifacts.

    Raises:
        ForeignPlan: a plan is for another model.
    """
    variants, challengers = [GraphVariant(ORIGINAL, prepared.graph)], []
    for name, plan, kept in plans:
        if (plan.inputs, plan.outputs) != (input_specs(opened.model), output_specs(opened.model)):
            raise ForeignPlan(name=name, difference="its inputs or outputs are others")
        if {str(constant) for constant in plan.constants} != {str(constant) for constant in opened.constants}:
            raise ForeignPlan(name=name, difference="its constant inputs are others")
        for bucket in plan.buckets:
            if dict(bucket.program.sizes) != dict(prepared.sizes):
                continue
            variant = variants[0]
            if bucket.program.variant != ORIGINAL:
                variant = GraphVariant(f"{bucket.program.variant} {name}", graph_of(kept / bucket.program.graph))
                write_variant_files(variant, opened.store)
                variants.append(variant)
            if len(variant.graph) != bucket.program.operators:
                difference = f"it has {bucket.program.operators} operators where the model has {len(variant.graph)}"
                raise ForeignPlan(name=name, difference=difference)
            challengers.append(Challenger(name, placement_of(bucket), None, variant.name))
            break
    return variants, challengers
