from __future__ import annotations

import dataclasses

import pytest
import report_samples as samples

from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.decision_record import ModelUse, Proof
from bricolage.plan.disturbance_record import Disturbance
from bricolage.plan.field_types import DecidedBy
from bricolage.report import explain, html, tables, words
from tests.plan.bucket_facts import alter_bucket


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0 ms"), (0.00123, "1.23 µs"), (0.0999, "0.10 ms"), (4.827, "4.83 ms"), (12.34, "12.3 ms"),
     (99.97, "100 ms"), (456.7, "457 ms"), (1234.0, "1.23 s")],
)  # fmt: skip
def test_milliseconds(value: float | None, text: str) -> None:
    assert words.milliseconds(value) == text


def test_what_answers_were_compared_with_is_said_where_it_is_not_float64() -> None:
    bucket = samples.small()[0].buckets[0]
    assert words.reference_lines(bucket) == []
    told = words.reference_lines(alter_bucket(bucket, without_float64=("SampleOp", "Foo")))
    assert told == ["compared with ONNX Runtime without its optimisations; no float64 reference for SampleOp, Foo"]


def test_interval_has_one_unit() -> None:
    assert words.interval((0.98, 1.02)) == "0.98-1.02 ms"
    assert words.interval((0.08, 0.12)) == "0.08-0.12 ms"


@pytest.mark.parametrize(("value", "text"), [(0.04, "0.0 s"), (12.4, "12 s"), (59.7, "1 min 0 s"), (185, "3 min 5 s")])
def test_seconds(value: float, text: str) -> None:
    assert words.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(512, "512 B"), (4096, "4 KiB"), (1536, "1.5 KiB"), (3 << 30, "3 GiB")])
def test_size(value: int, text: str) -> None:
    assert words.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.0000"),
        (0.12345, "0.1235"),
        (2.5e-7, "2.500e-07"),
        (3e30, "3.000e+30"),
        (float("nan"), "nan"),
    ],
)
def test_a_loss_is_never_wide(value: float | None, text: str) -> None:
    assert words.loss(value) == text.replace("–", words.MISSING)
    assert len(words.loss(-1.7e308)) <= 11


def test_ranked_puts_wrong_and_failed_ones_last() -> None:
    plan, _ = samples.small()
    names = [c.name for c in words.rank_contestants(plan.buckets[0])]
    assert names[0] == "plan exact"
    assert names[-2:] == ["inductor bf16", "iree f32"]


def test_match() -> None:
    plan, _ = samples.small()
    marks = {c.name: words.match(c) for c in plan.buckets[0].race.contestants}
    assert (marks["plan exact"], marks["inductor bf16"], marks["iree f32"]) == ("yes", "no", "-")


def test_a_proof_says_how_far_the_optimum_may_be() -> None:
    plan, _ = samples.small()
    bucket = plan.buckets[0]
    assert words.proof(bucket) == ""
    proof = Proof("variable elimination", True, 2.0, 2.0, 300, 0, 0.5)
    said = words.proof(alter_bucket(bucket, proof=proof))
    assert "2.00 ms, optimal" in said and "all 300 costs measured" in said
    guessed = dataclasses.replace(proof, measured=30, predicted=70, measured_share=0.4)
    said = words.proof(alter_bucket(bucket, proof=guessed))
    assert "optimal" not in said and "of predicted costs, 40% of them by weight measured" in said
    said = words.proof(alter_bucket(bucket, proof=dataclasses.replace(proof, optimal=False, lower_bound_ms=1.6)))
    assert "at most 25.0 % above the optimum (bound 1.60 ms)" in said


def test_what_a_model_of_costs_decided_is_said() -> None:
    plan, _ = samples.small()
    bucket = plan.buckets[0]
    assert words.predictions(bucket) == ""
    use = ModelUse("9 measurements", 12, 30, ("iree f32",))
    said = words.predictions(alter_bucket(bucket, model_use=use))
    assert "9 measurements" in said and "12 of 30 region measurements" in said and "no data on iree f32" in said
    said = words.predictions(alter_bucket(bucket, model_use=dataclasses.replace(use, model="")))
    assert "no cost model" in said and "roofline" in said
    said = words.predictions(alter_bucket(bucket, model_use=dataclasses.replace(use, left_out=0)))
    assert "ordered the measurements" in said and "region" not in said


