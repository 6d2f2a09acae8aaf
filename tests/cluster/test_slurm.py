"""Slurm's text in the shapes that versions give it, limits from history, advice, and what would be changed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.estimates import Rolling
from bricolage.cluster.history.records import NO_HISTORY, JobHistory
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.cluster.run_times import advised_limit_s, run_time
from bricolage.cluster.slurm.advice import AdviceOptions, SlurmAdvice, advise, learn_history
from bricolage.cluster.slurm.commands import CommandAnswer, SlurmClient
from bricolage.cluster.slurm.job_changes import Levers, apply_changes, changes, plan_restoration
from bricolage.cluster.slurm.queue import Marked, SlurmQueue, hosts, marked_in, queue_of
from bricolage.errors import (
    PolicyRefuses,
    SlurmAnswer,
    SlurmEmpty,
    SlurmRefused,
    SlurmTooOld,
    SlurmUnavailable,
)
from tests.cluster.making import job as past_job

NOW = 1_800_000_000.0
NODES: list[Any] = [
    {"name": f"n{number}", "gres": "gpu:v100:2", "state": "idle", "state_flags": [], "partitions": ["main"]}
    for number in range(2)
]


def row(number: int, **more: Any) -> dict[str, Any]:
    """A pending job of one GPU, as Slurm 22.05 writes it."""
    return {
        "job_id": number, "name": "train", "user_name": "ann", "job_state": "PENDING", "state_reason": "Resources",
        "partition": "main", "tres_per_node": "gres:gpu:1", "tres_per_job": "", "tres_alloc_str": "", "node_count": 1,
        "tasks": 1, "submit_time": int(NOW) - 1000 + number, "start_time": 0, "end_time": 0, "time_limit": 600, "nice": None,
        "priority": 4294900000 - number, "admin_comment": "", "array_task_string": "", "nodes": "",
    } | more  # fmt: skip


def running(number: int, since: float, **more: Any) -> dict[str, Any]:
    return row(number, job_state="RUNNING", start_time=int(NOW - since), nodes="n0") | more


def done(number: int, seconds: float, **more: Any) -> dict[str, Any]:
    return row(number, job_state="COMPLETED", start_time=int(NOW - 5000), end_time=int(NOW - 5000 + seconds)) | more


def newer(value: dict[str, Any]) -> dict[str, Any]:
    """The same job as Slurm 24.05 writes it."""

    def number(one: Any) -> dict[str, Any]:
        return {"set": one is not None, "infinite": False, "number": one or 0}

    numbers = ("tasks", "node_count", "submit_time", "start_time", "end_time", "time_limit", "priority")
    return value | {name: number(value[name]) for name in numbers} | {
        "job_state": [value["job_state"]], "nice": value["nice"] or 0,
        "tres_per_node": value["tres_per_node"].replace("gres:", "gres/"),
    }  # fmt: skip


def queue(*rows: dict[str, Any], nodes: Sequence[Any] = NODES) -> SlurmQueue:
    return queue_of(rows, nodes, NOW)


def advised(found: SlurmQueue, policy: str = "fifo", **options: Any) -> SlurmAdvice:
    return advise(found, find_policy(policy), learn_history(found, NO_HISTORY), AdviceOptions(**options))


def test_both_shapes_are_read_alike() -> None:
    rows = [
        row(1),
        running(2, 50),
        done(3, 60),
        row(4, nice=70, time_limit=None),
        row(5, tres_per_node="gres:gpu:v100:2", node_count=2),
    ]
    old, new = queue(*rows), queue(*(newer(one) for one in rows))
    assert old == new
    jobs = {job.number: job for job in old.jobs}
    assert (jobs["5"].devices, jobs["5"].kind, jobs["1"].limit_s) == (4, "v100", 36000.0)
    assert jobs["4"].nice == 70 and math.isinf(jobs["4"].limit_s) and jobs["2"].nodes == ("n0",)


@pytest.mark.parametrize(
    ("fields", "devices", "kind"),
    [
        ({"tres_per_node": "gres:gpu"}, 1, ""),
        ({"tres_per_node": "gres/gpu:a100:4,gres/nic:1", "node_count": 2}, 8, "a100"),
        ({"tres_per_node": "", "tres_per_job": "gres:gpu:3"}, 3, ""),
        ({"tres_per_node": "", "tres_per_task": "gres/gpu:2", "tasks": 4}, 8, ""),
        ({"tres_alloc_str": "cpu=8,mem=4G,node=1,gres/gpu=2,gres/gpu:a100=2"}, 2, "a100"),
        ({"tres_per_node": "gres:nic:2"}, None, ""),
        ({"tres_per_node": "gres:gpu:a100:1,gres:gpu:v100:1"}, None, ""),
        ({"tres_per_node": "", "tres_per_socket": "gres:gpu:1"}, None, ""),
    ],
)
def test_gpus_are_counted(fields: dict[str, Any], devices: int | None, kind: str) -> None:
    found = queue(row(1, **fields))
    if devices is None:
        assert not found.jobs and sum(found.left_out.values()) == 1
    else:
        assert (found.jobs[0].devices, found.jobs[0].kind) == (devices, kind)


def test_nodes() -> None:
    nodes = [
        {"name": "a", "gres": "gpu:v100:2(S:0-1)", "state": ["IDLE"], "partitions": ["x", "y"]},
        {"name": "b", "gres": "gpu:2,nic:1", "state": "mixed", "state_flags": ["DRAIN"], "partitions": ["x"]},
        {"name": "c", "gres": "", "state": "idle", "partitions": ["x"]},
        {"name": "d", "gres": "gpu:4", "state": "down*", "partitions": ["x"]},
        {"name": "e", "gres": "gpu:a:1,gpu:b:1", "state": "idle", "partitions": ["x"]},
    ]
    found = queue(nodes=nodes)
    assert [(node.name, node.kind, node.devices) for node in found.nodes] == [("a", "v100", 2)]
    assert found.left_out == {"nodes are away": 2, "nodes have no GPU": 1, "nodes have GPUs of several types": 1}
    assert hosts("n[0-2,07],gpu1,r[1-2]c[3-4]") == ("n0", "n1", "n2", "n07", "gpu1", "r1c3", "r1c4", "r2c3", "r2c4")


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="gpures:/=(),v10[]-IDX", max_size=40), state=st.sampled_from(["PENDING", "RUNNING", "X", ""])
)
def test_any_text_is_read_or_refused(text: str, state: str) -> None:
    try:
        found = queue(
            row(1, tres_per_node=text, nodes=text, job_state=state, admin_comment=text),
            nodes=[{"name": text, "gres": text}],
        )
        assert all(job.devices >= 0 for job in found.jobs)
    except SlurmAnswer:
        assert not state


def test_marks_come_back() -> None:
    for mark in (Marked(), Marked(120, -7, True), Marked(0), Marked(nice=3), Marked(held=True)):
        assert marked_in(f"somebody's words {mark.text()}") == mark
    assert queue(row(1, admin_comment="keep [bricolage nice=m4] this")).jobs[0].comment == "keep this"


def test_limits_from_history() -> None:
    rolling = Rolling()
    for seconds in range(100, 2100, 100):
        rolling.learn("ann", "train", 1, float(seconds))
    assert advised_limit_s(rolling, "ann", "train", 1, 0.0, 86400.0, 0.1) == 60.0 * math.ceil(1.1 * 1900 / 60), (
        "19th of 20"
    )
    assert advised_limit_s(rolling, "ann", "train", 1, 0.0, 86400.0, 0.01) == 60.0 * 74, "too few"
    assert advised_limit_s(rolling, "ann", "train", 1, 0.0, 1200.0, 0.1) == 1200.0, "never more than its own"
    assert advised_limit_s(rolling, "ann", "train", 1, 2000.0, 86400.0, 0.1) == 86400.0, "it outran history"
    assert advised_limit_s(rolling, "ann", "other", 1, 0.0, 86400.0, 0.1) == 86400.0
    assert advised_limit_s(rolling, "bob", "train", 1, 0.0, 86400.0, 0.1) == 86400.0
    time = run_time(rolling, "ann", "train", 1, 1500.0, 1800.0)
    assert time.seconds == 1740.0 and time.runs == (1600.0, 1700.0, 1800.0, 1800.0, 1800.0), (
        "those that took longer, cut at its limit"
    )
    assert run_time(rolling, "ann", "train", 1, 3000.0, math.inf).seconds == 6000.0


@pytest.mark.parametrize(
    "state", ["FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "SUSPENDED"]
)
def test_what_did_not_complete_lowers_no_limit(state: str) -> None:
    """Neither alone, nor where it lasted longer than what the others allow; and it is told."""
    others = [done(number, 7, job_state=state) for number in (1, 2, 3)]
    (mine,) = [one for one in advised(queue(row(9), *others)).jobs if one.job == "9"]
    assert (mine.advised_limit_s, mine.limit_s, mine.run_s) == (36000.0, 36000.0, 3600.0)
    assert mine.because == "no history: an hour, or its limit; 3 runs of ann's train did not complete"
    quick = [done(number, 600) for number in (4, 5, 6)]
    (mine,) = [one for one in advised(queue(row(9), *quick)).jobs if one.job == "9"]
    assert mine.advised_limit_s == 1320.0
    long = done(7, 3000, job_state=state)
    (mine,) = [one for one in advised(queue(row(9), *quick, long)).jobs if one.job == "9"]
    assert mine.advised_limit_s == 36000.0 and mine.because.endswith("; 1 run of ann's train did not complete")


def test_runs_count_once_and_components_wait_together() -> None:
    """Accounting and the controller both know a task of an array; a heterogeneous job is not ordered component by component."""
    task = done(21, 600, array_job_id=17, array_task_id=3)
    het = {"het_job_id": {"set": True, "infinite": False, "number": 30}}
    parts = [row(30 + n, het_job_offset=n, **het) for n in range(2)] + [running(40, 50, **het)]
    found = queue(task, *parts, row(9))
    past = JobHistory((past_job(0, 0.0, 600.0, name="17_3"),), {"jobs have no GPU": 2}, "sacct")
    assert sum(len(runs) for names in learn_history(found, past).known.values() for runs in names.values()) == 1
    advice = advised(found)
    assert {one.job for one in advice.jobs} == {"9", "40"}
    assert advice.left_out == {"jobs are components of heterogeneous ones": 2}


@settings(max_examples=200, deadline=None)
@given(
    runs=st.lists(st.integers(1, 100_000), max_size=40), elapsed=st.integers(0, 200_000), own=st.integers(1, 10_000),
    risk=st.floats(0.001, 0.5),
)  # fmt: skip
def test_a_limit_is_between_what_has_elapsed_and_its_own(runs: list[int], elapsed: int, own: int, risk: float) -> None:
    rolling = Rolling()
    for seconds in runs:
        rolling.learn("ann", "train", 1, float(seconds))
    limit = advised_limit_s(rolling, "ann", "train", 1, float(elapsed), 60.0 * own, risk)
    assert limit == 60.0 * own or elapsed < limit < 60.0 * own
    assert limit % 60 == 0


@settings(max_examples=25, deadline=None)
@given(
    waits=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 900), st.integers(0, 100)), max_size=6),
    runs=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 20_000)), max_size=2),
    past=st.lists(st.integers(1, 4000), max_size=8),
    policy=st.sampled_from(["fifo", "easy", "sjf", "srtf", "qssf", "las-2d", "gavel", "themis"]),
    hold=st.booleans(),
)
def test_advice_of_any_policy(
    waits: list[tuple[int, int, int]], runs: list[tuple[int, int]], past: list[int], policy: str, hold: bool
) -> None:
    rows = [running(10 + n, since, tres_per_job=f"gres:gpu:{gpus}", tres_per_node="", nodes=f"n{n}", node_count=1)
            for n, (gpus, since) in enumerate(runs)]  # fmt: skip
    rows += [row(50 + n, tres_per_job=f"gres:gpu:{gpus}", tres_per_node="", time_limit=limit, nice=nice,
                 priority=10_000 - 7 * (n % 3))
             for n, (gpus, limit, nice) in enumerate(waits)]  # fmt: skip
    rows += [done(100 + n, seconds) for n, seconds in enumerate(past)]
    found = queue(*rows)
    advice = advised(found, policy, draws=2)
    assert {job.job for job in advice.jobs} == {str(one["job_id"]) for one in rows if one["job_state"] != "COMPLETED"}
    held = sum(gpus for gpus, _ in runs)
    for job in advice.jobs:
        assert job.running == (job.place == 0) and job.end_s > job.start_s
        assert job.start_interval_s[0] <= job.start_interval_s[1]
        held += job.devices * job.starts_now
    assert held <= 4, "who starts now fits beside who runs: nobody is stopped"
    jobs = {job.number: job for job in found.jobs}
    priority = {number: job.priority for number, job in jobs.items()}
    for one in changes(found, advice, Levers(hold=hold)):
        settings_ = dict(one.settings)
        job = jobs[one.job]
        if "TimeLimit" in settings_:
            elapsed = NOW - job.start_s if job.state == "RUNNING" else 0.0
            assert elapsed < 60.0 * int(settings_["TimeLimit"]) < job.limit_s
        if "Nice" in settings_:
            assert int(settings_["Nice"]) >= job.own_nice and not hold
            priority[one.job] += job.nice - int(settings_["Nice"])
    if not hold:
        order = [priority[job.job] for job in advice.jobs if not job.running]
        assert order == sorted(order, reverse=True) and len(set(order)) == len(order)


def test_partitions_keep_jobs_apart() -> None:
    nodes = [*NODES, {"name": "o", "gres": "gpu:v100:8", "state": "idle", "partitions": ["other"]}]
    found = queue(
        running(1, 10, nodes="n[0-1]", node_count=2, tres_per_node="gres:gpu:2"),
        row(2),
        row(3, partition="other"),
        nodes=nodes,
    )
    advice = advised(found)
    assert advice.devices == {"v100 main": 4, "v100 other": 8}
    starts = {job.job: job.starts_now for job in advice.jobs if not job.running}
    assert starts == {"2": False, "3": True}
    assert next(job for job in advice.jobs if job.job == "2").waits_for.startswith("1 more v100 main")


def test_what_cannot_be_placed_is_left_out() -> None:
    found = queue(
        row(1, tres_per_job="gres:gpu:9"), row(2, priority=0, state_reason="JobHeldUser"), row(3, state_reason="Dependency"),
        running(4, 5, nodes="gone"), row(5, partition="cpu"), row(6),
    )  # fmt: skip
    advice = advised(found)
    assert [job.job for job in advice.jobs] == ["6"]
    assert sum(advice.left_out.values()) == 5
    with pytest.raises(SlurmEmpty, match="it names no nodes"):
        advised(queue(row(1), nodes=[]))
    with pytest.raises(PolicyRefuses):
        advised(queue(row(1)), "edf")


def test_an_array_waits_task_by_task() -> None:
    advice = advised(queue(row(7, array_task_string="0-9:3,12%2", array_job_id=7)))
    assert [job.job for job in advice.jobs] == ["7"] * 5
    assert sum(job.starts_now for job in advice.jobs) == 4


class Made:
    """A Slurm of text: it takes updates into its rows."""

    def __init__(self, *rows: dict[str, Any], refuses: str = "") -> None:
        self.rows = {str(one["job_id"]): one for one in rows}
        self.refuses = refuses
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, words: Sequence[str]) -> CommandAnswer:
        self.calls.append(tuple(words))
        if words[1] == "--version":
            return CommandAnswer(0, "slurm-wlm 22.05.8\n")
        if words[0] == "squeue":
            return CommandAnswer(0, json.dumps({"jobs": list(self.rows.values()), "errors": []}))
        if words[0] == "sinfo":
            return CommandAnswer(0, json.dumps({"nodes": NODES}))
        if self.refuses:
            return CommandAnswer(1, "", f"slurm_update error: {self.refuses}\n")
        if words[1] == "update":
            job = self.rows[words[2].removeprefix("JobId=")]
            for word in words[3:]:
                key, _, value = word.partition("=")
                if key == "Nice":
                    job["priority"] += (job["nice"] or 0) - int(value)
                    job["nice"] = int(value)
                else:
                    job[{"TimeLimit": "time_limit", "AdminComment": "admin_comment"}[key]] = (
                        int(value) if value.isdigit() else value
                    )
        else:
            job = self.rows[words[2]]
            job |= (
                {"priority": 0, "state_reason": "JobHeldAdmin"}
                if words[1] == "hold"
                else {"priority": 9, "state_reason": ""}
            )
        return CommandAnswer(0, "")


@pytest.mark.parametrize("hold", [False, True])
def test_what_is_applied_holds_and_is_restored(hold: bool) -> None:
    rows = [running(1, 9000, nodes="n[0-1]", tres_per_node="gres:gpu:2", node_count=2, time_limit=900, name="b",
                    admin_comment="mine"),
            row(2, nice=5, name="long"), row(3), *(done(10 + n, 400 + n) for n in range(20)),
            *(done(40 + n, 12000, name="b", tres_per_node="gres:gpu:4") for n in range(20)),
            done(90, 9000, name="long")]  # fmt: skip
    slurm = Made(*rows)
    client = SlurmClient(run=slurm, clock=lambda: NOW)
    before = json.dumps(slurm.rows)
    found = client.queue()
    advice = advised(found, "sjf")
    assert [job.job for job in advice.jobs] == ["1", "3", "2"]
    assert not [words for words in slurm.calls if words[0] == "scontrol"], "advice changes nothing"
    wanted = changes(found, advice, Levers(hold=hold))
    assert apply_changes(client, wanted).made == tuple(wanted)
    assert slurm.rows["1"]["time_limit"] == 220 and slurm.rows["1"]["admin_comment"] == "mine [bricolage limit=900]"
    assert slurm.rows["3"]["time_limit"] == 8
    if hold:
        assert slurm.rows["2"]["priority"] == slurm.rows["3"]["priority"] == 0
    else:
        assert slurm.rows["3"]["priority"] > slurm.rows["2"]["priority"]
    again = client.queue()
    assert changes(again, advised(again, "sjf"), Levers(hold=hold)) == [], "what is as advised is left alone"
    apply_changes(client, plan_restoration(again))
    after = json.loads(json.dumps(slurm.rows))
    for number, job in json.loads(before).items():
        same = {key for key in job if after[number][key] == job[key]}
        assert job.keys() - same <= ({"priority", "state_reason"} if hold else {"nice"}), number
        assert (after[number]["nice"] or 0) == (job["nice"] or 0)


def test_refusals() -> None:
    rows = [row(1, name="b"), row(2), row(3), row(4), row(5), done(8, 10), done(9, 3000, name="b")]
    gone = Made(*rows, refuses="Job has already finished")
    client = SlurmClient(run=gone)
    wanted = changes(queue(*rows), advised(queue(*rows), "sjf"), Levers())
    assert wanted and apply_changes(client, wanted).gone == tuple(one.job for one in wanted)
    with pytest.raises(SlurmRefused, match="Access/permission denied.*nothing was changed"):
        apply_changes(SlurmClient(run=Made(*rows, refuses="Access/permission denied")), wanted)


def asked(**answers: CommandAnswer) -> SlurmQueue:
    """Of a Slurm whose version, or whose JSON, is another."""
    client = SlurmClient(run=lambda words: answers.get(words[1].strip("-"), CommandAnswer(0, "slurm-wlm 23.11.4\n")))
    return client.queue()


def test_another_slurm_is_refused() -> None:
    with pytest.raises(SlurmTooOld, match="this is Slurm 20.11.9"):
        asked(version=CommandAnswer(0, "slurm 20.11.9\n"))
    with pytest.raises(SlurmAnswer, match="it prints no version"):
        asked(version=CommandAnswer(0, "PBS Pro\n"))
    with pytest.raises(SlurmUnavailable, match="Could not establish one"):
        asked(version=CommandAnswer(1, "", "squeue: error: x\nsqueue: fatal: Could not establish one\n"))
    with pytest.raises(SlurmUnavailable, match="no access"):
        asked(json=CommandAnswer(0, '{"jobs": [], "errors": ["no access"]}'))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("JOBID PARTITION\n", "it is no JSON"),
        ("[1]", "it has no list 'jobs'"),
        ('{"jobs": [1], "nodes": []}', "it has no list 'nodes'|no object"),
        ('{"jobs": [{"name": "a"}], "nodes": []}', "it has no list 'nodes'|lacks job_id"),
    ],
)
def test_other_json_is_refused(text: str, told: str) -> None:
    with pytest.raises(SlurmAnswer, match=told):
        asked(json=CommandAnswer(0, text), show=CommandAnswer(0, '{"nodes": []}'))


def test_commands_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SlurmUnavailable, match="not installed here"):
        SlurmClient().queue()
