"""The options with which a command takes up an artifact: those of its plan, but for what the user sets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from bricolage.base.options import Options
from bricolage.plan import artifact
from bricolage.plan.plan import Plan


def is_artifact(path: Path) -> bool:
    """Whether a path names an artifact, or a pack, rather than a model."""
    return artifact.is_named(path)


def adopt_options(source: Path, options: Options, given: Collection[str] | None = None) -> Options:
    """The options for the model or the artifact at a path: of a model those that it gets; of an artifact those of its plan but for
    the `given` ones, the names of what the user set. Without `given`, only the shapes are the artifact's, unless others are set.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact: the artifact cannot be read.
    """
    if not is_artifact(source):
        return options
    if given is None and options.shapes:
        return options
    plan, _ = artifact.load_artifact(source)
    if given is not None:
        # The buckets of a plan for throughput are programs like any other.
        planned = replace(plan.provenance.options, objective="latency", latency_limit_ms=None)
        options = replace(planned, **{name: getattr(options, name) for name in given})
    return options if options.shapes else replace(options, shapes=_planned_shapes(plan))


def _planned_shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    names = dict.fromkeys(name for bucket in plan.buckets for name in bucket.program.sizes)
    return {name: tuple(bucket.program.sizes[name] for bucket in plan.buckets) for name in names}