def test_what_a_wider_tolerance_takes_is_said_where_it_is_faster() -> None:
    plan, _ = samples.small()
    bucket = plan.buckets[0]
    fast = dataclasses.replace(
        bucket.race.contestants[-2], dropped_ms=0.013, error=6.8e-6, accepted=False, name="onnxruntime f32"
    )
    others = [one for one in bucket.race.contestants if one.name != "onnxruntime f32"]
    shown = alter_bucket(bucket, contestants=(*others, fast))
    assert words.dropped_for_accuracy(shown) == ["onnxruntime f32: 13.0 µs at 6.8e-06; --tolerance 1e-05 accepts it"]
    slow = dataclasses.replace(fast, dropped_ms=1e6)
    assert words.dropped_for_accuracy(alter_bucket(shown, contestants=(*others, slow))) == []


BUSY = Disturbance(others=0.48, stolen=0.0, pressure=0.6, samples=120, disturbed=40, repeated=31)


def test_a_quiet_machine_is_not_worth_a_word() -> None:
    bucket = samples.small()[0].buckets[0]
    assert words.disturbance(bucket) == ""
    little = Disturbance(others=0.03, pressure=0.4, samples=1000, disturbed=9, repeated=9)
    assert words.disturbance(alter_bucket(bucket, disturbance=little)) == ""


def test_time_that_was_given_back_is_told_though_nothing_that_was_timed_was_disturbed() -> None:
    bucket = alter_bucket(samples.small()[0].buckets[0], seconds={"baselines": 20.0, "race": 10.0})
    told = words.disturbance(alter_bucket(bucket, disturbance=Disturbance(given_back_s=12.3)))
    assert "12 s that others took were added to the budget" in told
    assert words.disturbance(alter_bucket(bucket, disturbance=Disturbance(given_back_s=1.0))) == ""


def test_a_provisional_decision_says_why_and_what_to_do() -> None:
    bucket = samples.small()[0].buckets[0]
    assert words.provisional(bucket) == ""
    late = AgendaItem("kernel tuning", "no time", "the test says so", 12.0, gain=0.63)
    shown = alter_bucket(bucket, agenda=(late,), provisional=("no time", "load"))
    line = words.provisional(shown)
    assert "there was no time for 1 item of its agenda and it was made under load" in line and "--provisional" in line
    flat = " ".join(tables.render_text(tables.decision(shown, 100)).split())
    assert flat.endswith(line), "the last lines of the table say so"
    assert line in " ".join(tables.render_text(explain.overview(shown, None)).split())
    assert "no time" not in words.provisional(alter_bucket(shown, provisional=("load",)))


@pytest.mark.parametrize(
    ("decided_by", "told"),
    [
        ("race", "the race was still conclusive"),
        ("race and prior evidence", "the race was inconclusive; earlier measurements were included"),
        ("prior evidence", "earlier measurements decided"),
    ],
)
def test_a_busy_machine_and_what_it_did_stand_in_one_line(decided_by: DecidedBy, told: str) -> None:
    plan, _ = samples.small()
    bucket = alter_bucket(plan.buckets[0], disturbance=BUSY, decided_by=decided_by)
    line = words.disturbance(bucket)
    assert line == (
        f"machine busy: other processes took 48.0 % of the cores; 40 of 120 samples disturbed, 31 repeated; {told}"
    )
    assert line in tables.render_text(tables.decision(bucket, 200), 200)
    assert line in tables.render_text(explain.overview(bucket, None), 200)
    assert line in html.render(dataclasses.replace(plan, buckets=(bucket,)), [None])
    stolen = alter_bucket(bucket, disturbance=dataclasses.replace(BUSY, others=0.0, stolen=0.2))
    assert "busy: the hypervisor gave 20.0 % of the cores to others; 40 of" in words.disturbance(stolen)
