"""What a decision says first: how much faster than the best other tool, and than the best single configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import report_samples as samples

from bricolage.base.codec import decode, encode
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.race_outcome import Contestant
from bricolage.report import headline
from bricolage.work.implementation import Implementation, KernelConfig
from tests.plan.bucket_facts import alter_bucket


def single(name: str, ms: float, over: float | None = None, **more: Any) -> Contestant:
    backend, config = name.split()
    one = Contestant(name, "baseline", ms, (0.9 * ms, 1.1 * ms), 1e-7, True, **more)
    one = dataclasses.replace(one, implementation=Implementation(backend, KernelConfig(config)))
    return one if over is None else dataclasses.replace(one, over_other=over, over_other_ci=(over - 0.03, over + 0.03))


OPENVINO, ORT = single("openvino f32", 0.64), single("onnxruntime f32", 1.22)
NATIVE = single("native f32", 0.37, 1.73)


def bucket(*contestants: Contestant, chosen: str, **more: Any) -> Bucket:
    """What `chosen` ships from, the best single configuration being the fastest baseline."""
    base = samples.small(gain=False)[0].buckets[0]
    best = min((c for c in contestants if c.kind == "baseline" and c.median_ms), key=lambda c: c.median_ms or 0.0)
    facts = {
        "contestants": contestants,
        "best_baseline": best.name,
        "chosen": chosen,
        "best_other": "openvino f32",
        **more,
    }
    return alter_bucket(base, **facts)


def test_our_engine_alone_is_a_success_told_as_one() -> None:
    shown = bucket(NATIVE, OPENVINO, ORT, chosen="native f32")
    assert headline.verdict(shown) == (
        "native f32 (0.37 ms) is 1.73 [1.70, 1.76] times as fast as openvino f32, the best other tool here. "
        "No plan beats it, so it ships alone."
    )
    assert headline.good_news(shown) and not headline.gains(shown), "a gain is a plan's"
    assert headline.hero(shown) == "1.73×"
    assert headline.no_gain_sentence(dataclasses.replace(samples.small()[0], buckets=(shown,))) == (
        "native f32 is 1.73 [1.70, 1.76] times as fast as openvino f32, the best other tool here; "
        "no plan beats the best single configuration"
    )


def test_a_plan_has_both_figures() -> None:
    over = {"over_other": 1.9, "over_other_ci": (1.8, 2.0)}
    plan = Contestant("mixed", "plan", 0.34, (0.33, 0.35), 1e-7, True, regions=2, **over)  # type: ignore[arg-type]
    facts = {"speedup_vs_baseline": 1.09, "speedup_ci": (1.05, 1.12), "significant": True}
    shown = bucket(plan, NATIVE, OPENVINO, chosen="mixed", **facts)
    assert headline.verdict(shown) == (
        "mixed (0.34 ms) is 1.90 [1.80, 2.00] times as fast as openvino f32, the best other tool here. "
        "It is 1.09 [1.05, 1.12] times as fast as native f32, the best single configuration."
    )
    assert headline.gains(shown) and headline.gains(shown, 9.0) and not headline.gains(shown, 10.0)
    told = headline.no_gain_sentence(dataclasses.replace(samples.small()[0], buckets=(shown,)), 10.0)
    assert told.endswith("no plan beats the best single configuration by 10 %")
    unsure = alter_bucket(shown, significant=False, decided_by="race and prior evidence")
    assert headline.verdict(unsure).endswith("That is not significant; all evidence together decided.")


def test_where_both_are_one_it_is_said_once() -> None:
    text = headline.verdict(samples.small()[0].buckets[0])
    assert text.count("openvino f32") == 1 and text.endswith(
        "the best other tool here and the best single configuration."
    )


def test_another_tool_that_is_fastest_ships_and_is_named_so() -> None:
    shown = bucket(OPENVINO, single("native f32", 0.7, 0.91), chosen="openvino f32")
    assert (
        headline.verdict(shown)
        == "openvino f32 (0.64 ms) is the best other tool here, and neither our engine nor a plan beats it."
    )
    assert not headline.good_news(shown)
    told = headline.no_gain_sentence(dataclasses.replace(samples.small()[0], buckets=(shown,)))
    assert told == "no plan beats the best single configuration"


def test_where_no_other_tool_ran_that_is_said() -> None:
    failed = dataclasses.replace(OPENVINO, median_ms=None, ci_ms=None, accepted=False)
    shown = bucket(dataclasses.replace(NATIVE, over_other=None), failed, chosen="native f32", best_other="")
    assert headline.verdict(shown) == (
        "native f32 (0.37 ms) is the fastest here. No other tool was timed on this model. "
        "No plan beats it, so it ships alone."
    )
    assert headline.headline_json(shown)["best_other"] is headline.headline_json(shown)["speedup_vs_other"] is None
    assert not headline.good_news(shown)


def test_a_gain_within_the_noise_is_called_so() -> None:
    shown = bucket(single("native f32", 0.63, 1.01), OPENVINO, chosen="native f32")
    assert "1.01 [0.98, 1.04] times as fast as openvino f32, the best other tool here, which is within the noise." in (
        headline.verdict(shown)
    )
    assert not headline.good_news(shown) and headline.hero(shown) == "0.63 ms"


@pytest.mark.parametrize(
    "name", [pytest.param("native f32", id="our engine"), pytest.param("openvino tuned", id="kernels that we tuned")]
)
def test_what_is_ours_is_no_other_tool(name: str) -> None:
    one = single(name, 0.1)
    if name.endswith("tuned"):
        config = KernelConfig("f32").tuned({"a": 1})
        one = dataclasses.replace(one, implementation=Implementation("openvino", config))
    plan = Contestant("openvino+onnxruntime plan", "plan", 0.2, (0.2, 0.2), 1e-7, True)
    assert not one.other_tool and not plan.other_tool and OPENVINO.other_tool
    assert bucket(one, plan, ORT, OPENVINO, chosen=name, best_other="").race.other == OPENVINO


def test_plans_of_before_load_and_speak_of_separate_measurements() -> None:
    """Older plans hold neither the best other tool nor ratios to it."""
    data = encode(
        dataclasses.replace(samples.small()[0], buckets=(bucket(NATIVE, OPENVINO, ORT, chosen="native f32"),))
    )
    (old,) = data["buckets"]
    del old["best_other"]
    for one in old["contestants"]:
        del one["over_other"], one["over_other_ci"]
    plan = decode(Plan, data)
    assert "is about 1.73 times as fast as openvino f32, the best other tool here." in headline.verdict(plan.buckets[0])
    assert headline.headline_json(plan.buckets[0])["speedup_vs_other_ci"] is None
    assert not headline.good_news(plan.buckets[0]), "that is not sure"


def test_without_a_race_the_verdict_says_so() -> None:
    shown = bucket(NATIVE, OPENVINO, chosen="native f32", decided_by="prior evidence")
    assert headline.verdict(shown).endswith("No race was held: earlier measurements decided.")


def test_a_winner_that_did_not_race_is_only_named() -> None:
    shown = alter_bucket(bucket(NATIVE, OPENVINO, chosen="native f32"), contestants=(), chosen="torch f64")
    assert headline.verdict(shown) == "shipping torch f64, which was not timed" and headline.hero(shown) == "–"
    untimed = dataclasses.replace(NATIVE, median_ms=None, ci_ms=None)
    assert (
        headline.verdict(bucket(untimed, OPENVINO, chosen="native f32")) == "shipping native f32, which was not timed"
    )


def test_a_comparison_tells_how_the_plan_stands() -> None:
    plan = dataclasses.replace(
        NATIVE, name="bricolage", kind="plan", implementation=None, speedup=0.998, speedup_ci=(0.98, 1.01)
    )
    shown = bucket(plan, NATIVE, OPENVINO, chosen="native f32")
    assert headline.race_standing(shown) == (
        "bricolage (0.37 ms) is 1.73 [1.70, 1.76] times as fast as openvino f32, the best other tool here. "
        "It is 1.00 [0.98, 1.01] times as fast as native f32, the best single configuration, which is within the noise."
    )
    alone = bucket(NATIVE, OPENVINO, chosen="native f32")
    assert headline.race_standing(alone).startswith("fastest: native f32 (0.37 ms) is 1.73 [1.70, 1.76] times as fast")


def test_of_several_shapes_the_best_gain_leads() -> None:
    small = alter_bucket(bucket(NATIVE, OPENVINO, chosen="native f32"), sizes={"batch": 1})
    large = alter_bucket(bucket(single("native f32", 0.6, 1.2), OPENVINO, chosen="native f32"), sizes={"batch": 8})
    told = headline.no_gain_sentence(dataclasses.replace(samples.small()[0], buckets=(large, small)))
    assert told.startswith(
        "native f32 is 1.73 [1.70, 1.76] times as fast as openvino f32, the best other tool here (batch=1); "
    )
    assert told.endswith("for any of these shapes")
