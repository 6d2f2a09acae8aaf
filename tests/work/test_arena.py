from hypothesis import given
from hypothesis import strategies as st

from bricolage.device.buffers import ALIGNMENT
from bricolage.work.arena import Residence, assign_offsets
from bricolage.work.liveness import Lifetime, peak

lifetimes = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.tuples(st.integers(0, 5000), st.integers(0, 9), st.integers(0, 9)).map(
        lambda t: Lifetime(t[0], min(t[1:]), max(t[1:]) + 1)
    ),
    max_size=12,
)


@given(lifetimes)
def test_living_tensors_never_share_memory(tensors: dict[str, Lifetime]) -> None:
    offsets, size = assign_offsets(tensors)
    assert size >= peak(tensors.values())
    for one, a in tensors.items():
        assert offsets[one] % ALIGNMENT == 0 and offsets[one] + a.bytes <= size
        for other, b in tensors.items():
            if one < other and a.overlaps(b) and a.bytes and b.bytes:
                assert offsets[one] + a.bytes <= offsets[other] or offsets[other] + b.bytes <= offsets[one]


def test_tensors_that_never_live_together_share_memory() -> None:
    _, size = assign_offsets({"a": Lifetime(640, 0, 2), "b": Lifetime(640, 1, 3), "c": Lifetime(640, 2, 4)})
    assert size == 1280


def test_tensors_share_memory_only_where_every_user_of_one_is_done_before_the_other_is_written() -> None:
    # Step 0 writes a, read by 1 and 2, which run side by side; b of step 1 is read by 3; c of step 2 by 4, after 3.
    a, b, c = Residence(640, 0, 0b11000), Residence(640, 1, 0b10000), Residence(640, 2, 0)
    d, e = Residence(640, 3, 0), Residence(640, 4, 0)
    assert a.overlaps(b) and b.overlaps(a) and b.overlaps(c) and c.overlaps(b)
    assert not a.overlaps(d) and not d.overlaps(a) and b.overlaps(d) and not b.overlaps(e)
    offsets, size = assign_offsets({"a": a, "b": b, "c": c, "d": d})
    assert size == 3 * 640 and offsets["a"] == offsets["d"] and len({offsets[n] for n in "abc"}) == 3
