"""Variants of a graph, from the race to artifacts and shapes that were never planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bricolage
from bricolage.api.bench import bench
from bricolage.base.codec import decode, encode
from bricolage.base.options import Options
from bricolage.costs.database import Database
from bricolage.costs.models.track_record import TrackRecord
from bricolage.driver import promising_variants
from bricolage.driver.sources import GivenModel, open_source, working_folder
from bricolage.errors import ForeignPlan, UnreadableArtifact
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.plan.plan import Bucket
from bricolage.plan.rewrite_steps import EnabledRule, RewriteConfig, RewriteStep
from bricolage.plan.shipped_program import ORIGINAL, PlannedRegion
from bricolage.rewrite.variants import REWRITTEN, TAILORED, rewritten_variants, tailored_variant
from bricolage.runtime.executable import Executable
from bricolage.work.implementation import Implementation
from tests.graph.models import parse
from tests.plan.bucket_facts import alter_bucket

OPTIONS = Options(backends=("onnxruntime",), budget_s=20.0, threads=1, shapes={"batch": (1, 2)})
NET = """<ir_version: 8, opset_import: ["" : 18]> net (float[batch,8,16,16] x) => (float[batch,8,16,16] y) {
    c = Conv<pads=[1,1,1,1]>(x, w) n = BatchNormalization(c, s, b, m, v) t = Transpose<perm=[0,2,3,1]>(n) r = Relu(t)
    q = Transpose<perm=[0,3,1,2]>(r) y = Add(q, x) }"""


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 8, 3, 3), "s": (8,), "b": (8,), "m": (8,), "v": (8,)}
    return {name: rng.uniform(0.2, 1.0, shape).astype(np.float32) for name, shape in shapes.items()}


def sample(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).normal(size=(batch, 8, 16, 16)).astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    import torch

    w, s, b, m, v = (torch.from_numpy(array) for array in weights().values())
    c = torch.conv2d(torch.from_numpy(x), w, padding=1)
    return (torch.nn.functional.batch_norm(c, m, v, s, b).relu() + torch.from_numpy(x)).numpy()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRICOLAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        # What other networks gained says nothing here: what rewriting makes is to race.
        patch.setattr("bricolage.costs.models.track_record.shipped_record", TrackRecord)
        yield


@pytest.fixture(scope="module")
def raced(cache: None) -> Executable:
    return bricolage.optimize(parse(NET, **weights()), OPTIONS)


@pytest.fixture(scope="module")
def rewritten(raced: Executable) -> Executable:
    """The same with a plan that ships the rewritten variant, whoever won."""
    directory = working_folder()
    opened = open_source(GivenModel(parse(NET, **weights())), OPTIONS, directory)
    buckets = []
    for prepared, bucket in zip(opened.buckets, raced.plan.buckets, strict=True):
        (variant,) = rewritten_variants(prepared.graph)
        file = promising_variants.write_variant_files(variant, opened.store)
        numbers = f"0-{len(variant.graph) - 1}"
        region = PlannedRegion(
            Implementation("onnxruntime"), numbers, len(variant.graph), "all", "", 0, 0, None, measured=False
        )
        buckets.append(
            alter_bucket(
                bucket,
                graph=file,
                variant=REWRITTEN,
                rules=variant.rules,
                steps=(),
                rewrite_config=None,
                operators=len(variant.graph),
                regions=(region,),
            )
        )
    return Executable(dataclasses.replace(raced.plan, buckets=tuple(buckets)), directory, temporary=True)


def test_rewritten_variants_race_and_are_checked(raced: Executable) -> None:
    for bucket in raced.plan.buckets:
        found = {contestant.name: contestant for contestant in bucket.race.contestants}
        assert {"onnxruntime f32", "onnxruntime f32 rewritten"} <= set(found)
        one = found["onnxruntime f32 rewritten"]
        assert one.kind == "plan" and one.accepted and one.error is not None and one.error <= bucket.verification.bound
        assert found["onnxruntime f32"].kind == "baseline"
        assert bucket.race.best_baseline == "onnxruntime f32", "what rewriting gains is measured against the original"
        # Which one ships is the machine's to say.
        assert bucket.race.chosen == "onnxruntime f32" + (
            f" {bucket.program.variant}" if bucket.program.variant != ORIGINAL else ""
        )
        assert bool(bucket.program.rules) == (bucket.program.variant != ORIGINAL)


def test_what_decisions_saw_is_in_the_log(raced: Executable) -> None:
    """Nothing of those that other processes disturbed."""
    with Database() as database:
        lines = list(database.decision_log())
        exported = [line for line in database.export_lines() if '"decision"' in line]
    quiet = [bucket for bucket in raced.plan.buckets if not bucket.race.under_load]
    networks = {line.times.network for line in lines if line.times is not None}
    assert len(networks) == len(quiet) and len(exported) == len(lines)
    for attempt in (line.attempt for line in lines if line.attempt is not None):
        assert attempt.network in networks and attempt.incumbent == "onnxruntime" and attempt.processor


def test_without_rewriting_there_is_only_the_original(raced: Executable) -> None:
    plain = bricolage.optimize(
        parse(NET, **weights()), dataclasses.replace(OPTIONS, rewrite=False, shapes={"batch": (1,)})
    )
    (bucket,) = plain.plan.buckets
    assert bucket.program.variant == ORIGINAL and not bucket.program.rules
    assert not [contestant for contestant in bucket.race.contestants if contestant.name.endswith(REWRITTEN)]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_rewritten_graph_gives_the_same_at_any_shape(rewritten: Executable, batch: int) -> None:
    assert len(rewritten.graph()) == 3
    x = sample(batch)
    np.testing.assert_allclose(rewritten(x), expected(x), rtol=1e-4, atol=1e-5)


def test_an_artifact_holds_the_weights_that_rules_made(rewritten: Executable, tmp_path: Path) -> None:
    path = rewritten.save(tmp_path / "net.bricolage")
    loaded = bricolage.load(path)
    assert loaded.plan == rewritten.plan
    for batch in (2, 3):
        np.testing.assert_allclose(loaded(sample(batch)), expected(sample(batch)), rtol=1e-4, atol=1e-5)
    buckets = bench(path, dataclasses.replace(OPTIONS, budget_s=5.0)).buckets
    for bucket in buckets:
        planned = next(contestant for contestant in bucket.race.contestants if contestant.name == "bricolage")
        assert planned.accepted, planned.reason


@pytest.mark.slow
def test_plans_of_one_model_race_each_other(raced: Executable, rewritten: Executable, tmp_path: Path) -> None:
    ours, theirs = rewritten.save(tmp_path / "ours.bricolage"), raced.save(tmp_path / "theirs.bricolage")
    options = dataclasses.replace(OPTIONS, budget_s=5.0)
    for bucket in bench(ours, options, rivals=[theirs, ours]).buckets:
        found = {c.name: c for c in bucket.race.contestants}
        assert {"bricolage", "theirs (rival 1)", "ours (rival 2)", "onnxruntime f32"} <= set(found)
        refused = {name for name, c in found.items() if c.reason.startswith("refused")}
        assert refused <= {"onnxruntime f32-parallel"}, "there is nothing to run side by side"
        assert all(c.accepted for name, c in found.items() if name not in refused), [c.reason for c in found.values()]
    other = parse(
        NET.replace("y = Add(q, x)", "y = Mul(q, x)").replace("] y)", "] z)").replace("y = ", "z = "), **weights()
    )
    onnx.save(ir.to_proto(other), tmp_path / "other.onnx")
    with pytest.raises(ForeignPlan, match="inputs or outputs"):
        bench(tmp_path / "other.onnx", options, rivals=[ours])
    larger = alter_bucket(rewritten.plan.buckets[0], operators=9)
    odd = Executable(dataclasses.replace(rewritten.plan, buckets=(larger,)), rewritten._source.directory)
    with pytest.raises(UnreadableArtifact, match="3 operators, not 9"):
        odd.save(tmp_path / "odd.bricolage")


def test_a_stored_decision_counts_only_for_the_graph_that_it_divides(raced: Executable) -> None:
    graph = prepare(to_model(parse(NET, **weights())), {"batch": 1})
    bucket = raced.plan.buckets[0]
    made = promising_variants.made_again(bucket, graph)
    assert made is not None and made.name == bucket.program.variant
    assert promising_variants.made_again(alter_bucket(bucket, operators=bucket.program.operators + 1), graph) is None
    other = tuple(dataclasses.replace(region, key="0" * 32) for region in bucket.program.regions)
    assert promising_variants.made_again(alter_bucket(bucket, regions=other), graph) is None
    lost = (RewriteStep("no-such-rule", 0, ("y",), ()),)
    searched = alter_bucket(bucket, variant="searched-1", steps=lost, rewrite_config=None)
    assert promising_variants.made_again(searched, graph) is None


def test_a_tailored_decision_is_made_again_from_its_recipe(raced: Executable) -> None:
    graph = prepare(to_model(parse(NET, **weights())), {"batch": 1})
    recipe = RewriteConfig(
        frozenset({"bias-into-linear"}), (EnabledRule("strided-pointwise-by-slice", frozenset({"Conv"})),)
    )
    variant = tailored_variant(graph, recipe)
    everything = f"0-{len(variant.graph) - 1}"
    region = PlannedRegion(
        Implementation("onnxruntime"), everything, len(variant.graph), "all", variant.key, 0, 0, None, measured=False
    )
    bucket = alter_bucket(
        raced.plan.buckets[0],
        operators=len(variant.graph),
        regions=(region,),
        variant=TAILORED,
        rewrite_config=variant.rewrite_config,
    )
    again = promising_variants.made_again(decode(Bucket, encode(bucket)), graph)
    assert again is not None and again.rewrite_config == recipe and again.key == variant.key
