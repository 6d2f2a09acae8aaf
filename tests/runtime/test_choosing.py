"""Which plan of a pack a machine takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bricolage.device.host import host
from bricolage.errors import NoTarget
from bricolage.plan.pack import Pack, PackEntry
from bricolage.runtime.choosing import choose_entry
from tests.plan.test_pack import entry

HERE = replace(host(), system="Linux", architecture="x86_64", instructions=frozenset({"avx2", "fma"}))


def pack(*entries: PackEntry) -> Pack:
    return Pack(entries)


def test_the_fastest_that_runs_here() -> None:
    found = choose_entry(pack(entry("two", median_ms=2.0), entry("one", median_ms=3.0, threads=1)), HERE, 2, free=10)
    assert found.entry.target.name == "two" and found.because == "the fastest of 2 that run here"
    found = choose_entry(pack(entry("two", median_ms=2.0), entry("one", median_ms=3.0, threads=1)), HERE, 1, free=10)
    assert found.entry.target.name == "one"
    assert found.because == "the only one that runs here (not two: it has 2 threads, and this process may use 1)"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"instructions": ("amx_tile", "avx2")}, "this machine has no amx_tile"),
        ({"architecture": "aarch64"}, "it is for Linux aarch64"),
        ({"resident_bytes": 1 << 31}, "it takes 2.00 GiB, and 1.00 GiB are free"),
        ({"threads": 3}, "it has 3 threads, and this process may use 2"),
    ],
)
def test_what_a_machine_lacks(more: dict[str, object], told: str) -> None:
    with pytest.raises(NoTarget, match=told):
        choose_entry(pack(entry("a", **more)), HERE, 2, free=1 << 30)
    found = choose_entry(pack(entry("a", median_ms=0.1, **more), entry("b", resident_bytes=5)), HERE, 2, free=1 << 30)
    assert found.entry.target.name == "b" and told in found.because


def test_precision_is_given_up_only_when_asked() -> None:
    both = pack(entry("exact", median_ms=9.0), entry("rough", median_ms=1.0, precision="medium"))
    assert choose_entry(both, HERE, 2, free=10).entry.target.name == "exact"
    assert choose_entry(both, HERE, 2, free=10, precision="medium").entry.target.name == "rough"
    with pytest.raises(NoTarget, match="none has precision high"):
        choose_entry(pack(entry("rough", precision="medium")), HERE, 2, free=10, precision="high")


def test_a_plan_decided_more_tightly_than_asked_counts_so() -> None:
    """Of a target with a limit of latency, which accepts `low` and got `highest`."""
    kept = entry("kept", median_ms=2.0)
    kept = replace(kept, target=replace(kept.target, precision="low", latency_ms=5.0), precision="highest")
    both = pack(entry("high", median_ms=1.0, precision="high"), kept)
    assert choose_entry(both, HERE, 2, free=10).entry.target.name == "kept"


def test_what_was_made_for_other_instructions() -> None:
    """Emulated where it was made: taken by whoever has the instructions and was not measured on, whatever the times say; by nobody
    else, not by name either. What describes a device alone is taken by name."""
    made = entry("wide", median_ms=9.0, predicted_ms=(8.0, 10.0), instructions=("avx2", "avx512f"))
    wide = replace(HERE, instructions=HERE.instructions | {"avx512f"})
    measured = entry("here", median_ms=1.0, measured_on="another model")
    both = pack(measured, made)
    assert choose_entry(both, wide, 2, free=10).entry.target.name == "wide"
    assert choose_entry(both, HERE, 2, free=10).entry.target.name == "here"
    alike = pack(replace(measured, measured_on=wide.model), made)
    assert choose_entry(alike, wide, 2, free=10).entry.target.name == "here", "it was measured on this model"
    with pytest.raises(NoTarget, match="'wide' is for instructions that this machine has not: avx512f"):
        choose_entry(both, HERE, 2, target="wide")
    described = pack(replace(made, measured_on=HERE.model), measured)
    assert choose_entry(described, wide, 2, free=10).entry.target.name == "here"
    assert choose_entry(described, wide, 2, target="wide").entry.target.name == "wide"


def test_near_ties_go_to_what_uses_more() -> None:
    found = choose_entry(pack(entry("one", median_ms=1.0, threads=1), entry("two", median_ms=1.05)), HERE, 2, free=10)
    assert found.entry.target.name == "two"


def test_by_name() -> None:
    both = pack(entry("a"), entry("b", instructions=("amx_tile",)))
    assert choose_entry(both, HERE, 2, target="b").because == "it was asked for by name"
    with pytest.raises(NoTarget, match="no target 'c', only a, b"):
        choose_entry(both, HERE, 2, target="c")
