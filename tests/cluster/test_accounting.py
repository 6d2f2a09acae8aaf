"""What Slurm's accounting says of jobs: who completed, who is not over, who started together; generated histories."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.estimates import Rolling
from bricolage.cluster.history.read import read_history
from bricolage.cluster.history.records import JobHistory
from bricolage.cluster.history.states import ending, state_word
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.run_times import FEWEST, advised_limit_s, run_time
from bricolage.errors import BadHistory, UnknownHistory
from tests.cluster.making import replay

TWO = ClusterSpec((NodeGroup("v100", 2, 4), NodeGroup("a100", 1, 8)))
HEAD = "JobID|JobName|User|Partition|Submit|Elapsed|Timelimit|State|AllocTRES"
CUT = [
    "FAILED", "CANCELLED by 1000", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "DEADLINE", "BOOT_FAIL",
    "REVOKED", "LAUNCH_FAILED", "a word of a later Slurm",
]  # fmt: skip
NOT_OVER = ["RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "COMPLETING", "STOPPED", "REQUEUE_HOLD", "SIGNALING"]


def line(
    name: str, elapsed: int = 600, state: str = "COMPLETED", gpus: str = "gres/gpu=1", submit: str = "12:00:00"
) -> str:
    span = f"{elapsed // 86400}-{elapsed // 3600 % 24:02d}:{elapsed // 60 % 60:02d}:{elapsed % 60:02d}"
    return f"{name}|train|ann|gpu|2024-03-05T{submit}|{span}|12:00:00|{state}|cpu=4,{gpus}"


def read(folder: Path, *lines: str, cluster: ClusterSpec = TWO) -> JobHistory:
    path = folder / "past.txt"
    path.write_text("\n".join([HEAD, *lines]) + "\n", encoding="utf-8")
    return read_history(path, cluster)


def learnt(found: JobHistory) -> Rolling:
    rolling = Rolling()
    for job in (*found.jobs, *found.unfinished):
        rolling.learn_from(job, job.kinds[0])
    return rolling


states = st.sampled_from(["COMPLETED"] * 4 + CUT + NOT_OVER)
runs = st.lists(st.tuples(st.integers(1, 90_000), states), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(some=runs, own_limit=st.integers(1, 1500), risk=st.sampled_from((0.05, 0.3)))
def test_only_runs_that_completed_lower_a_limit(
    tmp_path_factory: pytest.TempPathFactory, some: list[tuple[int, str]], own_limit: int, risk: float
) -> None:
    """With fewer than three of them it stays; it is never lowered to what a run of another state outlasted; and what a prediction
    goes by are completed runs alone."""
    lines = [line(str(number), seconds, state) for number, (seconds, state) in enumerate(some)]
    completed = [float(seconds) for seconds, state in some if state == "COMPLETED"]
    others = [float(seconds) for seconds, state in some if state != "COMPLETED"]
    try:
        found = read(tmp_path_factory.mktemp("past"), *lines)
    except UnknownHistory:
        assert all(ending(state_word(state)) == "not over" for _, state in some)
        return
    rolling = learnt(found)
    own = 60.0 * own_limit
    limit = advised_limit_s(rolling, "ann", "train", 1, 0.0, own, risk)
    assert limit <= own
    if len(completed) < FEWEST:
        assert limit == own
    if limit < own:
        assert limit > max(others, default=0.0)
        cut = sum(one > limit for one in completed)
        assert cut <= risk * (len(completed) + 1), "few of the runs would have met it"
    believed = run_time(rolling, "ann", "train", 1, 0.0, math.inf)
    assert sorted(believed.runs) == sorted(completed) and believed.cut_runs == len(others)
    not_over = sum(ending(state_word(state)) == "not over" for _, state in some)
    assert len(found.jobs) == len(some) - not_over == len(completed) + sum(found.not_completed.values())
    assert found.left_out == ({"jobs are not over: they wait, run or are suspended": not_over} if not_over else {})


def test_a_failed_job_is_load_and_teaches_no_policy(tmp_path: Path) -> None:
    found = read(tmp_path, line("1", 700, "FAILED", "gres/gpu=8"), line("2", 60, gpus="gres/gpu=8", submit="12:00:01"))
    ends = {
        one.job.name: one.finish_s
        for one in replay("fifo", list(found.jobs), ClusterSpec((NodeGroup("v100", 2, 4),))).states
    }
    assert ends == {"1": 700.0, "2": 760.0}
    assert learnt(found).seconds("ann", "train", 8) == 60.0
    assert found.notes() == [
        "1 of 2 jobs did not complete (1 FAILED): they hold devices as long as they did, and no run time is learnt from them"
    ]


def test_without_states_nothing_is_known_to_have_completed(tmp_path: Path) -> None:
    path = tmp_path / "past.txt"
    path.write_text(
        "JobID|JobName|User|Submit|Elapsed|AllocTRES\n"
        + "".join(f"{n}|t|ann|{n}|00:10:00|gres/gpu=1\n" for n in range(9))
    )
    found = read_history(path, TWO)
    assert found.not_completed == {"without a state": 9}
    assert advised_limit_s(learnt(found), "ann", "t", 1, 0.0, 9e4, 0.05) == 9e4


def test_other_tables_have_states_too(tmp_path: Path) -> None:
    path = tmp_path / "helios.csv"
    rows = "7,u1,vc2,1,4,COMPLETED,2020-04-01 00:00:03,164\n8,u1,vc2,1,4,FAILED,2020-04-01 00:00:04,9\n"
    path.write_text("job_id,user,vc,gpu_num,cpu_num,state,submit_time,duration\n" + rows)
    assert [job.completed for job in read_history(path, TWO).jobs] == [True, False]
    path.write_text("name,submit,duration,devices,state\na,0,5,1,RUNNING\nb,0,6,1,COMPLETED\nc,0,7,1,TIMEOUT\n")
    found = read_history(path, TWO)
    assert [(job.name, job.completed) for job in found.jobs] == [("b", True), ("c", False)]
    assert [job.name for job in found.unfinished] == ["a"] and found.not_completed == {"TIMEOUT": 1}


def test_a_requeued_job_is_one_job(tmp_path: Path) -> None:
    """`--duplicates` has a line for each time that it ran; runs before the last say that it takes at least so long."""
    lines = [
        line("5", 3000, "PREEMPTED"),
        line("5", 9000, "NODE_FAIL", submit="13:00:00"),
        line("5", 600, submit="16:00:00"),
    ]
    found = read(tmp_path, *lines, line("6", submit="12:00:05"))
    assert [(job.name, job.submit_s, job.steps, job.completed) for job in found.jobs] == [
        ("5", 0.0, 600.0, True),
        ("6", 5.0, 600.0, True),
    ]
    assert found.left_out == {"runs were begun anew: their jobs were requeued": 2}
    assert learnt(found).cut("ann", "train") == (2, 9000.0)
    again = read(tmp_path, *lines[:2], line("5", 60, "RUNNING", submit="16:00:00"), line("6"))
    assert [job.name for job in again.jobs] == ["6"], "it is not over"


gangs = st.lists(
    st.tuples(
        st.sampled_from(["gres/gpu=1", "gres/gpu=2", "gres/gpu:v100=2,gres/gpu=2", "gres/gpu:a100=3", "gres/gpu=7"]),
        states,
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(components=gangs, before=st.integers(0, 2))
def test_components_start_together_or_are_left_out_and_counted(
    tmp_path_factory: pytest.TempPathFactory, components: list[tuple[str, str]], before: int
) -> None:
    lines = [line(f"30{n}", 100, gpus="gres/gpu:v100=4") for n in range(before + 1)]
    lines += [line(f"400+{n}", 50 + n, state, gpus, "12:00:01") for n, (gpus, state) in enumerate(components)]
    found = read(tmp_path_factory.mktemp("het"), *lines)
    names = {f"400+{n}" for n in range(len(components))}
    assert set(found.components) == names
    jobs = {job.name: job for job in found.jobs}
    assert not names & set(jobs), "no component is a job of its own"
    if "400" not in jobs:
        assert sum(count for reason, count in found.left_out.items() if "heterogeneous" in reason) == len(components)
        assert set(found.components.values()) == {""}
        return
    gang = jobs["400"]
    assert gang.devices == sum(int(gpus.rpartition("=")[2]) for gpus, _ in components)
    assert gang.steps == 50 + len(components) - 1, "as long as the longest"
    assert gang.completed == all(state == "COMPLETED" for _, state in components)
    kinds = {kind for kind in ("v100", "a100") if any(kind in gpus for gpus, _ in components)}
    assert len(kinds) < 2 and (not kinds or set(gang.kinds) == kinds)
    replayed = replay("fifo", list(found.jobs), TWO)
    (number,) = (one.number for one in replayed.states if one.job.name == "400")
    stays = [stay for stay in replayed.stays if stay.number == number]
    assert {stay.start_s for stay in stays} == {replayed.states[number].first_start_s}
    assert sum(stay.devices for stay in stays) == gang.devices


ODD = [
    "9|train|ann|gpu|2024-03-05T12:00:00|soon|12:00:00|COMPLETED|gres/gpu=1",
    "9|train|ann|gpu|Unknown|00:10:00|12:00:00|COMPLETED|gres/gpu=1",
    "9|a|name|with|bars|ann|gpu|2024-03-05T12:00:00|00:10:00|12:00:00|COMPLETED|gres/gpu=1",
    "9|train|ann",
    "9|train|ann|gpu|2024-03-05T12:00:00|00:10:00|12:00:00|COMPLETED|gres/gpu=99",
    "10|train|ann|gpu|2024-03-05T12:00:00|00:10:00|12:00:00|COMPLETED|gres/gpu:v100=9",
    "9|tr\0ain|ann|gpu|2024-03-05T12:00:00|00:10:00|12:00:00|COMPLETED|gres/gpu=1",
    "x" * 70_000,
]


@settings(max_examples=80, deadline=None)
@given(odd=st.lists(st.sampled_from(ODD), min_size=1, max_size=4), data=st.data())
def test_odd_lines_cost_nothing_but_themselves(
    tmp_path_factory: pytest.TempPathFactory, odd: list[str], data: st.DataObject
) -> None:
    good = [line(str(number), 60 + number) for number in range(4)]
    lines = list(good)
    for text in odd:
        lines.insert(data.draw(st.integers(0, len(lines))), text)
    found = read(tmp_path_factory.mktemp("odd"), *lines)
    assert [(job.name, job.steps) for job in found.jobs] == [(str(number), 60.0 + number) for number in range(4)]
    first = next(number for number, text in enumerate(lines, 2) if text not in good)
    (reason,) = found.left_out
    assert found.left_out[reason] == len(odd) and f"line {first}" in reason


def test_gpus_of_several_types_are_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, line("1"), line("2", gpus="gres/gpu:a100=1,gres/gpu:v100=1,gres/gpu=2"))
    assert [job.name for job in found.jobs] == ["1"] and found.left_out == {"jobs hold GPUs of several types": 1}
    with pytest.raises(UnknownHistory, match="1 jobs hold GPUs of several types"):
        read(tmp_path, line("2", gpus="gres/gpu:a100=1,gres/gpu:v100=1"))
    with pytest.raises(BadHistory, match="line 2"):
        read(tmp_path, ODD[0])


@settings(max_examples=60, deadline=None)
@given(
    start=st.sampled_from(["2024-10-27T02:50:00", "2024-03-31T01:50:00", "Unknown", "None", "", "what"]),
    end=st.sampled_from(["2024-10-27T02:10:00", "2024-03-31T03:10:00", "1970-01-01T00:00:00", "Unknown", ""]),
    limit=st.sampled_from(["1-00:00:00", "UNLIMITED", "Partition_Limit", "", "a day"]),
)
def test_elapsed_decides_and_other_columns_refuse_nothing(
    tmp_path_factory: pytest.TempPathFactory, start: str, end: str, limit: str
) -> None:
    path = tmp_path_factory.mktemp("clock") / "past.txt"
    text = f"{HEAD}|Start|End|Nodes\n1|t|ann|gpu|2024-10-27T01:30:00|00:20:00|{limit}|COMPLETED|gres/gpu=4|{start}|{end}|?\n"
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        try:
            (job,) = read_history(path, TWO).jobs
        finally:
            patch.undo()
            time.tzset()
    assert job.run_s("v100") == 1200.0 and job.limit_s == (86400.0 if limit[0:1] == "1" else math.inf)


def test_dates_with_an_offset_go_by_it(tmp_path: Path) -> None:
    """The hour that a clock runs through twice is told apart by its offset."""
    path = tmp_path / "jobs.csv"
    path.write_text("name,submit,duration,devices\na,2024-10-27T02:30:00+02:00,5,1\nb,2024-10-27T02:30:00+01:00,5,1\n")
    assert {job.name: job.submit_s for job in read_history(path, TWO).jobs} == {"a": 0.0, "b": 3600.0}


def test_states_are_read_whole() -> None:
    words = Counter(
        ending(state_word(word)) for word in ["COMPLETED", "CD", "completed", "CANCELLED+", "CANCELLED by 7", "R", ""]
    )
    assert words == {"completed": 3, "cut": 3, "not over": 1}
