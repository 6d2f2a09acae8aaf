"""Batch sizes, processors and host memory: formulas, profiles, and the policies that choose them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.adaptive import BatchProfile, HostProfile, RunSetting, StepTimes
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.fitted import GoodputFit, SeenStep, fitted_times
from bricolage.cluster.history.profiles import read_profiles, with_profiles
from bricolage.cluster.jobs import JobState, TrainingJob
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policies.gandiva import Gandiva
from bricolage.cluster.policies.synergy import _Host, tune_shares
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.cluster.target_policies import ClusterView, TargetScheduler
from bricolage.errors import BadProfiles
from tests.cluster.making import job, one_kind, replay

TIMES = StepTimes(0.02, 0.001, 0.01, 0.002, 0.05, 0.004, overlap=2.0)
PROFILE = BatchProfile(64, 1024, 64, ((0.0, 1.0), (0.5, 16.0)), {"a": TIMES})


@pytest.mark.parametrize(
    ("devices", "spread", "local", "accumulated", "throughput"),
    [
        (1, False, 64.0, 0, 64 / 0.084),
        (2, False, 32.0, 0, 64 / (0.052**2 + 0.01**2) ** 0.5),
        (8, True, 16.0, 0, 128 / (0.036**2 + 0.074**2) ** 0.5),
        (2, False, 64.0, 1, 256 / (0.084 + (0.084**2 + 0.01**2) ** 0.5)),
    ],
)
def test_throughput(devices: int, spread: bool, local: float, accumulated: int, throughput: float) -> None:
    """By hand; 2,000 random points agree with adaptdl 0.2.11's `GoodputFunction` within 2e-9."""
    assert TIMES.throughput(devices, spread, local, accumulated) == pytest.approx(throughput)


def test_efficiency() -> None:
    """adaptdl's (var + sqr) / (var / scale + sqr) / scale: with var = sqr, twice the batch is worth 2 / 1.5 / 2 of its samples."""
    plain = TIMES.throughput(1, False, 64.0, 0)
    assert PROFILE.goodput("a", 1, False, 1.0, 1.0) == pytest.approx(plain)
    doubled = TIMES.throughput(2, False, 64.0, 0)
    assert PROFILE.goodput("a", 2, False, 2.0, 1.0) == pytest.approx(doubled * 2 / 3)
    assert PROFILE.noise_at(0.2) == 1.0 and PROFILE.noise_at(0.5) == 16.0


@settings(max_examples=40, deadline=None)
@given(devices=st.integers(1, 16), spread=st.booleans(), noise=st.floats(0.0, 100.0))
def test_the_best_batch_is_the_best_of_all(devices: int, spread: bool, noise: float) -> None:
    best, scale = PROFILE.best("a", devices, spread, noise)
    every = [PROFILE.goodput("a", devices, spread, 2 ** (n / 40), noise) for n in range(161)]
    assert best == pytest.approx(PROFILE.goodput("a", devices, spread, scale, noise))
    assert best >= 0.99 * max(every), "between two of the fifty sizes"


def adaptive_jobs(count: int, devices: int = 1) -> list[TrainingJob]:
    some = [replace(job(n, 0.0, 2000.0, devices), batches=PROFILE) for n in range(count)]
    return [replace(one, scaling=PROFILE.scaling(devices, 4, "a")) for one in some]


@pytest.mark.parametrize("name", ["pollux", "sia"])
def test_goodput_grows_batches_as_noise_grows(name: str) -> None:
    """One job on four devices: it ends when the integral of its goodput says, and sooner than with its own batch size."""
    cluster = one_kind(4)
    (alone,) = replay(name, adaptive_jobs(1), cluster).states
    fixed = [replace(one, batches=None) for one in adaptive_jobs(1)]
    (kept,) = replay(name, fixed, cluster).states
    assert alone.finish_s < kept.finish_s
    entry = find_policy(name)
    loop = EventLoop(adaptive_jobs(1), cluster, entry.make([], cluster), entry.estimator(0.0, 0))
    loop.run_until(200.0)
    early = loop.states[0].setting.batch
    loop.run_until(0.95 * alone.finish_s)
    assert loop.states[0].setting.batch > early >= 1.0, "more noise, larger batches"
    state = loop.states[0]
    rate = PROFILE.speed("a", state.held, False, state.setting.batch, 16.0, (1, False))
    assert state.rate == pytest.approx(rate)


