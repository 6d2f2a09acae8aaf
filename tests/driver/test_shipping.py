"""What is written is loaded: an artifact that fails in a fresh process is not handed over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel import Kernel
from bricolage.base.codec import decode, encode
from bricolage.base.options import Options
from bricolage.base.progress import Silent
from bricolage.costs.database import Database
from bricolage.device.host import select_device
from bricolage.driver.context import DecisionContext
from bricolage.driver.shipping import TriedArtifacts, planned_trial, ship_plan
from bricolage.driver.sources import GivenModel, Source, open_source
from bricolage.errors import ArtifactFails
from bricolage.measure.pool import Pool
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.planned_interface import output_specs
from bricolage.runtime.load import load
from bricolage.verify.oracle import Oracle
from bricolage.work.implementation import Implementation, KernelConfig
from tests.runtime import made_plans
from tests.runtime.made_plans import Quick, baseline, expected, made_bucket, made_plan, symbolic_model, whole

OPTIONS = Options(threads=1)
X = np.linspace(-2, 2, 20, dtype=np.float32).reshape(5, 4)


class Brittle(Quick):
    """Takes only the size that was planned: others end its process."""

    name: ClassVar[str] = "brittle"

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        if region.inputs[0].sizes[0] != len(X):
            os.abort()
        return super().compile(region, config, resources)


class False_(Quick):
    """Computes something else."""

    name: ClassVar[str] = "false"

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        for node in region.model.graph:
            node.op_type = "Softsign" if node.op_type == "Tanh" else node.op_type
        return super().compile(region, config, resources)


class Coarse(Quick):
    """Wrong in bytes at sizes other than the one that was planned, and right in float32."""

    name: ClassVar[str] = "coarse"

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        for node in region.model.graph if config.in_bytes and region.inputs[0].sizes[0] != len(X) else ():
            node.op_type = "Softsign" if node.op_type == "Tanh" else node.op_type
        return super().compile(region, config, resources)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made_plans.register_all()
    for backend in (Brittle, Coarse, False_):
        registry.register(backend.name, f"{__name__}:{backend.__name__}")
    with Pool() as workers:
        yield workers
    made_plans.forget_all()


def decided(folder: Path, *names: str) -> tuple[Source, Plan]:
    """A decision as if these had been accepted, backends with a configuration, the first as the fastest."""
    folder.mkdir()
    given = {"x": X}
    opened = open_source(GivenModel(symbolic_model(), inputs=given), OPTIONS, folder)
    (bucket,) = opened.buckets
    Oracle(bucket.graph, given, opened.store, OPTIONS.bound, "m").files(bucket.graph.everything)
    implementations = [
        Implementation(name, KernelConfig(config or "f32")) for name, _, config in (one.partition(" ") for one in names)
    ]
    contestants = [baseline(one, 1.0 + number) for number, one in enumerate(implementations)]
    made = made_bucket(folder, bucket.graph, whole(bucket.graph, implementations[0]), bucket.sizes, contestants)
    plan = made_plan(folder, made)
    origin = replace(plan.provenance, versions={one.backend: registry.version(one.backend) for one in implementations})
    return opened, replace(plan, outputs=output_specs(opened.model), provenance=origin)


def context(tried: TriedArtifacts, pool: Pool) -> DecisionContext:
    return DecisionContext(OPTIONS, (), select_device("", None), tried.database, pool, Silent())


def test_a_backend_that_fails_gives_way_to_one_that_does_not(tmp_path: Path, pool: Pool) -> None:
    path = tmp_path / "made.bricolage"
    opened, plan = decided(tmp_path / "run", "brittle", "quick")
    tried = TriedArtifacts(Database(tmp_path / "costs.sqlite"), ["key"])
    written = ship_plan(context(tried, pool), opened, plan, path, [planned_trial(opened, 0)], tried)
    (bucket,) = written.buckets
    assert bucket.race.chosen == "quick f32"
    assert tried.known(0) and decode(Bucket, tried.database.get_race("key")) == bucket
    (reason,) = (one.reason for one in bucket.race.contestants if not one.accepted)
    assert "n=1" in reason and "SIGABRT" in reason
    run = load(path)
    for x in (X, X[:2]):
        np.testing.assert_allclose(run(x), expected(x), rtol=1e-5, atol=1e-6)


def test_what_is_too_coarse_at_another_size_gives_way_to_a_wider_arithmetic_of_its_backend(
    tmp_path: Path, pool: Pool
) -> None:
    path = tmp_path / "made.bricolage"
    opened, plan = decided(tmp_path / "run", "coarse int8", "coarse f32")
    tried = TriedArtifacts(Database(tmp_path / "costs.sqlite"), ["key"])
    (bucket,) = ship_plan(context(tried, pool), opened, plan, path, [planned_trial(opened, 0)], tried).buckets
    assert bucket.race.chosen == "coarse f32"
    assert [one.name for one in bucket.race.contestants if not one.accepted] == ["coarse int8"]


def test_nothing_is_written_where_nothing_is_right(tmp_path: Path, pool: Pool) -> None:
    path = tmp_path / "made.bricolage"
    opened, plan = decided(tmp_path / "run", "false")
    tried = TriedArtifacts(Database(tmp_path / "costs.sqlite"), ["key"])
    tried.database.put_race("key", encode(plan.buckets[0]))
    with pytest.raises(ArtifactFails, match="relative error"):
        ship_plan(context(tried, pool), opened, plan, path, [planned_trial(opened, 0)], tried)
    assert tried.database.get_race("key") is None and not tried.known(0)
    assert not path.exists() and not list(tmp_path.glob(".*partial"))
