"""Histories in each format, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.estimates import Rolling
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.history.batch_growth import batch_size, grown_phases
from bricolage.cluster.history.rates import RateTable, read_rates
from bricolage.cluster.history.read import read_history
from bricolage.cluster.machines import ClusterSpec, NodeGroup, read_cluster
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.cluster.prospects import Doubt, prospects, scene_of
from bricolage.errors import BadCluster, BadHistory, BricolageError, MissingFile, RatesNeeded, UnknownHistory

TWO = ClusterSpec((NodeGroup("v100", 2, 4), NodeGroup("a100", 1, 8, speed=2.0)))


def write(folder: Path, text: str, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table(tmp_path: Path) -> None:
    text = "name,submit,duration,devices,user,device,deadline,limit\nb,70,100,4,ann,a100,900,3600\na,50,10,1,bob,,,\n"
    found = read_history(write(tmp_path, text), TWO)
    first, second = found.jobs
    assert (first.name, first.submit_s, first.user) == ("a", 0.0, "bob"), "in order, from the first submission"
    assert {kind: first.run_s(kind) for kind in first.kinds} == {"a100": 5.0, "v100": 10.0}, "the cluster's speeds"
    assert (second.kinds, second.run_s("a100"), second.devices) == (("a100",), 100.0, 4), "it stays where it ran"
    assert (second.deadline_s, second.limit_s, first.deadline_s) == (850.0, 3600.0, math.inf)


def test_dates_and_lines_without_jobs(tmp_path: Path) -> None:
    text = "submit,duration,devices\n2024-03-01T12:00:00,60,1\n2024-03-01 12:01:00,0,1\n"
    text += "2024-03-01T12:02:00,5,0\n\n2024-03-01T12:03:00,60,2\n"
    found = read_history(write(tmp_path, text), TWO)
    assert [job.submit_s for job in found.jobs] == [0.0, 180.0]
    assert found.left_out == {"jobs never ran": 1, "lines have no devices": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("submit,duration,devices\n0,ten,1\n", "line 2 of '{path}', column duration: 'ten' is no number"),
        ("submit,duration,devices\n\n1,-5,1\n", "line 3 of '{path}', column duration: -5 is not between 0 and 1e+10"),
        ("submit,duration,devices\n0,nan,1\n", "line 2 of '{path}', column duration: nan is not between"),
        ("submit,duration,devices\n0,5,1.5\n", "line 2 of '{path}', column devices: 1.5 is no whole number"),
        ("submit,duration,devices\n,5,1\n", "line 2 of '{path}', column submit: it is empty or missing"),
        ("submit,duration,devices\nyesterday: noon,5,1\n", "column submit: 'yesterday: noon' is neither"),
        ("submit,duration,devices\n0,5\n", "line 2 of '{path}': it has 2 columns, the heading 3"),
        ("submit,duration,devices,devices\n0,5,1,1\n", "line 1 of '{path}': column 'devices' is there twice"),
        ("submit,duration,devices,device\n0,5,1,tpu\n", "the cluster has no devices of kind 'tpu'; it has v100, a100"),
        ("submit,duration,devices,deadline\n9,5,1,3\n", "column deadline: the deadline is before the submission"),
        ("submit,duration,devices\n0,5,13\n", "line 2 of '{path}', column devices: its gang of 13 fits nowhere: there are 8 a"),
        ("name,submit,duration,devices,after\na,0,5,1,b\nb,0,5,1,a\n", "column after: it never starts: a after b after a"),
        ("name,submit,duration,devices,after\na,0,5,1,a\n", "column after: it never starts: a after a"),
    ],
)  # fmt: skip
def test_lines_that_cannot_be_used_are_named_where_there_are_no_others(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadHistory) as error:
        read_history(path, TWO)
    assert told.format(path=path) in error.value.sentence


@pytest.mark.parametrize(
    ("lines", "left", "told"),
    [
        ("a,0,5,1,b;c\nb,0,5,1,\n", "b", "line 2, column after: there is no job 'c'"),
        ("a,0,5,1,\na,0,5,1,\nb,0,5,1,a\nc,0,5,1,b\n", "aa", "the first is line 4, column after: there are several jobs 'a'"),
        ("a,0,5,1,b\nb,0,5,1,a\nc,0,5,1,\n", "c", "the first is line 2, column after: it never starts: a after b after a"),
        ("a,0,5,1,b\nb,0,5,99,\nc,0,5,1,\n", "c", "the first is line 2, column after: there is no job 'b'"),
        ('a,0,5,1,\n"b,0,5,1,\nc,0,5,1,\n', "ac", "line 3: a quote opens in it, and none closes it"),
        ('a,0,5,1,\n"b\nc",0,5,1,\nd,0,5\n', "ab\nc", "line 5: it has 3 columns, the heading 5"),
    ],
)  # fmt: skip
def test_jobs_that_never_start_and_lines_that_cannot_be_used(tmp_path: Path, lines: str, left: str, told: str) -> None:
    """Others are read; who comes after a line that is left out is left out, too."""
    found = read_history(write(tmp_path, "name,submit,duration,devices,after\n" + lines), TWO)
    assert "".join(job.name for job in found.jobs) == left
    assert told in next(iter(found.left_out))


@pytest.mark.parametrize(
    "text",
    ["", "some words\n", "submit,duration\n1,2\n", "submit,duration,devices\n", "submit,duration,devices\n1,0,1\n"],
)
def test_what_is_no_history(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnknownHistory):
        read_history(write(tmp_path, text), TWO)


def test_histories_that_do_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader stops at the line where memory runs out; lines that hold no job take none."""
    from bricolage.cluster.history import records

    monkeypatch.setattr(records, "_LOOK", 4)
    monkeypatch.setattr(records, "available_bytes", lambda: 0)
    text = "submit,duration,devices\n" + "0,0,1\n" * 9 + "0,1,1\n"
    with pytest.raises(BadHistory, match="line 11 .*memory runs out after 0 jobs"):
        read_history(write(tmp_path, text), TWO)
    monkeypatch.setattr(records, "available_bytes", lambda: 1 << 40)
    assert len(read_history(write(tmp_path, text + "0,1,1\n" * 9), TWO).jobs) == 10
    monkeypatch.setattr(records, "MOST_JOBS", 3)
    with pytest.raises(BadHistory, match="line 14 .*more than 3 jobs"):
        read_history(write(tmp_path, text + "0,1,1\n" * 9), TWO)