HUNGRY = HostProfile((1.0, 3.0, 6.0), (10.0, 20.0), ((0.3, 0.4), (0.9, 1.0), (1.4, 1.5)))
MODEST = HostProfile((1.0, 3.0), (10.0, 20.0), ((1.0, 1.0), (1.0, 1.0)))
HOSTS = ClusterSpec((NodeGroup("a", 2, 4, cpus=12.0, host_gb=80.0),))


def test_profiles_say_what_saturates() -> None:
    assert HUNGRY.demand == (6.0, 20.0) and MODEST.demand == (1.0, 10.0)
    assert HUNGRY.at(5.9, 30.0) == 1.0 and HUNGRY.at(0.5, 10.0) == pytest.approx(0.15)
    with pytest.raises(ValueError, match="speed falls"):
        HostProfile((1.0, 2.0), (1.0,), ((2.0,), (1.0,)))
    with pytest.raises(ValueError, match="not 2 rows"):
        HostProfile((1.0, 2.0), (1.0,), ((2.0,),))


def test_who_needs_few_processors_leaves_them_to_others() -> None:
    """Two of each on a node of four devices and 12 processors: 6 + 3 + 1 + 1 fit. One of the hungry ones has six, the second in the
    first round of 300 s, then the first; the second ends at its own speed."""
    jobs = [replace(job(n, 0.0, 900.0), host=HUNGRY if n < 2 else MODEST) for n in range(4)]
    cluster = replace(HOSTS, group=(NodeGroup("a", 1, 4, cpus=12.0, host_gb=80.0),))
    blind, aware = replay("fifo", jobs, cluster).states, replay("synergy", jobs, cluster).states
    assert [one.finish_s for one in blind] == [900.0] * 4
    assert [one.finish_s for one in aware] == pytest.approx([700.0, 750.0, 900.0, 900.0])
    assert "cpus" in find_policy("synergy").refuses(jobs, one_kind(4))
    assert "profile" in find_policy("synergy").refuses([job(0, 0.0, 1.0)], cluster)


@settings(max_examples=80, deadline=None)
@given(
    drawn=st.lists(st.tuples(st.sampled_from((1, 1, 2, 4, 6)), st.sampled_from((None, HUNGRY, MODEST))), max_size=9),
    running=st.integers(0, 3),
)
def test_shares_fit_and_no_job_is_slower_than_with_its_part(
    drawn: list[tuple[int, HostProfile | None]], running: int
) -> None:
    part, states, left = (3.0, 20.0), list[JobState](), 8
    for number, (devices, profile) in enumerate(drawn):
        if devices <= left:
            one = JobState(number, replace(job(number, 0.0, 10.0, devices), host=profile), 10.0, ("a",))
            if len(states) < running and devices <= 2:
                one.held, one.held_kind, one.nodes = devices, "a", ((len(states) % 2, devices),)
            states.append(one)
            left -= devices
    places, shares = tune_shares(states, [_Host(4, 12.0, 80.0) for _ in range(2)], part, "a")
    for node in range(2):
        mine = [(dict(places[s.number]).get(node, 0), shares[s.number]) for s in states]
        assert sum(count for count, _ in mine) <= 4
        assert sum(count * cpus for count, (cpus, _) in mine) <= 12.0 + 1e-6
        assert sum(count * gb for count, (_, gb) in mine) <= 80.0 + 1e-6
    for state in states:
        assert sum(count for _, count in places[state.number]) == state.job.devices
        if state.job.host is not None:
            assert state.job.host.at(*shares[state.number]) >= state.job.host.at(*part) - 1e-9
        if state.held:
            assert places[state.number] == state.nodes, "who runs stays"


