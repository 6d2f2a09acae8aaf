"""What layers that are computed together move, weighted by what an access costs: the model of Optimus.

Cai et al., "Optimus: An Operator Fusion Framework for Deep Neural Networks", ACM TECS 2022 (first LCTES 2021). There is a memory, a
buffer of some words in front of it, and arithmetic that reads the buffer. A layer alone is cut into blocks of output channels,
input channels and pixels. Layers of a group pass rows to each other through the buffer: of each output that stays inside, the
buffer holds the rows that its readers' windows reach, and never more than there are. Buffered outputs take turns, all channels of
one and a block of channels of the next, for a layer that has all channels of its input can make its own output a block at a time.
Weights are read again for every tile of rows, or once if they fit with the rows.

What the authors' program does by numerical optimisers from one start (SLSQP for a layer, COBYLA for a group) is computed exactly:
all blocks of a layer are enumerated, and a group's blocks follow from its rows in closed form. Both beginnings of a group's turns
are priced, where the program takes the one that looks better. Costs are in units of the machine's weights, words at the
precision that its capacity counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.search.layer_groups.layer_network import LayerNetwork
from bricolage.search.layer_groups.layer_price import IMPOSSIBLE, GroupCost, MemoryLevels, alone
from bricolage.work.bits import of

_FRACTION = 1e-6
"""Of a row or an image: what a number just above a whole one exceeds it by."""


class TrafficModel:
    """Costs of the groups of one network on one machine."""

    def __init__(self, network: LayerNetwork, levels: MemoryLevels) -> None:
        self.network, self.levels = network, levels
        self._known: dict[int, GroupCost] = {}

    def of(self, group: int, members: Sequence[int]) -> GroupCost:
        """Of a set of layers; `members` are its numbers in ascending order."""
        cheapest = self._known.get(group)
        if cheapest is None:
            if len(members) == 1:
                cheapest = self._alone(members[0])
            elif self._parted(members):
                cheapest = IMPOSSIBLE
            else:
                cheapest = min(self._together(members), self._stored_last(members), key=lambda price: price.cost)
            self._known[group] = cheapest
        return cheapest

    def _alone(self, number: int) -> GroupCost:
        """A layer with weights in its best blocks; of others, what `MemoryLevels.passing_free` says."""
        layer, batch, levels = self.network.layers[number], self.network.batch, self.levels
        if layer.apart is None and (layer.weighted or levels.passing_free):
            return alone(layer, batch, levels)
        words = _outside_words(self.network, (number,), frozenset((number,))) + (layer.apart or 0)
        return GroupCost(levels.memory_cost * words, words)

    def _parted(self, members: Sequence[int]) -> bool:
        """Whether a layer is barred from another of these, or has to be apart from others than element-wise ones."""
        network, group = self.network, of(members)
        layers = network.layers
        if any(network.barred[number] & group for number in members):
            return True
        head, *others = members
        if any(layers[number].apart is not None for number in others):
            return True
        return layers[head].apart is not None and not all(layers[number].elementwise for number in others)

    def _stored_last(self, members: Sequence[int]) -> GroupCost:
        """A layer, and element-wise layers that are computed on its result before it is stored: what the layer moves alone, what
        the others read of others, and what they store more. Only where passing is not free."""
        network, levels, batch = self.network, self.levels, self.network.batch
        layers, inside = network.layers, frozenset(members)
        head, *others = members
        if levels.passing_free or not all(
            layers[number].elementwise
            and (layers[number].channels, layers[number].pixels) == (layers[head].channels, layers[head].pixels)
            and not inside.isdisjoint(network.sources[number])
            for number in others
        ):
            return IMPOSSIBLE
        first, result = self._alone(head), batch * layers[head].channels * layers[head].pixels
        read = {source for number in others for source in network.sources[number]} - inside - set(network.sources[head])
        words = sum(batch * layers[number].channels * layers[number].pixels for number in read)
        words += sum(batch * layers[number].given for number in others)
        stored = sum(not network.users[number] or not inside.issuperset(network.users[number]) for number in members)
        words += result * (stored - 1)
        return GroupCost(first.cost + levels.memory_cost * words, first.memory_words + words)

    def least(self, number: int) -> float:
        """No group pays less for this layer, what it reads and writes outside not counted."""
        layer = self.network.layers[number]
        if layer.apart is not None:
            return self._alone(number).cost
        if not layer.weighted:
            return 0.0
        levels, batch = self.levels, self.network.batch
        inside = layer.weights * (levels.memory_cost + levels.buffer_cost)
        inside += levels.buffer_cost * batch * layer.pixels * (layer.channels + layer.channels_in * layer.stride**2)
        return min(inside, self._alone(number).cost)

    def bound(self, members: Sequence[int]) -> float:
        """No group that holds these layers pays less for them, with at least `least` for each further one.

        All tiles together hold `LayerNetwork.shares` of every output's rows, and of each output with weights the least block of
        channels at least. So the buffer bounds how many there are, and with it how often weights pass. There is one at least where
        there are no shares, and where tiles are rounded up, which may hold more than the buffer.
        """
        if self._parted(members):
            return math.inf
        network, levels = self.network, self.levels
        layers, batch = network.layers, network.batch
        weighted = [layers[number] for number in members if layers[number].weighted]
        shares = (None if levels.rounds_up else network.shares) or (0.0,) * len(layers)
        held = [
            shares[number] * min(levels.least_channels, layers[number].channels) * layers[number].pixels
            for number in members
            if layers[number].weighted
        ]
        tiles = max(1.0, batch * sum(held) / levels.words)
        weights = sum(layer.weights for layer in weighted)
        often = levels.memory_cost * (1.0 if weights <= levels.words else tiles) + levels.buffer_cost * tiles
        passing = sum(layer.pixels * (layer.channels + layer.channels_in * layer.stride**2) for layer in weighted)
        bound = weights * often + levels.buffer_cost * batch * passing
        return bound if levels.passing_free else min(bound, sum(self.least(number) for number in members))

    def _together(self, members: Sequence[int]) -> GroupCost:
        network, inside = self.network, frozenset(members)
        layers = network.layers
        reads = {number: [source for source in network.sources[number] if source in inside] for number in members}
        if any(
            (not layers[number].weighted and not reads[number]) or layers[number].apart is not None
            for number in members
        ):
            return IMPOSSIBLE  # what has no arithmetic of its own begins no group
        lines = _Lines.of(network, members, inside)
        if lines is None:
            return IMPOSSIBLE
        cheapest = IMPOSSIBLE
        for begins_full in (True, False):
            blocks = _blocks(network, members, reads, lines, begins_full, self.levels)
            number = self._tiled(members, inside, lines, blocks)
            if number.cost < cheapest.cost:
                cheapest = number
        return cheapest

    def _tiled(self, members: Sequence[int], inside: frozenset[int], lines: _Lines, blocks: _Blocks) -> GroupCost:
        network, levels = self.network, self.levels
        layers, batch = network.layers, network.batch
        weights = sum(layers[number].weights for number in members)
        outside = _outside_words(network, members, inside)
        rows = np.arange(1, lines.most + 1, dtype=float)
        images = np.ones_like(rows)
        if batch > 1:
            rows = np.append(rows, [float(lines.most)] * (batch - 1))
            images = np.append(images, np.arange(2.0, batch + 1))
        tiles = batch * lines.most / (images * rows)
        cheapest = IMPOSSIBLE
        for kept in (0, weights):  # weights are streamed, or stay in the buffer
            chosen = blocks.cheapest(levels.words - kept, rows, images, up=levels.rounds_up and not kept)
            if kept:
                memory = weights + outside + 0.0 * tiles
            else:
                memory = weights * tiles + outside
            cost = levels.memory_cost * memory + levels.buffer_cost * (weights * tiles + chosen)
            best = int(np.argmin(cost))
            if cost[best] < cheapest.cost:
                cheapest = GroupCost(float(cost[best]), float(memory[best]))
        return cheapest


def _outside_words(network: LayerNetwork, members: Sequence[int], inside: frozenset[int]) -> int:
    """What a group reads from elsewhere, each tensor once, and what others read of it."""
    layers, batch = network.layers, network.batch
    read = {source for number in members for source in network.sources[number] if source not in inside}
    words = sum(batch * layers[number].channels * layers[number].pixels for number in read)
    words += sum(batch * layers[number].given for number in members)
    if any(not network.sources[number] for number in members):
        words += batch * network.image
    for number in members:
        users = network.users[number]
        if not users or any(user not in inside for user in users):
            words += batch * layers[number].channels * layers[number].pixels
    return words


@dataclass(frozen=True)
class _Lines:
    """Rows of a group's outputs, when its last layers have made one step."""

    step: dict[int, int]
    """By layer, rows that come with each further step."""
    first: dict[int, int]
    """Rows that the first step takes: the windows of the readers reach so far."""
    most: int
    """Steps of an image."""

    @classmethod
    def of(cls, network: LayerNetwork, members: Sequence[int], inside: frozenset[int]) -> _Lines | None:
        layers = network.layers
        strides = network.strides
        readers = {number: [user for user in network.users[number] if user in inside] for number in members}
        lasts = [number for number in members if not readers[number]]
        together = math.lcm(*(strides[number] for number in lasts))
        step: dict[int, int] = {}
        first: dict[int, int] = {}
        for number in reversed(members):
            if not readers[number]:
                step[number] = first[number] = together // strides[number]
                continue
            steps = {layers[user].stride * step[user] for user in readers[number]}
            if len(steps) > 1:
                return None  # branches of different strides meet: rows would run away from each other
            step[number] = steps.pop()
            reached = max((first[user] - 1) * layers[user].stride + layers[user].window for user in readers[number])
            first[number] = min(reached, layers[number].size)
        most = max(1, min(layers[number].size // step[number] for number in lasts))
        return cls(step, first, most)


@dataclass(frozen=True)
class _Blocks:
    """What of a group lies in the buffer, and what its block sizes cost."""

    whole: np.ndarray
    """A row for each output or input that lies there with all channels: words after one step, for each further one, and for an
    image."""
    streams: np.ndarray
    """A row for each output that passes in blocks of channels: the same of one channel; the cost of one block alone; the least and
    the most channels."""
    constant: float
    """Words that the arithmetic reads and writes where all channels are there."""

    def cheapest(self, words: float, rows: np.ndarray, images: np.ndarray, *, up: bool) -> np.ndarray:
        """Words between arithmetic and buffer, with the best blocks, by rows and images of a tile; infinite where they do not fit.

        The sum of a / k over streams under the sum of w k is least where every k is μ √(a / w), held between its ends. With `up`,
        rows, images and channels are what fractions that fit are rounded up to.
        """
        if up:
            rows = np.where(images > 1, rows, np.maximum(rows - 1 + _FRACTION, 1.0))
            images = np.where(images > 1, images - 1 + _FRACTION, images)
        room = words - _held(self.whole, rows, images).sum(axis=0)
        if not len(self.streams):
            return np.where(room >= 0, self.constant, np.inf)
        worth, least, most = (self.streams[:, [column]] for column in range(3, 6))
        width = _held(self.streams, rows, images)
        slope = np.sqrt(np.maximum(worth, 1e-30) / width)
        # Blocks are μ times their slopes between the ends, so the words are a line between neighbours of these μ.
        bends = np.sort(np.concatenate([least / slope, most / slope]), axis=0)
        used = (width * np.clip(bends[:, None] * slope, least, most)).sum(axis=1)
        fits = used[0] <= room
        above = np.clip((used <= room).sum(axis=0), 1, len(bends) - 1)[None, :]
        low, high = (np.take_along_axis(bends, at, axis=0)[0] for at in (above - 1, above))
        words_low, words_high = (np.take_along_axis(used, at, axis=0)[0] for at in (above - 1, above))
        part = (room - words_low) / np.maximum(words_high - words_low, 1e-30)
        blocks = np.clip((low + np.clip(part, 0.0, 1.0) * (high - low)) * slope, least, most)
        if up:
            blocks = np.ceil(blocks)
        return np.where(fits, self.constant + (worth / blocks).sum(axis=0), np.inf)


def _held(facts: np.ndarray, rows: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Words that lie in the buffer, by row of `facts` and by tile: never more than an image has for each image."""
    first, further, image = (facts[:, [column]] for column in range(3))
    held: np.ndarray = np.where(images > 1, images * image, np.minimum(first + further * (rows - 1), image))
    return held


def _blocks(
    network: LayerNetwork,
    members: Sequence[int],
    reads: dict[int, list[int]],
    lines: _Lines,
    begins_full: bool,
    levels: MemoryLevels,
) -> _Blocks:
    """Where all channels of an output lie in the buffer, and where a block of them: they take turns along the group."""
    layers, batch = network.layers, network.batch
    full: dict[int, bool] = {}
    constant = 0.0
    whole: list[tuple[float, float, float]] = []
    streams: dict[int, list[float]] = {}
    unread = {source for number in members for source in network.sources[number]} - set(members)
    reads_image = True
    for number in members:
        layer = layers[number]
        if not reads[number]:
            full[number] = begins_full
        elif layer.weighted:
            full[number] = not all(full[source] for source in reads[number])
        else:
            full[number] = any(full[source] for source in reads[number])
        if not reads[number] and not full[number]:  # its input lies there with all channels, and passes rows
            mine = [source for source in network.sources[number] if source in unread]
            unread -= set(mine)
            if mine or (not network.sources[number] and reads_image):
                reads_image = reads_image and bool(network.sources[number])
                height = layer.size * layer.stride
                width = layer.channels_in * layer.width * layer.stride
                reach = min((lines.first[number] - 1) * layer.stride + layer.window, height)
                whole.append((width * reach, width * lines.step[number] * layer.stride, width * height))
        if not layer.weighted:
            continue
        first, step = layer.width * lines.first[number], layer.width * lines.step[number]
        if full[number]:
            whole.append((layer.channels * first, layer.channels * step, layer.channels * layer.pixels))
        else:
            least = min(levels.least_channels, layer.channels)
            streams[number] = [first, step, layer.pixels, 0.0, least, layer.channels]
    for number in members:
        if layers[number].weighted:
            constant += _arithmetic(network, number, reads, streams, batch)
    return _Blocks(np.array(whole).reshape(-1, 3), np.array(list(streams.values())).reshape(-1, 6), constant)


def _arithmetic(
    network: LayerNetwork, number: int, reads: dict[int, list[int]], streams: dict[int, list[float]], batch: int
) -> float:
    """Words that a layer reads and writes, weights left out: added to the streams that they depend on, or returned."""
    layer = network.layers[number]
    pixels = batch * layer.pixels
    inputs, outputs = pixels * layer.channels_in * layer.stride**2, pixels * layer.channels
    constant = 0.0
    if number in streams:  # its input is read once for each block of its output
        streams[number][3] += layer.channels * inputs
    else:
        constant += inputs
    source = _producer(network, number, reads)
    if number not in streams and source in streams:  # its sums are written once for each block of its input
        streams[source][3] += layer.channels_in * outputs
    else:
        constant += outputs
    return constant


def _producer(network: LayerNetwork, number: int, reads: dict[int, list[int]]) -> int | None:
    """The layer with weights whose output this one reads, through layers without; None where several meet, or from outside."""
    while len(reads[number]) == 1:
        number = reads[number][0]
        if network.layers[number].weighted:
            return number
    return None