def test_jobs_come_after_others(tmp_path: Path) -> None:
    """b waits for a, c for both, though there are devices; what a forecast says of them names who they wait for."""
    from tests.cluster.making import replay

    text = "name,submit,duration,devices,after\nc,0,5,1,a;b\na,0,50,1,\nb,0,20,1,a\n"
    jobs = list(read_history(write(tmp_path, text), TWO).jobs)
    for policy in ("fifo", "srtf", "max-min"):
        ends = {state.job.name: state.finish_s for state in replay(policy, jobs, TWO).states}
        assert ends["a"] < ends["b"] < ends["c"]
        assert ends["c"] >= 37.5, "twice as fast on a100"
    entry = find_policy("fifo")
    scene = scene_of(EventLoop(jobs, TWO, entry.make(jobs, TWO), entry.estimator(0.0, 0)), entry, 30.0)
    found = {one.job: one for one in prospects(scene, Doubt(0.0, 0.0), draws=1)}
    assert found["c"].waits_for == "dependency" and found["c"].change == "the end of b" and found["b"].kind
    assert found["c"].expected.start_s == pytest.approx(35.0)


def test_other_things_than_text(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"submit,duration,devices\n\xff\xfe\x00,1,1\n")
    with pytest.raises(BadHistory):
        read_history(path, TWO)
    path.write_bytes(b"submit,duration,devices,name\n0,1,1,M\xfcller\n")
    assert len(read_history(path, TWO).jobs) == 1
    path.write_text("submit,duration,devices\n0,\0,1\n")
    with pytest.raises(BadHistory):
        read_history(path, TWO)
    with pytest.raises(UnknownHistory, match="a clock has jumped"):
        read_history(write(tmp_path, "submit,duration,devices\n-9e9,1,1\n9e9,1,1\n"), TWO)
    with pytest.raises(MissingFile):
        read_history(tmp_path / "none.csv", TWO)


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="submitduraondevc,|\n\t0123456789.-: \"'\0", max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = write(tmp_path_factory.mktemp("any"), "submit,duration,devices\n" + text)
    try:
        assert read_history(path, TWO).jobs
    except BricolageError as error:
        assert str(path) in error.sentence


