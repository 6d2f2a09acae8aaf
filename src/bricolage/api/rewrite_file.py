"""A model's file in, the file of an equal model out."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bricolage.api.rewrite import list_rule_uses, rewrite
from bricolage.api.tailor import tailor
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.driver.rewrites.verified_rewrite import Rewritten
from bricolage.errors import MissingFile
from bricolage.frontends.maps import restore
from bricolage.graph.extract import write_whole
from bricolage.plan import artifact
from bricolage.rewrite.engine.apply import RuleUse
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.search_options import SearchOptions, parse_method
from bricolage.search.key_policy import load_policy


@dataclass(frozen=True)
class RuleChoice:
    """Which rules take part."""

    only: Sequence[str] = ()
    """Families or names; empty: all but those that were found by enumeration."""
    skip: Sequence[str] = ()
    own: Sequence[Rule] = ()
    """Of the user's, proved."""
    opset: int | None = None
    """To which the model is raised first."""


@dataclass(frozen=True)
class RewriteLimits:
    """How far rules are applied for any runtime.

    Raises:
        BadOption: there is no such method to search; where options of the search are asked for: the file holds no policy.
    """

    search: str = "none"
    """Method by which the cheapest graph is sought, or "none"."""
    applications: int | None = None
    """Of rules, after which the rewriting stops."""
    policy: Path | None = None
    """A file with the policy of learned keys; None for the one that comes with the package."""

    def __post_init__(self) -> None:
        parse_method(self.search)

    @property
    def search_options(self) -> SearchOptions | None:
        """Of the search; None where there is none."""
        method = parse_method(self.search)
        if method is None:
            return None
        return SearchOptions(method=method, policy=None if self.policy is None else load_policy(self.policy))


def rewrite_file(
    model: Path, out: Path, rules: RuleChoice, limits: RewriteLimits, options: Options, sizes: Mapping[str, int]
) -> Rewritten:
    """Applies rules where they are profitable, checks the result against float64, and writes it.

    Args:
        model: a file of ONNX, or a `.pt2` file.
        out: where the result goes, with its weights.
        rules: those that take part.
        limits: how far they are applied.
        options: seed, constants, seconds and megabytes of an evaluation in float64.
        sizes: of symbolic dimensions, to count and check with.

    Raises:
        As `rewrite`; NotWritable: the disk is full or the folder is not writable.
    """
    outcome = rewrite(
        model,
        only=rules.only,
        skip=rules.skip,
        limit=limits.applications,
        opset=rules.opset,
        shapes=sizes,
        constants=options.constants,
        seed=options.seed,
        search=limits.search_options,
        own=rules.own,
        budget_s=options.budget_s,
        memory_limit_mb=options.memory_limit_mb,
    )
    return _write(outcome, out)


def tailor_file(
    model: Path,
    out: Path,
    rules: RuleChoice,
    backend: str,
    options: Options,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
) -> Rewritten:
    """Writes the variant of a model that one backend runs fastest here, by timing variants of it.

    Args:
        model, out, rules: as for `rewrite_file`.
        backend: its name.
        options: threads, budget, precision, one size for each symbolic dimension.
        inputs: real ones by name; by default they are generated.
        progress: is told what happens.

    Raises:
        As `tailor`; NotWritable: the disk is full or the folder is not writable.
    """
    outcome = tailor(
        model,
        backend,
        options,
        only=rules.only,
        skip=rules.skip,
        opset=rules.opset,
        inputs=inputs,
        own=rules.own,
        progress=progress,
    )
    return _write(outcome, out)


def _write(outcome: Rewritten, out: Path) -> Rewritten:
    write_whole(outcome.model, out)
    restore(out)
    return outcome


def find_rule_uses(source: Path) -> list[RuleUse]:
    """The rules that apply or nearly apply to a model, or to the graph of an artifact's first bucket (they differ in sizes alone).

    Raises:
        MissingFile: there is no such file.
        BadArtifact, NewerArtifact, OlderArtifact, UsageError: it is not usable.
    """
    if not source.exists():
        raise MissingFile(path=source)
    if zipfile.is_zipfile(source):
        plan, directory = artifact.load_artifact(source)
        source = directory / plan.buckets[0].program.graph
    return list_rule_uses(source)
