"""Rates of a job on kinds and numbers of devices, from its code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.api.job_estimates import JobOnDevices, estimate_job, write_estimated_rates
from bricolage.cluster.history.rates import read_rates
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.errors import BadOption, BadTrainingSpec, NotWritable
from bricolage.work.cost import Estimate

pytest.importorskip("torch")
SPEC = """
module = "digits.py:mlp"
batch = "digits.py:batch"
batch_size = {size}
"""
FAST = NodeGroup(
    "fast", 2, 2, gflops=20.0, gbytes=1.0, memory_gb=8.0, link_gbytes=0.5, network_gbytes=0.05, start_us=0.0
)
CLUSTER = ClusterSpec((FAST, replace(FAST, kind="slow", gflops=5.0, gbytes=0.1), NodeGroup("odd", 1, 4)))


@pytest.fixture(scope="module", autouse=True)
def few_rounds() -> Iterator[None]:
    """No test asks how well something was timed."""
    from bricolage.train.predict import operator_costs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_costs, "_PASSES", 1)
        patch.setattr(operator_costs, "_ROUNDS", (2, 4))
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "digits.py").write_bytes(Path("examples/demo_train/digits.py").read_bytes())
    for size in (1, 8):
        (tmp_path / f"step{size}.toml").write_text(SPEC.format(size=size))
    return tmp_path


def test_kinds_and_numbers_of_devices(folder: Path) -> None:
    found = {(one.kind, one.devices): one for one in estimate_job(folder / "step8.toml", CLUSTER, most=4, seconds=0.05)}
    assert list(found) == [(kind, count) for kind in CLUSTER.kinds for count in (1, 2, 4)]
    one, two, four = (found["fast", count] for count in (1, 2, 4))
    assert one.step is not None and one.step.source == "roofline" and one.step.low_ms <= one.step.ms <= one.step.high_ms
    assert one.samples_per_s == pytest.approx(8 * one.steps_per_s) and one.fits and one.peak_bytes > 0
    slow = found["slow", 1].step
    assert slow is not None and 3.99 <= slow.ms / one.step.ms <= 10.01, "between the ratios of computing and of moving"
    assert one.steps_per_s >= two.steps_per_s > four.steps_per_s, "links between nodes are slower"
    assert two.samples_per_s > one.samples_per_s
    started = replace(CLUSTER, group=(replace(FAST, start_us=1e6),))
    (late,) = estimate_job(folder / "step8.toml", started, most=1, seconds=0.05)
    assert late.step is not None and late.step.ms > 10_000, "a second for each operator"
    assert all("gflops" in found["odd", count].reason for count in (1, 2, 4))


def test_a_short_run_mends_all_kinds(folder: Path) -> None:
    (folder / "known.toml").write_text(
        "".join(f'[[job]]\nstep = "step{size}.toml"\nrates = {{ odd = 7.0 }}\n' for size in (1, 8))
    )
    found = estimate_job(
        folder / "step1.toml", CLUSTER, measured={"fast": 50.0, "odd": 9.0}, known=folder / "known.toml", most=1,
        seconds=0.05,
    )  # fmt: skip
    assert [one.step.source for one in found if one.step] == ["measured", "calibrated", "measured"]
    assert found[0].steps_per_s == pytest.approx(50.0) and found[2].steps_per_s == pytest.approx(9.0)
    assert 49.9 / 10 <= found[1].steps_per_s <= 50.1 / 4, "as the prediction has the ratio of both kinds"


def test_what_cannot_be_estimated(folder: Path) -> None:
    with pytest.raises(BadOption, match="--measured"):
        estimate_job(folder / "step1.toml", CLUSTER, measured={"best": 1.0})
    (folder / "known.toml").write_text('[[job]]\nstep = "step1.toml"\nrates = {}\n')
    with pytest.raises(BadTrainingSpec):
        estimate_job(folder / "step1.toml", CLUSTER, known=folder / "known.toml")
    (folder / "step1.toml").unlink()


def test_rates_of_what_is_known_and_fits_are_written(tmp_path: Path) -> None:
    step = Estimate(2.0, 1.0, 4.0, "roofline")
    fast = JobOnDevices("fast", 1, step=step, steps_per_s=500.0)
    large = replace(fast, kind="small", peak_bytes=9, memory_bytes=8)
    nothing = JobOnDevices("odd", 1, reason="nothing is known of it there")
    assert write_estimated_rates(tmp_path / "rates.csv", "bert", [fast, large, nothing]) == 1
    assert read_rates(tmp_path / "rates.csv", ["fast"]).of("bert", 1) == {"fast": 500.0}
    with pytest.raises(BadOption, match="Nothing is known of the job"):
        write_estimated_rates(tmp_path / "rates.csv", "bert", [large, nothing])
    with pytest.raises(NotWritable):
        write_estimated_rates(tmp_path / "none" / "rates.csv", "bert", [fast])
