"""Kernels in waves: fewer meetings, memory that no two kernels of a wave share, and the same bits as one after another."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.backends.native.structural_parameters import WAVES
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.isa import available_isas
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.kernel_plan import FusionPlan, kernel_reads
from bricolage.native.module import generate
from bricolage.testing import SideBySide
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.cpu.test_threads import compiled, run
from tests.native.exactness import check
from tests.native.ways import ISAS

IN_WAVES = KernelConfig("f32", ((WAVES, True),))
BRANCHES = """
    a = MatMul (x, u)  b = MatMul (a, v)  c = MatMul (b, u)
    d = MatMul (x, v)  e = MatMul (d, u)  f = MatMul (e, v)
    g = Concat <axis = 1> (c, f)
    h = ReduceMax <keepdims = 1> (g, axes)
    y = Sub (g, h)
"""


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def branches(folder: Path, threads: int = 2) -> tuple[RegionModel, FusionPlan, FusionPlan, CpuTarget]:
    """Two branches of three products, and what joins them; one after another, and in waves."""
    model = regions.region(
        folder, BRANCHES, "float[24, 16] x", "float[24, 32] y", u=noise(16, 16), v=noise(16, 16) / 2, axes=np.array([1])
    )
    target = CpuTarget(available_isas()[-1], threads, host().caches)
    one, other = (plan_fused_kernels(model, target, FLOAT32, {}, waves=waves) for waves in (False, True))
    return model, one, other, target


def apart(plan: FusionPlan) -> None:
    """No two kernels of a wave touch what one of them writes."""
    for section in plan.sections:
        for one, other in combinations(section, 2):
            for first, second in ((one, other), (other, one)):
                written = plan.kernels[first].targets
                touched = (*plan.kernels[second].targets, *kernel_reads(plan.kernels[second], plan))
                for a in written:
                    for b in touched:
                        if a.storage == b.storage:
                            continue  # of one storage, the differential tests speak
                        if a.storage[0] == b.storage[0] == "arena":
                            (begin, end), (start, stop) = (plan.arena_span(s.storage[1]) for s in (a, b))
                            assert end <= start or stop <= begin


def test_independent_kernels_share_a_meeting(tmp_path: Path) -> None:
    _, one, other, target = branches(tmp_path)
    assert one.waves is None and len(one.kernels) == len(other.kernels)
    assert other.waves is not None and sorted(sum(other.waves, ())) == list(range(len(one.kernels)))
    assert max(map(len, other.waves)) == 2
    before, after = (generate(plan, target) for plan in (one, other))
    assert after.meetings < before.meetings
    apart(other)


def test_a_chain_stays_in_its_order(tmp_path: Path) -> None:
    model = regions.conv_net(tmp_path)
    target = CpuTarget(available_isas()[-1], 2, host().caches)
    plan = plan_fused_kernels(model, target, FLOAT32, {}, waves=True)
    assert plan.waves == tuple((number,) for number in range(len(plan.kernels)))
    assert generate(plan, target).text == generate(plan_fused_kernels(model, target, FLOAT32, {}), target).text
    assert IN_WAVES not in Native().structures(model, regions.F32, Resources(threads=2))


def test_waves_are_offered_where_kernels_are_side_by_side(tmp_path: Path) -> None:
    model, *_ = branches(tmp_path)
    assert IN_WAVES in Native().structures(model, regions.F32, Resources(threads=2))
    assert IN_WAVES not in Native().structures(model, regions.F32, Resources(threads=1))
    space = Native().space(model, IN_WAVES, Resources(threads=2))
    assert IN_WAVES in space and regions.F32 not in space and space.base == IN_WAVES
    with pytest.raises(Refused, match="'waves' cannot be 3"):
        Native().compile(model, KernelConfig("f32", ((WAVES, 3),)), Resources(threads=2))


@pytest.mark.thinned("threads")
@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name, indirect=True)
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.usefixtures("isa")
def test_random_regions_side_by_side(threads: int) -> None:
    check(SideBySide(range(2 * threads, 2 * threads + 2)), threads, threads, IN_WAVES)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["product", "softmax", "sum", "joined", "convolved"]), st.integers(0, 30), st.integers(0, 30)
    ),
    min_size=4,
    max_size=9,
)


def network(steps: list[tuple[str, int, int]]) -> str:
    """A graph of tensors of 2×8×6×6 in which every step reads one or two that are there."""
    names, lines, used = ["x"], [], set()
    for number, (kind, first, second) in enumerate(steps):
        a, b = names[first % len(names)], names[second % len(names)]
        used |= {a, b} if kind in ("sum", "joined") else {a}
        t = f"t{number}"
        lines += {
            "product": [f"{t} = MatMul ({a}, w)"],
            "softmax": [f"{t} = Softmax ({a})"],
            "sum": [f"{t}s = Add ({a}, {b})", f"{t} = Tanh ({t}s)"],
            "joined": [f"{t}j = Concat <axis = 1> ({a}, {b})", f"{t} = Conv ({t}j, k1)"],
            "convolved": [f"{t} = Conv <pads = [1, 1, 1, 1]> ({a}, k3)"],
        }[kind]
        names.append(t)
    ends = [name for name in names[1:] if name not in used]
    return " ".join([*lines, f"y = Sum ({', '.join(ends)})"])


@settings(max_examples=3, deadline=None)
@given(steps=STEPS, threads=st.sampled_from([2, 4]))
def test_the_bits_are_those_of_one_after_another(
    steps: list[tuple[str, int, int]], threads: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("waves")
    ends = "float[2, 8, 6, 6]"
    constants = {"w": noise(6, 6) / 3, "k1": noise(8, 16, 1, 1) / 4, "k3": noise(8, 8, 3, 3) / 9}
    model = regions.region(folder, network(steps), f"{ends} x", f"{ends} y", **constants)
    x = noise(2, 8, 6, 6)
    one, other = (
        Native().compile(model, config, Resources(threads=threads)).run([x])[0] for config in (regions.F32, IN_WAVES)
    )
    assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    apart(plan_fused_kernels(model, CpuTarget(available_isas()[-1], threads, host().caches), FLOAT32, {}, waves=True))


_DRIVER = r"""
int main(void) {
  enum { ENDS = 8, BYTES = 1 << 16 };
  char *io[ENDS], *weights = aligned_alloc(64, WEIGHTS + 64), *arena = aligned_alloc(64, ARENA + 64);
  char *scratch = aligned_alloc(64, SCRATCH + 64);
  for (int n = 0; n < ENDS; n++) memset(io[n] = aligned_alloc(64, BYTES), 0, BYTES);
  memset(weights, 0, WEIGHTS); memset(arena, 0, ARENA); memset(scratch, 0, SCRATCH);
  void *team = region_program.team_make(THREADS, 1);
  for (int n = 0; n < 50; n++) region_program.run(team, io, arena, weights, scratch, 1);
  region_program.team_release(team);
  return 0;
}
"""


def sanitized(folder: Path, source: CSource, threads: int, text: str) -> str:
    """What the thread sanitizer says of a region's library."""
    own = -(-source.thread_scratch_bytes // 64) * 64
    sizes = {
        "WEIGHTS": source.weights.size,
        "ARENA": -(-source.arena_bytes // 64) * 64 + 64,
        "SCRATCH": own * threads + -(-source.shared_scratch_bytes // 64) * 64 + 64,
    }
    words = [f"-D{name}={size}" for name, size in sizes.items()]
    program = compiled(folder, f"#define PROGRAM region_program\n{text}\n{_DRIVER}", "-fsanitize=thread", *words)
    return run(program, fixed=True).stderr


def test_the_thread_sanitizer_sees_no_race(tmp_path: Path) -> None:
    plan = branches(tmp_path)[2]
    source = generate(plan, CpuTarget(available_isas()[-1], 2, host().caches))
    assert "WARNING" not in (told := sanitized(tmp_path, source, 2, source.text)), told[:3000]
    # On a busy machine threads happen not to meet: one run in twenty sees nothing.
    racing = source.text.replace("  meet(at);", "")
    assert any("data race" in sanitized(tmp_path, source, 2, racing) for _ in range(5)), "it would see one"
