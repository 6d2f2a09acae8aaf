"""Layers of a network as a model of memory traffic sees them: channels, rows, columns and weights, and which reads which."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from bricolage.work.bits import of


@dataclass(frozen=True)
class Layer:
    """One layer that turns rows of images into rows. A product of tokens has one column and a row for each token."""

    name: str
    reads: tuple[str, ...]
    """Names of layers; none for one that reads the image alone."""
    channels_in: int
    channels: int
    size: int
    """Rows of the output."""
    window: int = 1
    """Rows that a row of the output reads."""
    stride: int = 1
    """Of rows and columns."""
    weighted: bool = True
    """Whether it multiplies with weights. Others (pools, sums, concatenations) work on what passes."""
    columns: int | None = None
    """Of the output; None: as many as rows."""
    taps: int | None = None
    """Weights for each pair of channels; None: a square of `window`."""
    groups: int = 1
    """Parts into which input and output channels are divided, each convolved by itself."""
    apart: int | None = None
    """Words of constants of a layer that no group may hold with another of its kind or of weights; None where groups may."""
    barred: tuple[str, ...] = ()
    """Of what it reads: layers whose rows are not the rows that it reads, so that no group holds both."""
    given: int = 0
    """Words of one image that it reads of no layer, and that `LayerNetwork.image` does not count."""

    @property
    def width(self) -> int:
        """Columns of the output."""
        return self.size if self.columns is None else self.columns

    @property
    def pixels(self) -> int:
        """Of the output, for one image."""
        return self.size * self.width

    @property
    def window_taps(self) -> int:
        """Weights for each pair of channels."""
        return self.window**2 if self.taps is None else self.taps

    @property
    def weights(self) -> int:
        """Words."""
        return self.channels_in * self.channels * self.window_taps // self.groups if self.weighted else 0

    @property
    def elementwise(self) -> bool:
        """Whether an element of the output needs that of each input at its own place alone, and no weights."""
        return not self.weighted and self.apart is None and self.window == 1 and self.stride == 1


@dataclass(frozen=True)
class LayerNetwork:
    """Layers, each behind those that it reads."""

    name: str
    layers: tuple[Layer, ...]
    image: int
    """Words of one image, which the layers without sources read."""
    batch: int

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {layer.name: number for number, layer in enumerate(self.layers)}

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """By layer the numbers of those that it reads."""
        return tuple(tuple(self._numbers[name] for name in layer.reads) for layer in self.layers)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """By layer the numbers of those that read it."""
        users: list[list[int]] = [[] for _ in self.layers]
        for number, sources in enumerate(self.sources):
            for source in dict.fromkeys(sources):
                users[source].append(number)
        return tuple(map(tuple, users))

    @cached_property
    def before(self) -> tuple[int, ...]:
        """By layer the set of those that it reads."""
        return tuple(of(sources) for sources in self.sources)

    @cached_property
    def barred(self) -> tuple[int, ...]:
        """By layer the set of those that it reads, and that are in no group with it."""
        return tuple(of(self._numbers[name] for name in layer.barred) for layer in self.layers)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """By layer how many rows of the image one of its rows is away from the next; 1 again where rows are not passed on."""
        strides: list[int] = []
        for layer, sources, barred in zip(self.layers, self.sources, self.barred, strict=True):
            passing = [strides[source] for source in sources if not barred >> source & 1]
            strides.append(layer.stride * max(passing, default=1))
        return tuple(strides)

    @cached_property
    def shares(self) -> tuple[float, ...] | None:
        """By layer the least part of its rows that tiles of any group hold together; None where sizes do not divide one another.

        A tile holds the rows that the readers' windows reach. Rows that lie between windows smaller than their strides are
        left out.
        """
        extents = {layer.size * stride for layer, stride in zip(self.layers, self.strides, strict=True)}
        steps = sorted(set(self.strides))
        if len(extents) > 1 or any(larger % smaller for smaller, larger in itertools.pairwise(steps)):
            return None
        shares = [1.0] * len(self.layers)
        for number in reversed(range(len(self.layers))):
            readers = [(shares[user], self.layers[user]) for user in self.users[number]]
            shares[number] = min([1.0, *(share * min(1.0, layer.window / layer.stride) for share, layer in readers)])
        return tuple(shares)
