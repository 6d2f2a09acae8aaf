"""Random streams of lanes: what dropout draws for a lane is what it would draw if that lane were trained alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

    def state(self, row: int) -> torch.Tensor:
        """Where the stream of a lane stands."""
        return self._generators[self._of_lane[row]].get_state()

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these lanes alone."""
        left = [self._of_lane[row] for row in rows]
        order = list(dict.fromkeys(left))
        self._generators = [self._generators[stream] for stream in order]
        self._of_lane = [order.index(stream) for stream in left]

    def draw(self, masks: Sequence[Mask]) -> list[torch.Tensor]:
        """Factors for every mask, [lanes, *shape], or [1, *shape] where all lanes draw the same."""
        return self._scale_masks(masks, self._raw(masks))

    def _raw(self, masks: Sequence[Mask]) -> list[torch.Tensor]:
        """Zeros and ones, by stream. Nothing here runs on several threads."""
        import torch

        drawn = []
        count = len(self._generators)
        for mask in masks:
            order = mask.order or tuple(range(len(mask.shape)))
            places = [0, *(order.index(dimension) + 1 for dimension in range(len(order)))]
            samples = torch.empty((count, *(mask.shape[dimension] for dimension in order)), dtype=mask.dtype).permute(
                places
            )
            for part, rate, generator in zip(samples, self._rates(mask), self._generators, strict=True):
                if 0.0 < rate < 1.0:
                    part.bernoulli_(1.0 - rate, generator=generator)
                else:  # PyTorch draws nothing then, either
                    part.fill_(1.0 - rate)
            drawn.append(samples)
        return drawn

    def _scale_masks(self, masks: Sequence[Mask], drawn: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        finished = []
        count = len(self._generators)
        for mask, samples in zip(masks, drawn, strict=True):
            kept = [1.0 - rate or 1.0 for rate in self._rates(mask)]
            if len(set(kept)) > 1:
                for part, share in zip(samples, kept, strict=True):
                    part.div_(share)
            elif kept[0] != 1.0:
                samples.div_(kept[0])
            finished.append(samples if count in (1, len(self._of_lane)) else samples[self._of_lane])
        return finished

    def _rates(self, mask: Mask) -> list[float]:
        return [mask.rates[self._of_lane.index(stream)] for stream in range(len(self._generators))]


class DrawnAhead:
    """Streams that draw for the next step while this one is computed: random numbers come from one thread each, whatever cores
    there are."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._thread = ThreadPoolExecutor(1)
        self._masks: tuple[Mask, ...] = ()
        self._before: list[torch.Tensor] = []
        self._drawing: Future[list[torch.Tensor]] | None = None

    def draw(self, masks: Sequence[Mask]) -> list[torch.Tensor]:
        """As `Streams.draw`."""
        streams, wanted = self._streams, tuple(masks)
        if self._drawing is not None and wanted != self._masks:
            self.discard()
        drawn = streams._raw(wanted) if self._drawing is None else self._drawing.result()
        finished = streams._scale_masks(wanted, drawn)
        self._masks, self._before = wanted, [generator.get_state() for generator in streams._generators]
        self._drawing = self._thread.submit(streams._raw, wanted)
        return finished

    def discard(self) -> None:
        """The streams are where they were before anything was drawn ahead."""
        if self._drawing is not None:
            self._drawing.result()
            for generator, state in zip(self._streams._generators, self._before, strict=True):
                generator.set_state(state)
            self._drawing = None