SACCT = """JobID|JobName|User|Partition|Submit|Elapsed|Timelimit|State|AllocTRES
17|train|ann|gpu|2024-03-01T12:00:00|1-02:03:04|2-00:00:00|COMPLETED|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1
17.batch|batch|||2024-03-01T12:00:00|1-02:03:04||COMPLETED|cpu=8
18|cpu only|bob|cpu|2024-03-01T12:10:00|00:10:00|UNLIMITED|COMPLETED|cpu=4
19|never|bob|gpu|2024-03-01T12:20:00|00:00:00|01:00:00|CANCELLED by 7|cpu=1,gres/gpu=1
20|tune|bob|gpu|2024-03-01T12:30:00|05:00|UNLIMITED|TIMEOUT|cpu=1,gres/gpu=4
"""


def test_sacct(tmp_path: Path) -> None:
    found = read_history(write(tmp_path, SACCT), TWO)
    first, second = found.jobs
    assert (first.name, first.kinds, first.devices, first.limit_s) == ("17", ("a100",), 2, 172800.0)
    assert first.run_s("a100") == ((26 * 60) + 3) * 60 + 4
    assert (second.name, second.kinds, second.devices, second.submit_s) == ("20", ("a100", "v100"), 4, 1800.0)
    assert found.left_out == {"lines are steps of jobs": 1, "jobs have no GPU": 1, "jobs never ran": 1}
    assert (first.completed, second.completed, found.not_completed) == (True, False, {"TIMEOUT": 1})
    read = read_history(write(tmp_path, SACCT.replace("|05:00|", "|five|")), TWO)
    told = "lines cannot be used (line 6, column Elapsed: 'five' is no time as Slurm writes it ([days-]hours:minutes:seconds))"
    assert [job.name for job in read.jobs] == ["17"] and read.left_out[told] == 1


RATES = {"v100": {"('LM (batch size 10)', 1)": {"null": 2.0}, "('LM (batch size 80)', 1)": {"null": 1.0}}, "k80": {}}


def test_gavel_traces_need_rates(tmp_path: Path) -> None:
    line = "LM (batch size 10)\tpython main.py\t--steps\t1\t500\t1\t1.5\t2.0\t30\n"
    path = write(tmp_path, line, "jobs.trace")
    with pytest.raises(RatesNeeded):
        read_history(path, TWO)
    rates = read_rates(write(tmp_path, json.dumps(RATES), "rates.json"), TWO.kinds)
    (job,) = read_history(path, TWO, rates).jobs
    assert (job.run_s("v100"), job.weight, job.deadline_s) == (250.0, 1.5, 500.0)
    short = "LM (batch size 10)\tpython main.py\t--steps\t1\t500\t12.5\t1\n"
    (job,) = read_history(write(tmp_path, short, "short.trace"), TWO, rates).jobs
    assert (job.run_s("v100"), job.devices) == (250.0, 1)
    other = line + line.replace("LM (batch size 10)", "VGG")
    left = read_history(write(tmp_path, other, "other.trace"), TWO, rates).left_out
    assert left == {"jobs have no rate on their number of devices of the cluster's kinds": 1}


def test_batch_sizes_grow_as_published() -> None:
    assert [batch_size("gns", "LM", 10, 1, epoch) for epoch in (0, 10, 11, 20, 21, 41, 99)] == [
        10,
        10,
        20,
        20,
        40,
        80,
        80,
    ]
    assert [batch_size("accordion", "ResNet-18", 32, 1, epoch) for epoch in (0, 9, 10, 149, 150, 159, 160)] == [
        32,
        32,
        256,
        256,
        32,
        32,
        256,
    ]
    assert batch_size("accordion", "Transformer", 32, 1, 50) == 32
    rates = RateTable({("LM (batch size 10)", 1): {"v100": 2.0}, ("LM (batch size 80)", 1): {"v100": 1.0}})
    phases = grown_phases("accordion", "LM (batch size 10)", 1, 5968 * 15.5, rates, ("v100",))
    assert [phase.steps for phase in phases] == [10.0, 6.0], "whole epochs"
    assert [1 / phase.rates["v100"] for phase in phases] == [5968 / 2.0, 746.0]


def test_elastic_curves(tmp_path: Path) -> None:
    one = ClusterSpec((NodeGroup("a100", 2, 8),))
    folder = tmp_path / "rates"
    folder.mkdir()
    write(folder, "global_batch_size,1,2,4\n64,6.0,9.0,8.0\n", "bert.csv")
    text = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n0,10,900,bert,500,64,2,100\n"
    (job,) = read_history(write(tmp_path, text), one, read_rates(folder, one.kinds)).jobs
    assert job.run_s("a100") == 100.0 and job.deadline_s == 490.0
    assert job.scaling == ((1, pytest.approx(2 / 3)), (2, 1.0)), "cut at the peak"


