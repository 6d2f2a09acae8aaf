"""Random streams of lanes: what dropout draws for a lane is what it would draw if that lane were trained alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import Mask

if TYPE_CHECKING:
    import torch


class Streams:
    """One generator for each lane; lanes whose streams and rates are the same draw once."""

    def __init__(self, states: Sequence[torch.Tensor], rates: Sequence[object]) -> None:
        """`states` by lane, as `torch.get_rng_state` gives them; `rates` by lane: lanes of equal state and rates draw the same."""
        import torch

        keys = [(bytes(state.numpy()), rate) for state, rate in zip(states, rates, strict=True)]
        order = list(dict.fromkeys(keys))
        self._of_lane = [order.index(key) for key in keys]
        self._generators = [torch.Generator() for _ in order]
        for generator, (state, _) in zip(self._generators, order, strict=True):
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these lanes alone."""
        left = [self._of_lane[row] for row in rows]
        order = list(dict.fromkeys(left))
        self._generators = [self._generators[one] for one in order]
        self._of_lane = [order.index(one) for one in left]

    def draw(self, masks: Sequence[Mask]) -> list[torch.Tensor]:
        """Factors for every mask, [lanes, *shape], or [1, *shape] where all lanes draw the same."""
        import torch

        drawn = []
        count = len(self._generators)
        for mask in masks:
            rates = [mask.rates[self._of_lane.index(one)] for one in range(count)]
            order = mask.order or tuple(range(len(mask.shape)))
            places = [0, *(order.index(one) + 1 for one in range(len(order)))]
            made = torch.empty((count, *(mask.shape[one] for one in order)), dtype=mask.dtype).permute(places)
            for part, rate, generator in zip(made, rates, self._generators, strict=True):
                if rate:
                    part.bernoulli_(1.0 - rate, generator=generator)
                    if len(set(rates)) > 1:
                        part.div_(1.0 - rate)
                else:
                    part.fill_(1.0)
            if len(set(rates)) == 1 and rates[0]:
                made.div_(1.0 - rates[0])
            drawn.append(made if count in (1, len(self._of_lane)) else made[self._of_lane])
        return drawn
