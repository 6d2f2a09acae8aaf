"""Quantised graphs in a decision: made from the user's data, judged twice, raced, shipped, and found again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.budget import DecisionBudget
from bricolage.base.codec import decode, encode
from bricolage.base.deadline import Deadline
from bricolage.base.options import BOUNDS, Options
from bricolage.base.progress import Silent
from bricolage.device.host import select_device
from bricolage.driver import promising_variants
from bricolage.driver.byte_checks import byte_products, check_products
from bricolage.driver.context import DecisionContext, open_context
from bricolage.driver.decide import _describe_decision
from bricolage.driver.final_race import FinalRace, race_result
from bricolage.driver.given_samples import GivenData, samples_of
from bricolage.driver.items import items
from bricolage.driver.quantised_graphs import QuantisedGraphItem
from bricolage.driver.quantised_variants import CALIBRATED
from bricolage.driver.sources import GivenModel, Source, open_source, working_folder
from bricolage.driver.stages.profiling import Baselines, Reference
from bricolage.driver.state import DecisionState
from bricolage.errors import MetricFails
from bricolage.plan.plan import Bucket
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.quantised import EXACT_BOUND, is_quantised
from tests.plan.bucket_facts import alter_bucket

LOW = Options(backends=("onnxruntime",), effort="instant", threads=1, precision="low")


def network(path: Path, width: int = 32) -> Path:
    """A product, a rectifier and another product."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((width, width)) / 6, "v": rng.standard_normal((width, 4)) / 6}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    ends = [[8, width], [8, 4]]
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip("xy", ends, strict=True))
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "products", [given], [made], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def data(seed: int = 1, count: int = 12) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).uniform(-1, 2, (count, 8, 32)).astype(np.float32)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRICOLAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("model") / "products.onnx")


@pytest.fixture(scope="module")
def opened(cache: None, model: Path) -> Iterator[tuple[DecisionContext, Source]]:
    directory = working_folder()
    try:
        with open_context(LOW, registry.available(LOW.backends), select_device("", None), Silent()) as context:
            yield context, open_source(GivenModel(model), LOW, directory)
    finally:
        scratch.remove(directory)


def prepared(opened: tuple[DecisionContext, Source], given: GivenData, **changed: Any) -> DecisionState:
    """A decision whose baselines are known."""
    context, source = opened
    context, source = replace(context, options=replace(LOW, **changed)), replace(source, data=given)
    graph = source.buckets[0].graph
    samples = samples_of(graph, given, context.options)
    budget = DecisionBudget.of(context.options, len(graph)).within(1000.0)
    session = replace(context.session(source, graph, budget=budget), samples=samples)
    inputs, _ = context.inputs(source, graph, session)
    state = DecisionState(session, [GraphVariant(ORIGINAL, graph)], inputs, source.digest)
    for stage in (Reference(), Baselines()):
        stage.run(state, Deadline(math.inf))
    return state


@pytest.fixture(scope="module")
def decided(opened: tuple[DecisionContext, Source]) -> tuple[DecisionState, Bucket]:
    """With a quantised graph, and a race."""
    state = prepared(opened, GivenData(data()))
    QuantisedGraphItem(CALIBRATED).run(state, Deadline(math.inf))
    FinalRace().run(state, Deadline(math.inf))
    result = race_result(state)
    assert result is not None
    return state, _describe_decision(state, result, [], Deadline(math.inf))


def test_the_agenda_has_it_where_data_is_given_at_low(opened: tuple[DecisionContext, Source]) -> None:
    state = prepared(opened, GivenData(data()))
    offered = [one for one in items(state) if isinstance(one, QuantisedGraphItem)]
    assert [one.name for one in offered] == ["quantised graph"]
    promise = offered[0].promise(state)
    assert promise is not None and promise.gain < 1.0 and promise.seconds > 0.0
    without = replace(state, session=replace(state.session, samples=None))
    assert not [one for one in items(without) if isinstance(one, QuantisedGraphItem)]
    asked = replace(without, session=replace(state.session, samples=None, options=replace(LOW, weights="int4")))
    assert [one.name for one in items(asked) if isinstance(one, QuantisedGraphItem)] == ["weights in int4"]