def gandiva(jobs: list[TrainingJob], cluster: ClusterSpec) -> EventLoop:
    loop = EventLoop(jobs, cluster, TargetScheduler(Gandiva()), find_policy("gandiva").estimator(0.0, 0))
    loop.run()
    return loop


def test_gandiva_puts_equals_together_and_lets_them_take_turns() -> None:
    """Two nodes of two: the gangs of two share one in turns only when none is free; singles stay on the other."""
    jobs = [job(0, 0.0, 300.0, 2), job(1, 0.0, 300.0), job(2, 0.0, 300.0), job(3, 0.0, 300.0, 2)]
    loop = gandiva(jobs, one_kind(2, nodes=2))
    on = {
        n: {node for stay in loop.stays if stay.number == n and stay.start_s < 290 for node, _ in stay.nodes}
        for n in range(4)
    }
    assert on[0] == on[3] and on[1] == on[2] and on[0] != on[1]
    assert loop.states[3].first_start_s < 300.0, "it takes turns"


def test_gandiva_migrates_to_fewer_nodes_and_to_better_kinds() -> None:
    jobs = [
        job(0, 0.0, 200.0),
        job(1, 0.0, 4000.0),
        job(2, 0.0, 200.0, 1),
        job(3, 0.0, 1000.0),
        job(4, 60.0, 2000.0, 2),
    ]
    loop = gandiva(jobs, one_kind(2, nodes=2))
    widths = [len(stay.nodes) for stay in loop.stays if stay.number == 4]
    assert widths[-1] == 1
    two = ClusterSpec((NodeGroup("a", 1, 1), NodeGroup("b", 1, 1)))
    (only,) = gandiva([job(0, 0.0, 5000.0, rates={"a": 1.0, "b": 4.0})], two).states
    assert only.ran == {"a", "b"} and only.finish_s < 0.5 * 5000.0


def test_gandiva_grows_when_no_job_waits_and_shrinks_when_one_does() -> None:
    jobs = [job(0, 0.0, 2000.0, scaling=((1, 1.0), (2, 1.8), (4, 3.0))), job(1, 600.0, 100.0, 2)]
    loop = gandiva(jobs, one_kind(4))
    mine = [(stay.start_s, stay.devices) for stay in loop.stays if stay.number == 0]
    assert [devices for _, devices in mine][:3] == [1, 4, 1] and mine[2][0] == 600.0
    assert loop.states[1].first_start_s == 600.0


TOML = """
[[job]]
kind = "x"
[job.host]
cpus = [1, 3]
gb = [10]
speed = [[0.5], [1.0]]
[job.batches]
batch = 64
most_batch = 1024
most_local = 64
noise = [[0.0, 1.0]]
[job.batches.times.a]
grad_s = 0.02
sample_s = 0.001
"""


