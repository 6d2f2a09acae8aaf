from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.costs.models.fusion_gain import FusionGain, Merged, fit_fusion_gain
from bricolage.work.implementation import Implementation, KernelConfig

E = Implementation("e")
costs = st.lists(st.floats(0.001, 100), min_size=2, max_size=12)


@given(st.floats(0, 1), costs)
def test_merging_saves_all_entries_but_one(entry: float, marginal: list[float]) -> None:
    model = fit_fusion_gain({E: entry}, [])
    alone = [entry + b for b in marginal]
    assert model.predict(E, alone) == pytest.approx(entry + sum(marginal))
    assert model.predict(E, alone[:1]) == alone[0]


@settings(suppress_health_check=[HealthCheck.too_slow])  # drawing 40 regions takes long on a busy machine
@given(st.floats(0.1, 1.4), st.floats(0, 0.5), st.lists(costs, min_size=30, max_size=40))
def test_the_gain_is_found_from_merged_regions(gain: float, entry: float, regions: list[list[float]]) -> None:
    samples = [Merged(E, tuple(entry + b for b in marginal), entry + gain * sum(marginal)) for marginal in regions]
    model = fit_fusion_gain({E: entry}, samples)
    found = model.gain[E]
    assert min(gain, 1.0) - 1e-9 <= found <= max(gain, 1.0) + 1e-9  # the prior pulls towards 1
    if all(sum(marginal) > entry for marginal in regions):
        assert found == pytest.approx(gain, abs=0.15)


def test_one_outlier_does_not_decide() -> None:
    model = fit_fusion_gain({E: 0.1}, [Merged(E, (1.1, 1.1), 0.1 + 0.2)])
    assert 0.05 < model.gain[E] < 1.0


@given(costs, st.floats(0, 10), st.floats(0.05, 1.5))
def test_predictions_never_fall_below_the_cheapest_entry(parts: list[float], entry: float, gain: float) -> None:
    model = FusionGain({E: entry}, {E: gain})
    predicted = model.predict(E, parts)
    assert predicted >= min(entry, *parts) - 1e-12
    assert predicted <= max(1.0, gain) * sum(parts) + 1e-9


def test_an_unknown_configuration_has_the_fixed_cost_of_its_backend_on_that_device() -> None:
    bf16, there = Implementation("e", KernelConfig("bf16")), Implementation("e", device="cpu:0-1")
    model = FusionGain({E: 0.2, bf16: 0.3, there: 0.1})
    assert model.entry(Implementation("e", KernelConfig("f16"))) == 0.2
    assert model.entry(Implementation("e", KernelConfig("f16"), "cpu:0-1")) == 0.1
    assert model.entry(Implementation("other")) == 0.0
    with pytest.raises(ValueError):
        model.predict(E, [])
