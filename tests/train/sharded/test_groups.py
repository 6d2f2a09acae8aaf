"""Plans of two levels on processes: gradients are those of one process, messages reach whom they are for, and what cannot be is
said."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from bricolage.base.codec import decode
from bricolage.device.collective import CallTimes, Ring
from bricolage.device.description import DeviceTables
from bricolage.device.device import Link
from bricolage.errors import BadTrainingSpec
from bricolage.train.pipeline.pipeline_problem import PipelineProblem
from bricolage.train.pipeline.timings import StepTimings
from bricolage.train.run.document import TrainingPlan, read_training_plan, write_plan
from bricolage.train.run.launch_plan import launch_plan
from bricolage.train.run.planning import slowest_link
from bricolage.train.sharded.calls import DispatchTimes
from bricolage.train.sharded.group_pipeline import message_pieces
from bricolage.train.sharded.grouped_plans import described_hosts, grouped_plan
from bricolage.train.sharded.planned_layouts import GroupedPlan, message_layout
from bricolage.train.sharded.program_times import ProgramsJob, price_programs
from bricolage.train.sharded.two_levels import Hosts, place_groups
from tests.train.run.made import plan

FREE = CallTimes(0.0, 1e-9)


def grouped(made: TrainingPlan, memory: float, gbytes: float = 3e-4) -> tuple[GroupedPlan | None, tuple[str, ...]]:
    """Of four devices in two hosts, whose times are not measured: slow ones, so that it pays to divide operators."""
    spec = replace(made.step, devices=DeviceTables(here=4, gbytes=gbytes, host=2))
    work = StepTimings(spec, 4, None, 0.1)
    work.scale = 30.0
    link = Link(("0", "1"), gbytes, 0.0)
    problem = PipelineProblem(made.layers, 4, 8, link, memory, cores=2, ring=Ring.described(4, link))
    return grouped_plan(
        work, problem, DispatchTimes(0.0, 0.0, dict.fromkeys(("reduce", "gather", "scatter", "exchange"), FREE), 4)
    )


@pytest.mark.parametrize(
    ("rows", "senders", "receivers"), [(8, 1, 2), (8, 2, 4), (8, 4, 2), (6, 4, 2), (6, 2, 4), (None, 2, 1)]
)
def test_each_receiver_gets_its_rows_once_from_one_that_has_them(
    rows: int | None, senders: int, receivers: int
) -> None:
    length = 1 if rows is None else rows

    def held(device: int, devices: int) -> set[int]:
        if message_layout(rows, devices) == "R":
            return set(range(length))
        share = length // devices
        return set(range(device * share, (device + 1) * share))

    pieces = message_pieces(rows, senders, receivers)
    for receiver in range(receivers):
        come = [row for piece in pieces if piece.receiver == receiver for row in range(piece.begin, piece.end)]
        assert sorted(come) == sorted(held(receiver, receivers))
    assert all(set(range(piece.begin, piece.end)) <= held(piece.sender, senders) for piece in pieces)


def test_groups_lie_in_hosts() -> None:
    for host, sizes in ((4, (1, 2, 4, 1)), (2, (1, 1, 2, 4))):
        for groups in itertools.permutations(sizes):
            firsts = place_groups(groups)
            devices = [set(range(first, first + size)) for first, size in zip(firsts, groups, strict=True)]
            assert sum(map(len, devices)) == len(set().union(*devices)) == sum(groups)
            for group in devices:
                homes = {device // host for device in group}
                assert len(homes) == 1 or len(group) == host * len(homes)
    across = Hosts(4, 2, Link(("0", "1"), 10.0), Link(("0", "1"), 1.0))
    assert across.message_ms(1e6, range(1), range(1, 2)) == pytest.approx(0.1)
    assert across.message_ms(1e6, range(2), range(2, 4)) == pytest.approx(0.5)
    assert replace(across, shared=True).message_ms(1e6, range(2), range(2, 4)) == pytest.approx(1.0)


def test_stages_on_groups_give_the_gradients_of_one_process(tmp_path: Path) -> None:
    made = plan(4, "perceptrons", layers=2)
    found, notes = grouped(made, 6e9)
    assert found is not None and not notes
    two = next(stage for stage in found.stages if stage.devices == 2)
    assert two.layouts.divides, "it has operators that both of its devices share"
    priced = price_programs(ProgramsJob(made.step, None, found, 0.02, together=True), 4, 1, 1.0, 0.0).grouped
    assert priced is not None and 0.0 < priced.step_ms < found.step_ms, "these devices are faster than the planned ones"
    write_plan(replace(made, chosen=None, runner_ups=(), way="groups", grouped=priced, data_parallel_ms=None), tmp_path)
    assert read_training_plan(tmp_path)[0].grouped == priced
    done = launch_plan(tmp_path, seconds=0.1)
    assert done is not None and not done.failures
    assert done.checks["groups"].accepted and set(done.measured) == {"groups", "single process"}
    assert done.predicted_ms["groups"] == priced.step_ms and done.engines["groups"] == "loop"


def test_what_fits_nowhere_has_a_reason() -> None:
    found, (reason,) = grouped(plan(4, "perceptrons", layers=2), 1e3)
    assert found is None and "no layout was found in which the step fits on 4 devices" in reason


def test_hosts_are_what_faster_links_join() -> None:
    def tables(*links: tuple[str, str, float]) -> DeviceTables:
        devices = [{"name": name, "kind": "cpu", "cores": 1, "scale": 1.0} for name in ("left", "right")]
        data = [{"between": [a, b], "gbytes": speed, "latency_us": 5.0} for a, b, speed in links]
        return decode(DeviceTables, {"count": 2, "device": devices, "link": data})

    inside = (("left", "left", 10.0), ("right", "right", 8.0))
    size, fast, slow = described_hosts(tables(*inside, ("left", "right", 1.0)).described())
    assert (size, fast.gbytes, slow.gbytes) == (2, 8.0, 1.0)
    assert (
        described_hosts(tables(("left", "left", 10.0), ("right", "right", 1.0), ("left", "right", 1.0)).described())[0]
        == 4
    )
    spec = plan(4).step
    with pytest.raises(BadTrainingSpec, match=r"'left.0' and 'right.0' have no link"):
        slowest_link(tables(*inside).described(), spec)


def test_a_host_has_equal_parts_and_a_bandwidth() -> None:
    for wrong in ({"here": 4, "host": 3, "gbytes": 1.0}, {"here": 4, "host": 2}):
        with pytest.raises(ValueError, match="host divides the processes"):
            DeviceTables(**wrong)