@pytest.mark.parametrize(
    ("heading", "row", "form"),
    [
        ("job_id,num_gpu,submit_time,iterations,model_name,duration,interval", "0,1,5,606,vgg19,164,30", "tiresias"),
        (
            "job_id,user,vc,gpu_num,cpu_num,state,submit_time,duration",
            "7,u1,vc2,1,4,COMPLETED,2020-04-01 00:00:03,164",
            "helios",
        ),
        ("time,duration,num_gpus,vc", "5,164,1,vc2", "philly"),
    ],
)
def test_published_tables(tmp_path: Path, heading: str, row: str, form: str) -> None:
    found = read_history(write(tmp_path, f"{heading}\n{row}\n"), TWO)
    assert found.format == form and found.jobs[0].run_s("v100") == 164.0


CLUSTER = '[[group]]\nkind = "a100"\nnodes = 2\ndevices = 8\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CLUSTER + '[[group]]\nkind = "a100"\nspeed = 2.0\n', "groups of kind 'a100' differ"),
        (CLUSTER + '[[failure]]\nkind = "a100"\nnode = 2\nat_s = 1.0\nuntil_s = 2.0\n', "node 2 of kind 'a100', of which"),
        (CLUSTER + '[[failure]]\nkind = "a100"\nnode = 1\nat_s = 2.0\nuntil_s = 2.0\n', "is back at 2 s before it fails"),
        (CLUSTER + 2 * '[[failure]]\nkind = "a100"\nnode = 1\nat_s = 1.0\nuntil_s = 2.0\n', "fails at 1 s while it is away"),
        (CLUSTER + "cpus = 8\n", "only one of cpus and host_gb"),
        (CLUSTER + '[[failure]]\nkind = "t4"\nnode = 0\nat_s = 1.0\nuntil_s = 2.0\n', "node 0 of kind 't4', of which there are 0"),
        ('[[group]]\nkind = "a100"\ndevices = 0\n', "it.group[0].devices is not between 1 and 4096"),
        ('[[group]]\nname = "a100"\n', "unknown field 'name'"),
        ("", "lacks the field 'group'"),
        ("[[group]", "it is not TOML"),
    ],
)  # fmt: skip
def test_bad_clusters(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text, "cluster.toml")
    with pytest.raises(BadCluster) as error:
        read_cluster(path)
    assert told in error.value.sentence


def test_devices_come_and_go_by_nodes() -> None:
    more = TWO.with_devices("v100", 6)
    assert more.capacity == {"v100": 14, "a100": 8} and more.nodes("v100") == [4, 4, 4, 2]
    assert TWO.with_devices("v100", -4).capacity["v100"] == 4
    assert TWO.with_devices("h100", 8).capacity["h100"] == 8
    for kind, devices in (("v100", -3), ("h100", -1)):
        with pytest.raises(ValueError, match="devices"):
            TWO.with_devices(kind, devices)


def test_run_times_are_predicted_from_users_and_names() -> None:
    from bricolage.cluster.jobs import JobState
    from tests.cluster.making import job

    rolling = Rolling()
    for seconds, devices in ((100.0, 1), (200.0, 1), (900.0, 4)):
        done = job(0, 0, seconds, devices)
        rolling.ended(JobState(0, done, seconds, kinds=("a",)))
    assert rolling.seconds("u0", "j0", 1) == 150.0, "same user, name and devices"
    assert rolling.seconds("u0", "j0", 2) == 400.0, "same user and name"
    assert rolling.seconds("u0", "j01", 4) == 900.0, "a similar name"
    assert rolling.seconds("new", "j0", 1) == 400.0, "nobody knows him"
    assert Rolling().seconds("new", "j0", 1) == 3600.0


def test_the_demo_is_what_its_generator_draws() -> None:
    from examples.demo_cluster.make_history import FILE, rows

    cluster = read_cluster(FILE.with_name("cluster.toml"))
    found = read_history(FILE, cluster).jobs
    drawn = rows()
    assert [job.name for job in found] == [row["name"] for row in drawn]
    assert len({job.devices for job in found}) == 4 and any(job.deadline_s < math.inf for job in found)
