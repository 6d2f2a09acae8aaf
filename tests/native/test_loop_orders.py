"""What threads take for loops in several orders, against counts by hand and against every schedule of a small plan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Missing, Resources
from bricolage.backends.native.engine import Native
from bricolage.backends.native.structural_parameters import WAVES
from bricolage.device.host import host
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.isa import available_isas
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.threads import MEETING_MS
from bricolage.native.loop_orders import LoopOrders, scale_to
from bricolage.work.implementation import KernelConfig
from tests.backends import regions

F32 = KernelConfig("f32")
ENDS = "float[1, 16] x", "float[1, 16] y"


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def orders(folder: Path, text: str, threads: int, **constants: np.ndarray) -> tuple[LoopOrders, int]:
    """Of a region of one row, whose kernels have one piece each; and how many kernels it has."""
    region = regions.region(folder, text, *ENDS, **constants)
    target = CpuTarget(available_isas()[-1], threads, host().caches)
    plan = plan_fused_kernels(region, target, FLOAT32, {}, strands=False, slices=False)
    return LoopOrders(plan, target, FLOAT32), len(plan.kernels)


BRANCHES = """
    a = MatMul (x, u)  b = Softmax (a)  c = Softmax (b)
    d = MatMul (x, v)  e = Softmax (d)  f = Softmax (e)
    y = Add (c, f)
"""


def test_kernels_of_one_piece_leave_threads_idle(tmp_path: Path) -> None:
    """Two branches. Kernel by kernel all but one thread idle; in waves, and in lists, two threads have a branch each."""
    found, kernels = orders(tmp_path, BRANCHES, 2, u=weights(16, 16), v=weights(16, 16) / 2)
    compared = found.compare([1.0] * kernels)
    loops = sum(len(group) for group in found.usual_groups)
    assert compared.tasks >= kernels >= 5 and compared.threads == 2 and found.together >= 2
    assert compared.barriers_ms >= compared.usual_ms > compared.waves_ms
    assert compared.lists_ms <= compared.waves_ms and compared.lower_ms <= compared.lists_ms
    if compared.tasks == loops == kernels:
        assert compared.barriers_ms == pytest.approx(kernels + loops * MEETING_MS)
    assert compared.waves_ms == pytest.approx(found.waves_ms([1.0] * kernels))
    assert compared.usual_ms == pytest.approx(found.usual_ms([1.0] * kernels))


def shortest(durations: Sequence[float], sources: Sequence[set[int]], threads: int) -> float:
    """The shortest of all list schedules: of every order that keeps to the sources, each task on the thread that is free first."""
    best = float("inf")
    for order in itertools.permutations(range(len(durations))):
        ends: dict[int, float] = {}
        free = [0.0] * threads
        for task in order:
            if not all(source in ends for source in sources[task]):
                break
            begin = max([min(free), *(ends[source] for source in sources[task])])
            free[free.index(min(free))] = ends[task] = begin + durations[task]
        else:
            best = min(best, max(free))
    return best


@pytest.mark.parametrize("threads", [2, 3])
def test_lists_and_the_bound_enclose_the_shortest_schedule(tmp_path: Path, threads: int) -> None:
    found, kernels = orders(tmp_path, BRANCHES, threads, u=weights(16, 16), v=weights(16, 16) / 2)
    loops = [loop for group in found.usual_groups for loop in group]
    if len(loops) != kernels or any(loop.share.pieces(threads) > 1 for loop in loops):
        pytest.skip("a processor on which these kernels have several tasks")
    for seed in range(6):
        durations = np.random.default_rng(seed).uniform(0.5, 3.0, kernels).tolist()
        best = shortest(durations, found._sources, threads)
        compared = found.compare(durations)
        assert compared.lower_ms <= best + 1e-9
        assert best <= compared.lists_ms <= 4 / 3 * best + 2 * kernels * MEETING_MS


def test_shared_memory_slows_what_needs_more_than_there_is(tmp_path: Path) -> None:
    found, kernels = orders(tmp_path, BRANCHES, 2, u=weights(16, 16), v=weights(16, 16) / 2)
    free, wide, narrow = (
        found.compare([1.0] * kernels, *memory) for memory in ((), ([1e6] * kernels, 2.5), ([1e6] * kernels, 1.0))
    )
    assert wide.lists_ms == pytest.approx(free.lists_ms) and wide.shared_memory and not free.shared_memory
    assert narrow.lists_ms > free.lists_ms, "two kernels at 1e6 bytes a millisecond each need twice what there is"


def test_times_are_scaled_to_what_was_measured(tmp_path: Path) -> None:
    found, kernels = orders(tmp_path, BRANCHES, 2, u=weights(16, 16), v=weights(16, 16) / 2)
    scaled = scale_to(found, list(range(1, kernels + 1)), 7.0)
    assert found.usual_ms(scaled) == pytest.approx(7.0) and scaled[1] == pytest.approx(2 * scaled[0])


def test_the_engine_estimates_and_simulates(tmp_path: Path) -> None:
    if isinstance(Native().status(), Missing):
        pytest.skip("a C compiler")
    region = regions.region(tmp_path, BRANCHES, *ENDS, u=weights(16, 16), v=weights(16, 16) / 2)
    estimate = Native().estimate_overlap(region, F32, Resources(2, host()), 3.0)
    assert estimate is not None and dict(estimate.config.parameters) == {WAVES: True}
    assert estimate.usual_ms == pytest.approx(3.0) and estimate.overlapped_ms < 3.0 and estimate.together >= 2
    assert estimate.lower_ms <= estimate.overlapped_ms
    assert Native().estimate_overlap(region, F32, Resources(1, host()), 3.0) is None, "one thread"
    waved = F32.tuned({WAVES: True})
    assert Native().estimate_overlap(region, waved, Resources(2, host()), 3.0) is None, "they do already"
    (tmp_path / "chain").mkdir()
    chain = regions.region(tmp_path / "chain", "a = MatMul (x, u)  y = Softmax (a)", *ENDS, u=weights(16, 16))
    assert Native().estimate_overlap(chain, F32, Resources(2, host()), 3.0) is None, "a chain"
    compared = Native().simulate_orders(region, F32, Resources(2, host()), (4, 16))
    assert compared is not None
    assert [(order.threads, order.shared_memory) for order in compared] == [
        (4, False),
        (4, True),
        (16, False),
        (16, True),
    ]
    assert all(0.0 < order.lower_ms <= order.lists_ms for order in compared)
