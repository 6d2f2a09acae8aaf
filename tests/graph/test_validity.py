"""What we write is valid: prepared, rewritten and cut graphs pass strict shape inference and load in ONNX Runtime at its default
level, with recurrences, convolutions, sequences and open sizes in bodies of control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from bricolage.frontends import to_model
from bricolage.graph.extract import extract_region
from bricolage.graph.graph import Graph, Region
from bricolage.graph.prepare import prepare
from bricolage.rewrite.variants import rewritten_variants
from bricolage.testing import branching_model
from bricolage.testing.branching import SIZES
from bricolage.testing.validity import find_faults, make_session

ort = pytest.importorskip("onnxruntime")
FAST, SLOW = 10, 1_000


def assert_valid(model: ir.Model) -> None:
    assert not find_faults(ir.to_proto(model))


def answers(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """None where it cannot be computed."""
    quiet = ort.RunOptions()
    quiet.log_severity_level = 4
    made = make_session(proto)
    names = {one.name for one in made.get_inputs()}
    try:
        found: list[np.ndarray] = made.run(
            None, {name: value for name, value in inputs.items() if name in names}, quiet
        )
    except Exception:  # the runtime has no common one
        return None
    return found


def check(proto: onnx.ModelProto, n: int, b: int, seed: int, parts: st.DataObject | None) -> None:
    """Prepares a model at these sizes, and looks at all that is made of it."""
    model = to_model(proto)
    assert_valid(model)
    graph = prepare(model, {"n": n, "b": b})
    for one in (graph, *(variant.graph for variant in rewritten_variants(graph))):
        assert_valid(one.model)
        check_answers(proto, one, n, b, seed)
    numbers = st.integers(0, len(graph) - 1)
    low, high = sorted(parts.draw(st.tuples(numbers, numbers))) if parts else (seed % len(graph), len(graph) - 1)
    assert_valid(extract_region(Region(graph, sum(1 << number for number in range(low, high + 1)))))


def check_answers(proto: onnx.ModelProto, graph: Graph, n: int, b: int, seed: int) -> None:
    """Under both conditions, where the model as it stands has an answer."""
    x = np.random.default_rng(seed).normal(size=(n, b, 3)).astype(np.float32)
    for flag in (True, False):
        inputs = {"x": x, "flag": np.array(flag), "count": np.array(2)}
        wanted = answers(proto, inputs)
        if wanted is not None:
            found = answers(ir.to_proto(graph.model), inputs)
            assert found is not None
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@given(
    st.randoms(use_true_random=False), st.integers(0, 999), st.sampled_from(SIZES), st.sampled_from(SIZES), st.data()
)
@settings(max_examples=FAST, deadline=None, phases=[Phase.generate])
def test_what_is_made_of_random_bodies_is_valid(chance: Any, seed: int, n: int, b: int, data: st.DataObject) -> None:
    proto = branching_model(seed, chance)
    assume(not find_faults(proto))
    check(proto, n, b, seed, data)


@pytest.mark.parametrize("seed", [806, 863], ids=["sizes of a Scan's body", "the shape of a sequence"])
def test_bodies_that_were_wrong_once_are_valid(seed: int) -> None:
    check(branching_model(seed), SIZES[seed % 3], SIZES[seed // 3 % 3], seed, None)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, SLOW, 50))
def test_what_is_made_of_many_random_bodies_is_valid(start: int) -> None:
    sound = 0
    for seed in range(start, start + 50):
        proto = branching_model(seed)
        if not find_faults(proto):
            check(proto, SIZES[seed % 3], SIZES[seed // 3 % 3], seed, None)
            sound += 1
    assert sound > 40, "most of them are valid as they come"
