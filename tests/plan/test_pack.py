"""Which target starts from which, and what an index may hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.base.codec import DecodeError, decode, encode, parse
from bricolage.plan.pack import Pack, PackEntry, PackTarget, tree

TARGETS = st.builds(
    PackTarget,
    st.just("t"),
    st.sampled_from(("highest", "high", "medium")),
    st.sampled_from((None, 1, 2, 4)),
    st.sampled_from(("", "avx512", "avx2")),
    st.sampled_from((None, 100, 500)),
)


def entry(name: str, parent: str = "", **more: object) -> PackEntry:
    facts = {
        "seconds": 1.0,
        "median_ms": 1.0,
        "threads": 2,
        "instructions": ("avx2",),
        "system": "Linux",
        "architecture": "x86_64",
    }
    target = PackTarget(name, precision=more.pop("precision", "highest"))  # type: ignore[arg-type]
    return PackEntry(target, f"plan-{name}.json", parent, **{**facts, **more})  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(drawn=st.lists(TARGETS, min_size=1, max_size=7))
def test_a_parent_is_the_tightest_that_is_looser(drawn: list[PackTarget]) -> None:
    targets = tuple(PackTarget(f"t{n}", t.precision, t.threads, t.isa, t.memory_mb) for n, t in enumerate(drawn))
    found = tree(targets)
    assert sorted(target.name for target, _ in found) == sorted(target.name for target in targets)
    seen = set[str]()
    for target, parent in found:
        looser = [one for one in targets if one is not target and one.looser(target) and not target.looser(one)]
        if parent is None:
            assert not looser, "a root has nothing above it"
        else:
            assert parent.looser(target) and parent.name in seen, "parents are decided first"
            between = [one for one in looser if parent.looser(one) and not one.looser(parent)]
            assert not between, "nothing lies between the two"
        seen.add(target.name)


def test_a_chain_and_a_fork() -> None:
    here, one, small = PackTarget("here"), PackTarget("one", threads=1), PackTarget("small", threads=1, isa="avx2")
    rough = PackTarget("rough", precision="medium")
    found = {target.name: parent.name if parent else "" for target, parent in tree((small, here, one, rough))}
    assert found == {"rough": "", "here": "rough", "one": "here", "small": "one"}


@pytest.mark.parametrize(
    "entries",
    [(), (entry("a"), entry("a")), (entry("a", "b"),)],
)
def test_indexes_that_contradict_themselves(entries: tuple[PackEntry, ...]) -> None:
    with pytest.raises((ValueError, DecodeError)):
        decode(Pack, {"entries": [encode(one) for one in entries], "seconds": {}})


def test_an_index_comes_back() -> None:
    found = Pack((entry("a"), entry("b", "a", resident_bytes=7)), {"model": 1.5})
    assert decode(Pack, encode(found)) == found and found.entry("c") is None
    with pytest.raises(DecodeError):
        decode(Pack, parse(b'{"entries": [{"target": {"name": "../x"}}]}'))
