from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.device.device import GIB, Device, Link, Machine, Peaks
from bricolage.errors import BadOption

DESCRIBED = Device(
    name="cpu",
    kind="cpu",
    model="Some Processor",
    instructions=frozenset({"avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"}),
    cores=tuple(range(8)),
    physical_cores=4,
    memory_bytes=16 * GIB,
    peaks=Peaks(gflops=640.0, gbytes=20.0),
)


def test_what_changes_times_changes_the_fingerprint() -> None:
    others = [
        replace(DESCRIBED, model="Other"),
        replace(DESCRIBED, instructions=frozenset({"avx2", "fma"})),
        replace(DESCRIBED, physical_cores=8),
        replace(DESCRIBED, system="Darwin"),
        replace(DESCRIBED, architecture="arm64"),
        replace(DESCRIBED, isa="avx512"),
    ]
    assert len({device.fingerprint() for device in (DESCRIBED, *others)}) == 7


def test_memory_and_threads_do_not_change_the_fingerprint() -> None:
    """A container with less memory times the same, and threads are a part of a cost's key of their own."""
    for other in (
        replace(DESCRIBED, memory_bytes=2 * GIB),
        replace(DESCRIBED, cores=(0, 1)),
        replace(DESCRIBED, peaks=Peaks(1.0, 1.0)),
        replace(DESCRIBED, instructions=frozenset(sorted(DESCRIBED.instructions, reverse=True))),
        replace(DESCRIBED, instructions=DESCRIBED.instructions | {"bmi2"}),
    ):
        assert other.fingerprint() == DESCRIBED.fingerprint()


def test_an_instruction_set_leaves_out_what_is_beyond_it() -> None:
    avx512, avx2 = DESCRIBED.kept_to("avx512"), DESCRIBED.kept_to("avx2")
    assert avx512.instructions == {"avx2", "fma", "avx512f", "avx512_bf16"}
    assert avx2.instructions == {"avx2", "fma"}
    assert (DESCRIBED.bfloat16, avx512.bfloat16, avx2.bfloat16) == (True, True, False)
    assert DESCRIBED.kept_to("") is DESCRIBED
    assert len({device.fingerprint() for device in (DESCRIBED, avx512, avx2)}) == 3, "costs are kept apart"
    assert "kept to avx2" in str(avx2) and "kept to" not in str(DESCRIBED)


def test_a_limit_is_never_widened() -> None:
    avx2 = DESCRIBED.kept_to("avx2")
    assert avx2.kept_to("avx512") is avx2 and avx2.kept_to("avx2") is avx2
    assert DESCRIBED.kept_to("avx512").kept_to("avx2") == avx2


def test_half_the_lanes_are_half_the_peak() -> None:
    assert DESCRIBED.kept_to("avx512").peaks == DESCRIBED.peaks
    avx2 = DESCRIBED.kept_to("avx2").peaks
    assert avx2.gflops == DESCRIBED.peaks.gflops / 2 and avx2.gbytes == DESCRIBED.peaks.gbytes


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(BadOption, match="sse9"):
        DESCRIBED.kept_to("sse9")


def test_a_group_of_cores_is_a_device_of_its_own() -> None:
    group = DESCRIBED.group([2, 0, 1, 5, 5])
    assert (group.name, group.cores, group.threads) == ("cpu:0-2,5", (0, 1, 2, 5), 4)
    assert group.fingerprint() == DESCRIBED.fingerprint(), "the same processor"
    assert DESCRIBED.group(range(8)) is DESCRIBED
    assert group.group([1]).name == "cpu:1"
    assert DESCRIBED.kept_to("avx2").group([0]).isa == "avx2"


@pytest.mark.parametrize("cores", [[], [7, 8], [-1]])
def test_cores_that_it_does_not_have_are_refused(cores: list[int]) -> None:
    with pytest.raises(BadOption, match="0,1,2,3,4,5,6,7"):
        DESCRIBED.group(cores)


@given(st.sets(st.integers(0, 7), min_size=1, max_size=7))
def test_names_of_groups_tell_them_apart(cores: set[int]) -> None:
    group = DESCRIBED.group(sorted(cores))
    listed: list[int] = []
    for part in group.name.removeprefix("cpu:").split(","):
        first, _, last = part.partition("-")
        listed += range(int(first), int(last or first) + 1)
    assert tuple(listed) == group.cores == tuple(sorted(cores))


def test_a_described_device_reads_well() -> None:
    text = "Some Processor with amx_bf16, avx512_bf16, 4 cores (8 usable), 16 GB, Linux x86_64; "
    text += "caches are not stated, taken are 32 KiB for L1 and 1024 KiB for L2"
    assert str(DESCRIBED) == text
    bare = replace(DESCRIBED, instructions=frozenset(), physical_cores=1, cores=(0,))
    assert str(bare).startswith("Some Processor, 1 core (1 usable), 16 GB, Linux x86_64; ")


def test_the_roofline_is_the_larger_of_operations_and_bytes() -> None:
    peaks = Peaks(gflops=100.0, gbytes=10.0)
    assert peaks.floor_ms(1e9, 0) == pytest.approx(10.0)
    assert peaks.floor_ms(1e9, 5e8) == pytest.approx(50.0)


def test_links_cost_latency_and_bandwidth() -> None:
    link = Link(("cpu", "accelerator"), gbytes=10.0, latency_us=20.0)
    assert link.ms(0) == pytest.approx(0.02)
    assert link.ms(10_000_000) == pytest.approx(1.02)


def test_a_machine_moves_over_its_links_only() -> None:
    other = replace(DESCRIBED, name="accelerator")
    machine = Machine((DESCRIBED, other), (Link(("cpu", "accelerator"), 10.0),))
    for ends in (("cpu", "accelerator"), ("accelerator", "cpu")):
        assert machine.move_ms(*ends, 10_000_000) == pytest.approx(1.0)
    assert Machine((DESCRIBED, other)).move_ms("cpu", "accelerator", 10_000_000) == 0.0, "one memory"


@pytest.mark.parametrize(
    ("names", "ends", "reason"),
    [
        ((), (), "no device"),
        (("a", "a"), (), "several devices 'a'"),
        (("a", "b"), (("a", "c"),), "ends at 'c', and there is no such device, only a, b"),
        (("a", "b"), (("a", "a"),), "'a' to itself"),
        (("a", "b"), (("a", "b"), ("b", "a")), "several links between 'a' and 'b'"),
    ],
)
def test_machines_that_make_no_sense(names: tuple[str, ...], ends: tuple[tuple[str, str], ...], reason: str) -> None:
    devices = tuple(replace(DESCRIBED, name=name) for name in names)
    with pytest.raises(ValueError, match=reason):
        Machine(devices, tuple(Link(one, 1.0) for one in ends))


def test_costs_that_are_on_record_are_found_again() -> None:
    """Fingerprints as they have been since costs are kept under them."""
    assert DESCRIBED.fingerprint() == DESCRIBED.group([0]).fingerprint() == "9d67e25d93f3"
    assert DESCRIBED.kept_to("avx2").fingerprint() == "1ab47a032285"
