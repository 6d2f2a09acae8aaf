"""Participants take turns by their clocks, and messages take what the simulator of tasks says."""

from __future__ import annotations

import random

import pytest

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.train.replicas.simulated_peers import SimulatedNetwork, SimulatedPeers
from bricolage.train.replicas.step_times import ReplicaStepTimes
from bricolage.train.replicas.virtual_time import VirtualTime
from bricolage.work.simulator import Task, simulate

torch = pytest.importorskip("torch")
TIMES = ReplicaStepTimes.given(1e-3, [1])


@pytest.mark.parametrize("cores", [None, 1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_computing_takes_the_core_that_is_free_first(cores: int | None, seed: int) -> None:
    """Participants that compute and pause in turns on shared cores: each piece of work takes the core that is free first, in the
    order in which the pieces ask for one."""
    draw = random.Random(seed)
    plans = [[(draw.uniform(0.1, 2.0), draw.uniform(0.0, 1.0)) for _ in range(6)] for _ in range(4)]
    time = VirtualTime(cores)
    asked: list[tuple[float, int, int, float]] = []

    def work(number: int) -> None:
        for place, (seconds, pause) in enumerate(plans[number]):
            time.owe(seconds)
            begin = time.now
            time.settle()
            asked.append((begin, number, place, time.now))
            time.wait_until(time.now + pause)

    time.run([lambda number=number: work(number) for number in range(len(plans))])
    free = [0.0] * (cores or len(plans))
    ends: dict[tuple[int, int], float] = {}
    for begin, number, place, end in sorted(asked):
        core = free.index(min(free)) if cores else number
        expected = max(begin, free[core]) + plans[number][place][0]
        free[core] = ends[number, place] = expected
        assert end == pytest.approx(expected)
    assert [(number, place) for _, number, place, end in sorted(asked, key=lambda row: row[3])] == sorted(
        ends, key=ends.__getitem__
    )


@pytest.mark.parametrize("seed", range(4))
def test_messages_take_what_the_simulator_says(seed: int) -> None:
    """Messages between random ranks: the ports that they occupy are resources of `work.simulator`."""
    draw = random.Random(seed)
    ring = Ring.described(4, Link(("0", "1"), 1e-4, 300.0))
    time = VirtualTime()
    network = SimulatedNetwork(time, ring)
    plans = [
        [
            (draw.uniform(0.0, 0.02), draw.choice([other for other in range(4) if other != rank]), draw.randint(1, 900))
            for _ in range(5)
        ]
        for rank in range(4)
    ]
    arrivals: list[tuple[int, float]] = []

    def send(rank: int) -> None:
        peers = SimulatedPeers(network, rank, 4, TIMES, 0)
        for pause, to, size in plans[rank]:
            peers.pause(pause)
            peers.tell(to, 2, torch.zeros(size))

    def receive(rank: int) -> None:
        peers = SimulatedPeers(network, rank, 4, TIMES, 0)
        for _ in range(sum(to == rank for plan in plans for _, to, _ in plan)):
            peers.listen(torch.empty(0))
            arrivals.append((rank, peers.seconds()))

    time.run(
        [*(lambda rank=rank: send(rank) for rank in range(4)), *(lambda rank=rank: receive(rank) for rank in range(4))]
    )
    tasks = [Task(1e3 * message.sent_s) for message in network.messages]
    count = len(tasks)
    tasks += [
        Task(message.task.ms, message.task.resources, (number,)) for number, message in enumerate(network.messages)
    ]
    ends = simulate(tasks).ends[count:]
    expected = sorted(
        (task.resources[1][0], end / 1e3 + 300e-6)  # type: ignore[index]
        for task, end in zip(tasks[count:], ends, strict=True)
    )
    assert count == 20
    for (rank, second), (to, end) in zip(sorted(arrivals), expected, strict=True):
        assert rank == to and second == pytest.approx(end)


def test_a_collective_ends_for_all_after_the_last_has_come() -> None:
    ring = Ring.described(3, Link(("0", "1"), 1e-3, 100.0))
    time = VirtualTime()
    network = SimulatedNetwork(time, ring)
    ends: dict[int, float] = {}
    means: dict[int, list[float]] = {}

    def work(rank: int) -> None:
        peers = SimulatedPeers(network, rank, 3, TIMES, 0)
        peers.pause(0.1 * rank)
        tensor = torch.full((250,), float(rank))
        peers.mean(tensor)
        ends[rank], means[rank] = peers.seconds(), tensor.unique().tolist()

    time.run([lambda rank=rank: work(rank) for rank in range(3)])
    # 4 messages of a third of 1,000 bytes at 10⁶ bytes a second, each 100 µs late.
    assert set(map(tuple, means.values())) == {(1.0,)}
    assert all(end == pytest.approx(0.2 + 4 * (1000 / 3 / 1e6 + 1e-4)) for end in ends.values())


def test_random_numbers_of_participants_are_their_own() -> None:
    drawn: dict[int, list[float]] = {}
    time = VirtualTime()

    def work(number: int) -> None:
        torch.manual_seed(number)
        for _ in range(3):
            drawn.setdefault(number, []).append(float(torch.rand(())))
            time.wait_until(time.now + 1.0)

    time.run([lambda number=number: work(number) for number in range(3)])
    for number, values in drawn.items():
        torch.manual_seed(number)
        assert values == [float(torch.rand(())) for _ in range(3)]


def test_who_fails_ends_all() -> None:
    time = VirtualTime()

    def fail() -> None:
        time.wait_until(1.0)
        raise ZeroDivisionError("at second 1")

    with pytest.raises(ZeroDivisionError, match="at second 1"):
        time.run([fail, time.wait, lambda: time.wait_until(9.0)])


def test_participants_that_wait_for_each_other_are_told() -> None:
    time = VirtualTime()
    with pytest.raises(RuntimeError, match="each participant waits for another"):
        time.run([time.wait, lambda: time.wait_until(1.0)])
