"""Which blocks to compute again in the backward phase so that a step fits into a limit of memory at least time.

A block that is recomputed keeps its input alone; what it kept for the backward phase is saved, and its forward phase runs
twice. Choosing blocks is a knapsack over the measured graph: least forward time that is repeated, at least the needed bytes saved,
solved exactly as an integer programme (as Piper, NeurIPS 2021, does for each stage). Bytes do not quite add up, since a
recomputed block holds its activations for a moment again: each answer's graph is made and its true peak read; where that is too
high, more has to be saved. No choice is better than one that the programme would find, as far as bytes add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MOST_TRIES = 24


@dataclass(frozen=True)
class Block:
    """A module that can be computed again: milliseconds of its forward phase, and bytes that it keeps but for its input."""

    name: str
    ms: float
    bytes: int


@dataclass(frozen=True)
class Recomputation:
    """What was chosen. `fits` tells whether any choice that was tried needs no more than the limit."""

    limit_bytes: int
    blocks: tuple[str, ...]
    peak_bytes: int
    fits: bool


def choose_blocks(blocks: Sequence[Block], wanted: int) -> tuple[int, ...] | None:
    """The blocks whose times add up to least among those that save at least `wanted` bytes; None where all together do not."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    if wanted <= 0:
        return ()
    if sum(block.bytes for block in blocks) < wanted:
        return None
    sizes = np.array([float(block.bytes) for block in blocks])
    solution = milp(
        np.array([block.ms for block in blocks]) + 1e-12,
        constraints=LinearConstraint(sizes / wanted, 1.0, np.inf),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(blocks)),
    )
    if solution.x is None:
        return None
    return tuple(int(place) for place in np.flatnonzero(solution.x > 0.5))


def fit(blocks: Sequence[Block], limit: int, peak: Callable[[tuple[str, ...]], int]) -> Recomputation:
    """Blocks to recompute so that the peak is at most `limit` bytes; where nothing fits, those with the lowest peak.

    Args:
        blocks: what can be recomputed.
        limit: bytes.
        peak: the true peak of a choice.
    """
    names: tuple[str, ...] = ()
    best = Recomputation(limit, names, peak(names), False)
    wanted = best.peak_bytes - limit
    tried = {names}
    for _ in range(_MOST_TRIES):
        if best.peak_bytes <= limit:
            return Recomputation(limit, best.blocks, best.peak_bytes, True)
        chosen = choose_blocks(blocks, wanted)
        names = (
            tuple(block.name for block in blocks) if chosen is None else tuple(blocks[place].name for place in chosen)
        )
        if names in tried and chosen is None:
            return best
        if names not in tried:
            tried.add(names)
            next_peak = peak(names)
            if next_peak < best.peak_bytes:
                best = Recomputation(limit, names, next_peak, False)
            missing = next_peak - limit
        saved = sum(block.bytes for block in blocks if block.name in names)
        # The next choice must save more than this one, by what it lacks, or at least by something.
        wanted = max(saved + 1, min(saved + max(1, missing), wanted + max(1, missing)))
    return Recomputation(limit, best.blocks, best.peak_bytes, best.peak_bytes <= limit)
