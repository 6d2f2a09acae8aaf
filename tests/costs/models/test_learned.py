"""Learnt models of costs: what they see, what they hold, and that they learn."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.codec import DecodeError, decode, encode
from bricolage.costs.models.learned import fitting
from bricolage.costs.models.learned.features import NAMES, features
from bricolage.costs.models.learned.fitting import Sample, errors_of, fit_costs, left_out
from bricolage.costs.models.learned.forest import Forest, Tree
from bricolage.costs.models.learned.installed import SHIPPED
from bricolage.costs.models.learned.model import LearnedCosts, load_costs
from bricolage.costs.models.roofline import Roofline, least_ms
from bricolage.device.device import Peaks
from bricolage.device.host import host
from bricolage.errors import BadCostModel, MissingFile, TooFewCosts
from bricolage.work.cost import CostModel, Estimate, Setting, Work
from bricolage.work.implementation import Implementation, KernelConfig
from bricolage.work.workload import OperatorWork, Workload

SETTING = Setting(replace(host(), peaks=Peaks(100.0, 10.0)), 2)
STUMP = Tree((0,), (1.5,), (-1,), (-2,), (10.0, 20.0))


def product(m: int, n: int, k: int, network: str = "a") -> Workload:
    """y = x · w."""
    one = OperatorWork("MatMul", "float", (m, n), 2 * m * n * k, 4 * m * k, 4 * k * n, 4 * m * n)
    return Workload(
        (one, OperatorWork("Relu", "float", (m, n), m * n, 4 * m * n, 0, 4 * m * n)),
        4 * m * k,
        4 * k * n,
        4 * m * n,
        network,
    )


def asked(model: CostModel, workload: Workload, *names: str) -> Sequence[Estimate | None]:
    """What a model says of a region on implementations ("openvino f32")."""
    parts = [name.split() for name in names]
    works = [Work(workload, Implementation(backend, KernelConfig(config))) for backend, config in parts]
    return model.estimate(works, SETTING)


def made_up(seed: int = 0, count: int = 160) -> list[Sample]:
    """Two backends, of which one has a start and the other half the speed."""
    rng = np.random.default_rng(seed)
    found: list[Sample] = []
    for number in range(count):
        m, n, k = (int(2 ** rng.uniform(3, 10)) for _ in range(3))
        workload = product(m, n, k, "abcdef"[number % 6])
        floor = least_ms(workload, SETTING)
        for name, ms in (("quick f32", floor * 1.5 + 0.05), ("slow f32", floor * 3.0)):
            noise = math.exp(rng.normal(0.0, 0.02))
            found.append(Sample(workload, SETTING, name, ms * noise, f"{number}", workload.network, "here"))
    return found


@cache
def trained() -> LearnedCosts:
    """A model of `made_up()`; training takes most of a second."""
    return fit_costs(made_up(), {"made": "today"})


@pytest.mark.parametrize(
    "workload",
    [Workload((), 0, 0, 0), product(8, 8, 8), Workload((OperatorWork("Unknown", "", (), 0, 0, 0, 0),), 0, 0, 0)],
)
def test_features_are_numbers_for_whatever_there_is(workload: Workload) -> None:
    found = features(workload, SETTING)
    assert found.shape == (len(NAMES),) and np.isfinite(found).all()


def test_features_tell_kinds_of_convolutions_apart() -> None:
    def convolution(groups: int) -> Workload:
        one = OperatorWork("Conv", "float", (1, 32, 8, 8), 10**9, 8192, 9216, 8192, (3, 3), (1, 1), groups)
        return Workload((one,), 8192, 9216, 8192)

    told = {}
    for groups, kind in ((1, "convolution"), (4, "grouped"), (32, "depthwise")):
        found = dict(zip(NAMES, features(convolution(groups), SETTING), strict=True))
        assert found[f"{kind} gflops"] == pytest.approx(math.log(2)) and found["taps"] == pytest.approx(math.log(10))
        told[kind] = [found[f"{other} operators"] > 0 for other in ("convolution", "grouped", "depthwise")]
    assert sorted(told.values()) == [[False, False, True], [False, True, False], [True, False, False]]


def test_a_tree_goes_left_up_to_its_threshold() -> None:
    assert Forest((STUMP,))(np.array([[1.0], [1.5], [1.6]])).tolist() == [10.0, 10.0, 20.0]
    assert Forest((STUMP, Tree((), (), (), (), (1.0,))))(np.array([[0.0]])).tolist() == [11.0]


@pytest.mark.parametrize(
    "broken",
    [
        {"left": [0]},  # back to itself, for ever
        {"left": [1]},
        {"right": [-3]},
        {"thresholds": []},
        {"leaves": []},
        {"leaves": [float("inf"), 0.0]},
        {"features": [-1]},
    ],
    ids=str,
)
def test_trees_that_lead_nowhere_are_refused(broken: dict[str, object]) -> None:
    with pytest.raises(DecodeError):
        decode(Tree, encode(STUMP) | broken)


@given(st.integers(0, 2**32 - 1))
def test_any_tree_evaluates_row_by_row_as_all_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    children = [[int(rng.integers(node + 1, count)) if node + 1 < count and rng.random() < 0.6 else -1 - int(rng.integers(0, 5))
                 for node in range(count)] for _ in range(2)]  # fmt: skip
    tree = Tree(
        tuple(map(int, rng.integers(0, 3, count))), tuple(map(float, rng.normal(size=count))), *map(tuple, children),
        tuple(map(float, rng.normal(size=5))),
    )  # fmt: skip
    rows = rng.normal(size=(20, 3))

    def alone(row: np.ndarray) -> float:
        at = 0
        while at >= 0:
            at = tree.left[at] if row[tree.features[at]] <= tree.thresholds[at] else tree.right[at]
        return tree.leaves[-1 - at]

    assert Forest((tree,))(rows).tolist() == [alone(row) for row in rows]
    assert Forest((tree, STUMP, tree))(rows).tolist() == pytest.approx(
        [2 * alone(row) + (10.0 if row[0] <= 1.5 else 20.0) for row in rows]
    )


def test_it_learns_who_is_fast_where(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightgbm", exc_type=ImportError)
    samples, model = made_up(), trained()
    monkeypatch.setattr(fitting, "_TREES", 60)  # of each of the models without one network
    errors = left_out(samples, lambda one: one.network)
    assert errors is not None and errors.groups == 6 and errors.samples == len(samples)
    assert (
        errors.mape < 0.15 and errors.rank_correlation > 0.98 and errors.regret < 0.02 and 0.8 < errors.covered <= 1.0
    )
    small = asked(model, product(8, 8, 8), "quick f32", "slow f32", "unheard-of f32")
    large = asked(model, product(1000, 1000, 1000), "quick f32", "slow f32")
    assert small[0] is not None and small[1] is not None and large[0] is not None and large[1] is not None
    assert small[0].ms > small[1].ms and large[0].ms < large[1].ms and small[2] is None
    assert all(one.low_ms < one.ms < one.high_ms for one in (*small[:2], *large) if one is not None)


def test_errors_of_a_model_on_what_it_was_not_trained_on() -> None:
    pytest.importorskip("lightgbm", exc_type=ImportError)
    model, others = trained(), made_up(seed=1)
    errors = errors_of(model, [*others, replace(others[0], implementation="unheard-of f32")])
    assert errors is not None and errors.samples == len(others) and errors.groups == 6 and errors.mape < 0.15
    slower = errors_of(model, [replace(one, ms=2 * one.ms) for one in others])
    assert slower is not None and slower.mape > 0.4 and slower.covered < 0.2 and slower.regret == errors.regret
    assert errors_of(model, [replace(others[0], implementation="unheard-of f32")]) is None


def test_the_trees_say_what_their_library_says() -> None:
    lightgbm = pytest.importorskip("lightgbm", exc_type=ImportError)
    rng = np.random.default_rng(1)
    rows, targets = rng.normal(size=(300, 4)), rng.normal(size=300)
    booster = lightgbm.train(
        dict(fitting._SETTINGS),
        lightgbm.Dataset(rows, targets, params={"verbosity": -1, "max_bin": 255}),
        fitting._TREES,
    )
    np.testing.assert_allclose(fitting._fit_forest(rows, targets)(rows), booster.predict(rows), atol=1e-5)


def test_a_model_is_a_file_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm", exc_type=ImportError)
    model, file = trained(), tmp_path / "model.json"
    file.write_text(json.dumps(encode(model)), encoding="utf-8")
    assert load_costs(file) == model and file.stat().st_size < 2_000_000
    assert asked(load_costs(file), product(64, 64, 64), "quick f32") == asked(model, product(64, 64, 64), "quick f32")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    good = encode(LearnedCosts(NAMES, ("a f32",), Forest((STUMP,)), {"a f32": 1.5}))
    file = tmp_path / "model.json"
    file.write_text(json.dumps(good), encoding="utf-8")
    assert asked(load_costs(file), product(8, 8, 8), "a f32")[0] is not None
    deep = {"trees": [encode(replace(STUMP, features=(10_000,)))]}
    for broken in (
        {"names": ["one"]},
        {"spread": {}},
        {"forest": deep},
        {"format": 2},
        {"spread": {"a f32": 0.5}},
        {"more": 1},
    ):
        file.write_text(json.dumps(good | broken), encoding="utf-8")
        with pytest.raises(BadCostModel):
            load_costs(file)
    for text in ("", "[]", "[" * 100_000, "\x00"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(BadCostModel):
            load_costs(file)
    with pytest.raises(MissingFile):
        load_costs(tmp_path / "none")


def test_the_roofline_stands_for_what_no_model_knows() -> None:
    (found,) = asked(Roofline(), product(64, 64, 64), "unheard-of f32")
    floor = least_ms(product(64, 64, 64), SETTING)
    assert found is not None and found.source == "roofline"
    assert found.low_ms < floor < found.ms < found.high_ms and found.high_ms / found.low_ms >= 50


def test_the_shipped_model_is_small_and_knows_the_backends() -> None:
    found = load_costs(SHIPPED)
    assert SHIPPED.stat().st_size < 1_000_000
    assert {"native", "onnxruntime", "openvino", "torch"} <= {name.split()[0] for name in found.implementations}
    assert {"made", "measurements", "networks", "machines", "backends", "errors by network"} <= set(found.provenance)
    small, large = (asked(found, product(n, n, n), *found.implementations) for n in (32, 1024))
    assert all(one is not None and two is not None and one.ms < two.ms for one, two in zip(small, large, strict=True))


def test_models_that_predict_otherwise_have_other_digests() -> None:
    one = LearnedCosts(NAMES, ("a f32",), Forest((STUMP,)), {"a f32": 1.5})
    others = [replace(one, spread={"a f32": 2.0}), replace(one, forest=Forest((STUMP, STUMP)))]
    assert len({each.digest for each in (one, *others)}) == 3
    assert replace(one, provenance={"made": "today"}).digest == one.digest


def test_too_little_to_learn_from() -> None:
    with pytest.raises(TooFewCosts, match="at least 50"):
        fit_costs(made_up(count=10), {})
    assert left_out(made_up(count=1), lambda one: one.network) is None


def test_a_group_that_is_almost_everything_is_not_left_out() -> None:
    pytest.importorskip("lightgbm")
    errors = left_out(made_up(count=30), lambda one: "a" if one.region == "0" else "b")
    assert errors is not None and errors.groups == 1, "without the others there is too little to learn from"