def test_profiles_are_read(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(TOML)
    profiles = read_profiles(path, one_kind(4))
    (mine, other) = with_profiles([replace(job(0, 0, 10), kind="x"), job(1, 0, 10)], profiles, one_kind(4))
    assert mine.host is not None and mine.batches is not None and dict(mine.scaling)[1] == 1.0 and other.scaling == ()
    for wrong, told in (
        (TOML.replace("times.a]", "times.z]"), "times on 'z'"),
        (TOML.replace("most_batch = 1024", "most_batch = 8"), "most_batch is below batch"),
        (TOML.replace("[[0.0, 1.0]]", "[[0.5, 1.0]]"), "noise has to begin at 0"),
        (TOML + TOML, "two profiles"),
        (TOML.replace("cpus = [1, 3]", "cpus = [3, 1]"), "cpus does not rise"),
    ):
        path.write_text(wrong)
        with pytest.raises(BadProfiles, match=told):
            read_profiles(path, one_kind(4))


def test_settings_end_with_a_stay() -> None:
    loop = EventLoop(
        adaptive_jobs(2),
        one_kind(4),
        find_policy("pollux").make([], one_kind(4)),
        find_policy("pollux").estimator(0, 0),
    )
    loop.run()
    assert all(state.setting == RunSetting() for state in loop.states)
    assert ClusterView(0.0, [], {"a": 4}, one_kind(4)).devices == 4


@settings(max_examples=25, deadline=None)
@given(
    grad=st.floats(0.001, 0.1), sample=st.floats(1e-4, 1e-2), sync=st.floats(0.001, 0.1), more=st.floats(0.0, 0.01),
    network=st.floats(1.0, 4.0), overlap=st.floats(1.0, 4.0),
)  # fmt: skip
def test_what_was_seen_of_a_job_is_fitted(
    grad: float, sample: float, sync: float, more: float, network: float, overlap: float
) -> None:
    """Steps on one to sixteen devices of one and of two nodes at three sizes: the model gives them back, and those between."""
    truth = StepTimes(grad, sample, sync, more, network * sync, more, overlap)

    def seconds(devices: int, spread: bool, local: float) -> float:
        return devices * local / float(truth.throughput(devices, spread, local))

    places = [(1, False), (2, False), (4, False), (8, True), (16, True)]
    seen = [
        SeenStep(n, spread, local, seconds(n, spread, local)) for n, spread in places for local in (4.0, 16.0, 64.0)
    ]
    found = fitted_times(seen)
    for devices, spread in ((1, False), (3, False), (12, True)):
        for local in (8.0, 32.0):
            there = devices * local / float(found.throughput(devices, spread, local))
            assert there == pytest.approx(seconds(devices, spread, local), rel=0.03)


def test_what_was_not_seen_is_as_pollux_takes_it() -> None:
    fit = GoodputFit(PROFILE, 1)
    blank = fit.profile({"a": 1.0})
    assert blank.goodput("a", 4, False, 1.0, 0.0) == pytest.approx(4 * blank.goodput("a", 1, False, 1.0, 0.0))
    assert fit.allowed == 1 and fit.noise == 0.0
    fit.measure("a", 1, False, 1.0, 2.5)
    seen = fit.profile({"a": 1.0})
    assert seen.goodput("a", 1, False, 1.0, 0.0) == pytest.approx(PROFILE.goodput("a", 1, False, 1.0, 0.0))
    assert seen.times["a"].sync_s == 0.0 and seen.times["a"].grad_s == pytest.approx(seen.times["a"].sample_s * 64)
    assert fit.allowed == 2 and fit.noise == 2.5
    two = BatchProfile(64, 1024, 64, ((0.0, 1.0),), {"a": TIMES, "b": TIMES})
    other = GoodputFit(two, 1)
    other.measure("a", 1, False, 1.0, 1.0)
    known = other.profile({"a": 2.0, "b": 1.0}).times
    assert known["b"].sample_s == pytest.approx(2 * known["a"].sample_s)


@pytest.mark.parametrize("name", ["pollux", "sia"])
def test_policies_that_fit_end_up_with_the_truth(name: str) -> None:
    """One job alone: it doubles its devices round by round, and loses little against one whose profile is known. The loop goes on
    by the truth, and after some rounds the fitted goodput is the true one where the job runs."""
    cluster, entry = one_kind(4), find_policy(name)

    def loop(fitted: bool) -> EventLoop:
        return EventLoop(adaptive_jobs(1), cluster, entry.make([], cluster), entry.estimator(0.0, 0), fitted=fitted)

    known, learnt = loop(False).run(), loop(True)
    found = learnt.run()
    assert known.states[0].finish_s < found.states[0].finish_s < 1.5 * known.states[0].finish_s
    assert [stay.devices for stay in found.stays] == [1, 2, 4]
    fit = found.states[0].fit
    assert fit is not None
    profile = fit.profile({"a": 1.0})
    assert profile.goodput("a", 4, False, 1.0, 1.0) == pytest.approx(PROFILE.goodput("a", 4, False, 1.0, 1.0), rel=0.2)
