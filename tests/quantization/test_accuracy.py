"""Accuracy that is asked for by a measure: operators stay float until it holds, those first that cost most for what they save."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.api.quantize import quantize
from bricolage.errors import BadOption, MetricFails, NothingToQuantise, UnusableCalibration
from bricolage.quantization.judge import Judge, SwitchedModel
from bricolage.quantization.products import WeightedProduct
from bricolage.quantization.sensitivity import Sensitivity, nothing_left
from tests.quantization.networks import CONVOLUTIONS, PRODUCTS, data, model_of

HARD_SWISH = (
    "float[1,4,9,9] x",
    "c = Conv(x, u, b) h = HardSwish(c) d = Conv(h, v) y = Conv(d, w)",
    {"u": (8, 4, 1, 1), "b": (8,), "v": (8, 8, 3, 3), "w": (64, 8, 1, 1)},
)


def test_operators_stay_float_until_a_measure_holds() -> None:
    model, samples = model_of(*CONVOLUTIONS), data(1, 3, 12, 12)
    plain = quantize(model, samples, accuracy="sqnr=1")
    assert plain.report.reached is not None and plain.report.reached.met and not plain.report.kept_float
    wanted = plain.report.reached.value + 3.0
    found = quantize(model, samples, accuracy=f"sqnr={wanted}")
    assert found.report.reached is not None and found.report.reached.value >= wanted
    assert found.report.kept_float and found.report.quantised
    assert all(f"SQNR (dB) of at least {wanted:.4g}" in one.reason for one in found.report.kept_float)
    with pytest.raises(NothingToQuantise, match="misses an error of at most 0.1 and SQNR"):
        quantize(model, samples, accuracy="sqnr=290")


def test_a_function_reads_what_is_no_input_of_samples_that_are_given_to_judge(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text(
        "def right(outputs, reference, samples):\n"
        "    assert len(samples) == 5 and all(one['label'].shape == (1,) for one in samples)\n"
        "    return sum(float(one['label'][0]) for one in samples)\n"
        "def broken(outputs, reference):\n"
        "    raise ValueError('no such thing')\n"
    )
    model, samples = model_of(*PRODUCTS), data(3, 5, 16)
    judged = {"x": np.stack([one["x"] for one in data(3, 5, 16, count=5)]), "label": np.arange(5.0)}
    found = quantize(model, samples, evaluate=judged, accuracy=f"{tmp_path}/metric.py:right>=10")
    assert found.report.held_back == 5 and found.report.calibrated_on == len(samples)
    assert found.report.reached is not None and found.report.reached.value == 10.0
    listed = [{"x": x, "label": np.asarray([label])} for x, label in zip(judged["x"], judged["label"], strict=True)]
    same = quantize(model, samples, evaluate=listed, accuracy=f"{tmp_path}/metric.py:right>=10")
    assert same.report == found.report
    with pytest.raises(UnusableCalibration, match="'label' has not as many rows"):
        quantize(model, samples, evaluate=judged | {"label": np.arange(4.0)}, accuracy=f"{tmp_path}/metric.py:right>=9")
    with pytest.raises(UnusableCalibration, match="'x' of sample 0 to judge by holds NaN"):
        quantize(model, samples, evaluate={"x": judged["x"] * np.float32(np.nan)})
    with pytest.raises(MetricFails, match="no such thing"):
        quantize(model, samples, accuracy=f"{tmp_path}/metric.py:broken>=1")


def test_what_cannot_be_asked_for_is_refused() -> None:
    model = model_of(*PRODUCTS)
    with pytest.raises(BadOption, match="without data"):
        quantize(model, weights="int8", accuracy="cosine=0.9")
    with pytest.raises(BadOption, match="--evaluate"):
        quantize(model, weights="int8", evaluate=data(3, 5, 16))
    with pytest.raises(BadOption, match="--max-error"):
        quantize(model, data(3, 5, 16), accuracy="relative")
    with pytest.raises(BadOption, match="--accuracy"):
        quantize(model, data(3, 5, 16), accuracy="top5=0.9")


def test_results_in_front_of_functions_stay_float_where_that_is_all_it_takes() -> None:
    """All three products in integers, one of them at half of its work, are more than any two."""
    model, samples = model_of(*HARD_SWISH), data(1, 4, 9, 9)
    bytes_alone, float_results = (
        quantize(model, samples, float_results=form, max_error=None).report.error or 0.0 for form in (False, True)
    )
    assert float_results < bytes_alone
    limit = (bytes_alone + float_results) / 2
    found = quantize(model, samples, max_error=limit)
    assert len(found.report.quantised) == 3 and any("--no-float-results" in one for one in found.report.warnings)
    forced = quantize(model, samples, max_error=limit, float_results=False)
    assert len(forced.report.quantised) < 3 and not any("float-results" in one for one in forced.report.warnings)


class Costs(Judge):
    """Errors as a test says: those of products add up in squares; each product alone has its own."""

    def __init__(self, errors: dict[str, float], limit: float) -> None:
        self._errors, self._limit, self._demand = errors, limit, None
        self.asked_of: list[frozenset[str]] = []

    def _found(self, on: frozenset[str]) -> float:
        return float(np.sqrt(sum(self._errors[one] ** 2 for one in on)))

    def error(self, model: object, on: object, most: int | None = None) -> float:
        del model, most
        return self._found(frozenset(on))  # type: ignore[call-overload]

    def of_switched(self, model: object, on: object) -> object:  # type: ignore[override]
        del model
        self.asked_of.append(frozenset(on))  # type: ignore[call-overload]
        return self._verdict(self.asked_of[-1])

    def of(self, model: object) -> object:  # type: ignore[override]
        return self._verdict(frozenset(model))  # type: ignore[call-overload]

    def _verdict(self, on: frozenset[str]) -> Verdict:
        error = self._found(on)
        return Verdict(error <= (self._limit or 0.0), error)


@dataclass(frozen=True)
class Verdict:
    """As much of a judgement as the search reads."""

    met: bool
    largest: float


class AnyCosts(Costs):
    """Errors of choices have nothing to do with each other; some of the samples see the half of them."""

    def _found(self, on: frozenset[str]) -> float:
        return self._errors[min(on)] if len(on) == 1 else random.Random(repr(sorted(on))).random()

    def error(self, model: object, on: object, most: int | None = None) -> float:
        return super().error(model, on, most) / 2


def product(name: str) -> WeightedProduct:
    return WeightedProduct(name, name, "Conv", "x", "w", None, name)


def search_of(judge: Costs, errors: dict[str, float], work: dict[str, float]) -> Sensitivity:
    products = [product(name) for name in errors]
    switched = SwitchedModel.__new__(SwitchedModel)
    return Sensitivity(switched, products, judge, work, lambda taking: [one.output for one in taking])  # type: ignore[arg-type,return-value]


def searched(errors: dict[str, float], work: dict[str, float], limit: float, **asked: float) -> list[str] | None:
    """What stays float."""
    found = search_of(Costs(errors, limit), errors, work).kept_float(**asked)  # type: ignore[arg-type]
    return None if found is None else sorted(found.kept.reasons)


def test_a_large_product_stays_in_integers_before_small_ones_of_the_same_error() -> None:
    errors = {"large": 0.09, "small": 0.08, "tiny": 0.01}
    assert searched(errors, {"large": 1000.0, "small": 1.0, "tiny": 1.0}, 0.1) == ["small"]
    assert searched(errors, dict.fromkeys(errors, 1.0), 0.1) == ["large"]
    assert searched(errors, dict.fromkeys(errors, 1.0), 0.2) == []


def test_a_search_ends_where_too_little_is_left() -> None:
    errors, work = {"a": 0.3, "b": 0.2, "c": 0.01}, {"a": 4.0, "b": 2.0, "c": 1.0}
    assert searched(errors, work, 0.1) == ["a", "b"]
    assert searched(errors, work, 0.1, least=1.0) is None
    assert searched(errors, work, 0.1, most=0) is None
    assert searched(errors, work, 0.001) is None


def test_few_of_many_are_found() -> None:
    """Of 54, of which 53, 52 and so on are too many: numbers of floats once ended at 42."""
    for few in range(1, 14):
        errors = {f"v{number:02}": 0.01 if number < few else 1.0 for number in range(54)}
        kept = searched(errors, dict.fromkeys(errors, 1.0), 0.01 * np.sqrt(few) * 1.001)
        assert kept is not None and 54 - few <= len(kept) <= 53


@given(
    errors=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12),
    work=st.lists(st.floats(0.0, 9.0), min_size=12, max_size=12),
    limit=st.floats(0.01, 0.3),
)
def test_a_refusal_has_tried_each_by_itself(errors: list[float], work: list[float], limit: float) -> None:
    names = [f"v{number}" for number in range(len(errors))]
    by_name = dict(zip(names, errors, strict=True))
    search = search_of(judge := AnyCosts(by_name, limit), by_name, dict(zip(names, work, strict=False)))
    found = search.kept_float()
    if found is not None:
        assert found.judged.met
        return
    assert min(errors) > limit
    assert {frozenset([name]) for name in names} <= search.trials.keys() and frozenset(names) in search.trials
    sentence = nothing_left(judge, [search]).sentence
    assert f"with all {len(names)} in integers" in sentence and "each operator by itself" in sentence
    single = search.least_single()
    assert single is not None and f"{single[1]:.2g} with the best one alone, '{single[0]}'" in sentence


@pytest.mark.parametrize("network", [CONVOLUTIONS, PRODUCTS], ids=["convolutions", "products"])
def test_what_is_refused_misses_with_each_alone(network: tuple[str, str, dict[str, object]]) -> None:
    """On the networks themselves, each product alone asked for, and none at the limit below the best of them."""
    shape = (1, 3, 12, 12) if network is CONVOLUTIONS else (2, 5, 16)
    model, samples = model_of(*network), data(*shape)
    plain = {"smooth": 0.0, "equalise": False, "outliers": False, "correct_bias": False, "float_results": False}
    names = [one.name for one in quantize(model, samples, max_error=None, **plain).report.operators]
    alone = {}
    for name in names:
        rest = tuple(other for other in names if other != name)
        alone[name] = quantize(model, samples, max_error=None, keep_float=rest, **plain).report.error
    least = min(error for error in alone.values() if error is not None)
    with pytest.raises(NothingToQuantise, match=f"with all {len(names)} in integers and .* with the best one alone"):
        quantize(model, samples, max_error=least * 0.98, **plain)
    found = quantize(model, samples, max_error=least * 1.02, **plain)
    assert found.report.quantised and found.report.error is not None and found.report.error <= least * 1.02
