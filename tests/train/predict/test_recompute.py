"""Which blocks to compute again, against all choices."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bricolage.train.predict.recompute import Block, choose_blocks, fit

BLOCKS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1000)), min_size=1, max_size=7).map(
    lambda found: [Block(str(number), float(ms), size) for number, (ms, size) in enumerate(found)]
)


def subsets(blocks: list[Block]) -> list[tuple[int, ...]]:
    return [one for count in range(len(blocks) + 1) for one in itertools.combinations(range(len(blocks)), count)]


@given(BLOCKS, st.integers(0, 4000))
def test_no_choice_is_cheaper(blocks: list[Block], wanted: int) -> None:
    fitting = [one for one in subsets(blocks) if sum(blocks[place].bytes for place in one) >= wanted]
    found = choose_blocks(blocks, wanted)
    assert (found is None) == (not fitting)
    if found is not None:
        assert sum(blocks[place].bytes for place in found) >= wanted
        cheapest = min(sum(blocks[place].ms for place in one) for one in fitting)
        assert sum(blocks[place].ms for place in found) <= cheapest + 1e-6


@given(BLOCKS, st.integers(0, 3000), st.integers(0, 400))
def test_what_comes_back_in_the_backward_phase_is_reckoned_with(blocks: list[Block], limit: int, base: int) -> None:
    sizes = {one.name: one.bytes for one in blocks}

    def peak(names: tuple[str, ...]) -> int:
        kept = base + sum(size for name, size in sizes.items() if name not in names)
        return kept + max([0, *(sizes[name] // 3 for name in names)])  # one at a time is there again

    every = min(peak(tuple(blocks[place].name for place in one)) for one in subsets(blocks))
    found = fit(blocks, limit, peak)
    assert found.peak_bytes == peak(found.blocks)
    assert found.fits == (found.peak_bytes <= limit)
    if peak(()) <= limit:
        assert found.fits and not found.blocks
    if every > limit:
        assert not found.fits