def test_it_is_judged_by_exact_integers_and_by_the_float_model(decided: tuple[DecisionState, Bucket]) -> None:
    state, bucket = decided
    (found,) = bucket.verification.quantised
    assert found.outcome == "raced" and found.products == 2 and not found.floats
    assert found.error is not None and 1e-4 < found.error < BOUNDS["low"]
    variant = state.timed_variants[CALIBRATED]
    assert is_quantised(variant.graph.model) and variant.oracle.accepted == EXACT_BOUND
    assert {one.error for one in bucket.race.contestants if CALIBRATED in one.name and one.error is not None}
    for one in bucket.race.contestants:
        if one.median_ms is not None:
            assert one.held_back_error is not None and one.reached == one.held_back_error
            exact = found.error if CALIBRATED in one.name else 0.0
            assert one.held_back_error == pytest.approx(exact, rel=0.3, abs=1e-5)
    assert bucket.verification.accuracy is not None and bucket.verification.accuracy.limit == pytest.approx(
        BOUNDS["low"]
    )
    assert bucket.verification.accuracy.reached is not None and bucket.verification.accuracy.samples == 3


def test_the_plan_keeps_it_and_the_same_data_makes_it_again(decided: tuple[DecisionState, Bucket]) -> None:
    state, bucket = decided
    assert decode(Bucket, encode(bucket)) == bucket
    graph, samples = state.oracle.graph, state.session.samples
    made = next(promising_variants.remade(graph, CALIBRATED, state.session.options, samples))
    assert made.key == state.timed_variants[CALIBRATED].graph_variant.key
    shipped = alter_bucket(bucket, variant=CALIBRATED, operators=len(made.graph), regions=())
    again = promising_variants.made_again(shipped, graph, state.session.options, samples)
    assert again is not None and again.quantised
    assert promising_variants.made_again(shipped, graph) is None, "without the data nothing says its scales"


def test_where_no_product_bears_the_accuracy_asked_for_that_is_told(opened: tuple[DecisionContext, Source]) -> None:
    state = prepared(opened, GivenData(data()), accuracy="sqnr=60")
    QuantisedGraphItem(CALIBRATED).run(state, Deadline(math.inf))
    (found,) = state.quantised
    assert found.outcome == "not made" and "misses" in found.verdict and "SQNR (dB) of at least 60" in found.verdict
    assert CALIBRATED not in state.timed_variants and not state.challengers


def test_what_misses_the_accuracy_on_samples_held_back_is_told_and_does_not_race(
    opened: tuple[DecisionContext, Source], tmp_path: Path
) -> None:
    """Although it reaches it on those by which it was found what stays float."""
    (tmp_path / "metric.py").write_text(
        "def near(outputs, reference):\n"
        "    pairs = [(a[name], b[name]) for a, b in zip(outputs, reference) for name in b]\n"
        "    return float(len(outputs) < 3 or max(abs(a - b).max() for a, b in pairs) < 1e-4)\n"
    )
    state = prepared(opened, GivenData(data()), accuracy=f"{tmp_path}/metric.py:near>=1")
    QuantisedGraphItem(CALIBRATED).run(state, Deadline(math.inf))
    (found,) = state.quantised
    assert found.outcome == "too inaccurate" and "near 0 on 3 samples, at least 1 is asked for" in found.verdict
    assert CALIBRATED not in state.timed_variants and not state.challengers
    assert state.original.times, "float meets it"


def test_a_metric_that_raises_says_so_before_anything_is_measured(
    opened: tuple[DecisionContext, Source], tmp_path: Path
) -> None:
    path = tmp_path / "metric.py"
    path.write_text("def score(outputs, reference): raise ZeroDivisionError('no rows')")
    with pytest.raises(MetricFails, match="ZeroDivisionError: no rows"):
        prepared(opened, GivenData(data()), accuracy=f"{path}:score>=1")


def test_weights_alone_need_no_data(opened: tuple[DecisionContext, Source]) -> None:
    state = prepared(opened, GivenData(), precision="highest", weights="int8")
    QuantisedGraphItem("weights-int8").run(state, Deadline(math.inf))
    (found,) = state.quantised
    assert found.outcome == "raced", found.verdict
    assert found.error is not None and found.error < BOUNDS["low"] and found.bytes[1] < found.bytes[0] / 3


def test_a_backend_that_multiplies_bytes_inexactly_is_refused_by_single_products(
    decided: tuple[DecisionState, Bucket],
) -> None:
    """In a deep graph ties hide it; a product from bytes has none."""
    variant = decided[0].timed_variants[CALIBRATED]
    (region,) = byte_products(variant.graph)
    assert [one.op_type for one in region.operators].count("MatMul") == 1
    read = {value.dtype for value in region.inputs if value.const_value is None}
    assert read == {ir.DataType.UINT8}, "from bytes on"
    before = dict(variant.whole)
    check_products(variant, lambda: False)
    assert variant.whole == before and variant.times, "ONNX Runtime is exact where the processor is"
    assert variant.oracle.files(region)[2] == EXACT_BOUND
