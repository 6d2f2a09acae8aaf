"""What scores of attention are made of, found by computing them: which numbers of a head turn together, angles of positions, a
factor, a cap, and how many tokens are seen.

Then the whole is computed on random heads, and compared with what a description means.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.language.onnx_decoders.bound_graph import BoundGraph, read_sizes
from bricolage.language.onnx_decoders.part_identity import identify_part
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.language.onnx_decoders.stretch_readings import are_alike
from bricolage.verify.decoder_reference import compute_softmax

_SHARPNESS = 4.0
"""Of the scores that the factor is measured at."""
_HIGHEST = 600.0
"""A score that a cap is measured at: e^-600 is a number of float64."""
_STEPS = 60
"""Of the iteration that finds a factor and a cap by two scores."""


@dataclass(frozen=True)
class ScoreReading:
    """What scores are made of."""

    angles: np.ndarray
    """float64 [new tokens, head_size / 2], in radians, modulo a turn."""
    order: np.ndarray
    """int64 [head_size]: where the numbers of a head lie in the file, so that those which turn together are half a head apart."""
    scale: float
    softcap: float | None
    """c: scaled products s become c · tanh(s / c)."""
    window: int | None
    """Tokens that are seen at most, where that are fewer than there are."""


@dataclass(frozen=True)
class AttentionEnds:
    """Values around a layer's attention, and its sizes."""

    graph: BoundGraph
    mixed: ir.Value
    """What the output's product reads."""
    past_key: ir.Value
    past_value: ir.Value
    present_key: ir.Value
    present_value: ir.Value
    heads: int
    key_heads: int
    size: int

    def new_rows(self, present: np.ndarray) -> np.ndarray:
        """[new tokens, key_heads · head_size]; the cache in front of them is as it was.

        Raises:
            NotUnderstood: the cache has another form.
        """
        graph = self.graph
        if present.shape != (1, self.key_heads, graph.past + graph.new, self.size):
            raise NotUnderstood(f"'{self.present_key.name}' has the sizes {list(present.shape)}")
        return present[0, :, graph.past :].swapaxes(0, 1).reshape(graph.new, -1)


@dataclass(frozen=True)
class HeadSource:
    """Where heads of new tokens are in order, in front of their rotation."""

    border: ir.Value
    """Behind biases and the norm; of values the product itself."""
    order: np.ndarray
    """int64 [new tokens, heads · head_size]: where the numbers of a token lie in it."""
    bias: np.ndarray | None
    """What comes behind the border."""


class ScoreReader:
    """From heads in front of their rotation to what the output's product reads."""

    def __init__(self, ends: AttentionEnds, query: HeadSource, key: HeadSource, value: HeadSource) -> None:
        self._ends, self._parts = ends, {"query": query, "key": key, "value": value}
        self._heads, self._key_heads, self._size = ends.heads, ends.key_heads, ends.size
        self._graph, self._past, self._new = ends.graph, ends.graph.past, ends.graph.new
        self._packed = query.border if query.border is key.border else None
        """Where all three are still together, if they are."""
        self._order = np.arange(self._size)

    def read(self) -> ScoreReading:
        """What scores are made of. Layers that compute the same are read once.

        Raises:
            NotUnderstood: something else happens between heads and what is mixed.
        """
        readings, identity = self._graph.readings, self._identify()
        if identity not in readings:
            readings[identity] = self._read()
        reading = readings[identity]
        assert isinstance(reading, ScoreReading)
        return reading

    def _identify(self) -> Hashable:
        ends, parts = self._ends, self._parts.values()
        borders = [part.border for part in parts] if self._packed is None else [self._packed]
        sinks = [ends.mixed, ends.present_key, ends.present_value]
        part = identify_part(sinks, [*borders, ends.past_key, ends.past_value])
        biases = tuple(None if part.bias is None else part.bias.tobytes() for part in parts)
        return part.whole(), tuple(part.order.tobytes() for part in parts), biases

    def _read(self) -> ScoreReading:
        cosines, sines = self._read_rotation()
        size = np.sqrt(cosines**2 + sines**2)
        if not are_alike(self._graph, np.ones_like(size), size):
            raise NotUnderstood(f"'{self._ends.present_key.name}' has no keys that are turned by their positions")
        scale, cap, window = self._read_factor(cosines, sines)
        return ScoreReading(np.arctan2(sines, cosines), self._order, scale, cap, window)

    def _compute(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, pasts: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """What is mixed [new, heads · size] and new keys [new, key_heads · size], whose numbers lie as a description has them.

        Args:
            query, key, value: of new tokens [new, heads · size], in front of the rotation and behind biases, in the same order.
            pasts: keys and values of the cache [key_heads, past, size].
        """
        ends, given = self._ends, dict[ir.Value, np.ndarray]()
        for role, numbers in (("query", query), ("key", key), ("value", value)):
            part = self._parts[role]
            border, order = part.border, part.order
            if role == "value" and self._packed is not None:
                border, order = self._packed, self._parts["key"].order + numbers.shape[1]
            elif role == "value" and part.bias is not None:
                numbers = numbers - part.bias
            if role != "value":
                order = self._put_in_order(order)
            given.setdefault(border, np.zeros(read_sizes(border))).reshape(-1)[order] = numbers
        keys = np.empty_like(pasts[0])
        keys[..., self._order] = pasts[0]
        given[ends.past_key], given[ends.past_value] = keys[None], pasts[1][None]
        mixed, present = self._graph.evaluate([ends.mixed, ends.present_key], given)
        if not np.array_equal(present[0, :, : self._past], keys):
            raise NotUnderstood(f"'{ends.present_key.name}' does not begin with the cache as it was")
        return [mixed.reshape(self._new, -1), self._put_in_order(ends.new_rows(present))]

    def _put_in_order(self, rows: np.ndarray) -> np.ndarray:
        """Heads that lie as the file has them [new, heads · size], as a description has them."""
        return np.asarray(rows.reshape(len(rows), -1, self._size)[:, :, self._order].reshape(len(rows), -1))

    def _nothing(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
        groups = self._key_heads * self._size
        rows = [np.zeros((self._new, width)) for width in (self._heads * self._size, groups, groups)]
        return *rows, [np.zeros((self._key_heads, self._past, self._size)) for _ in range(2)]  # type: ignore[return-value]

    def _read_rotation(self) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines [new, size / 2] of the keys' angles. Halves that turn together are tried before pairs are looked for.

        Raises:
            NotUnderstood: keys are not turned in pairs.
        """
        for find_order in (lambda: self._order, self._find_pairs):
            self._order = find_order()
            angles = self._read_angles()
            if angles is not None:
                return angles
        raise NotUnderstood(
            f"'{self._ends.present_key.name}' does not hold keys whose pairs are turned by their positions"
        )

    def _find_pairs(self) -> np.ndarray:
        """An order that puts numbers which turn together half a head apart, by what becomes of each number of a key; those that
        do not turn stand behind. Scores do not change where queries and keys have another order.

        Raises:
            NotUnderstood: a number goes with several others.
        """
        query, key, value, pasts = self._nothing()
        partners = np.arange(self._size)
        for place in range(self._size):
            key[...] = 0.0
            key[:, place] = 1.0
            keys = np.abs(self._compute(query, key, value, pasts)[1][:, : self._size]).max(axis=0)
            (turned,) = np.nonzero(keys > self._graph.tolerance)
            others = turned[turned != place]
            if len(others) > 1:
                name = self._ends.present_key.name
                raise NotUnderstood(
                    f"number {place} of a key goes into {len(turned)} numbers of '{name}', not into a pair"
                )
            partners[place] = others[0] if len(others) else place
        if (partners[partners] != np.arange(self._size)).any():
            raise NotUnderstood(
                f"'{self._ends.present_key.name}' does not hold keys whose pairs are turned by their positions"
            )
        first = np.flatnonzero(partners > np.arange(self._size))
        still = np.flatnonzero(partners == np.arange(self._size))
        middle = len(still) // 2
        return np.concatenate([first, still[:middle], partners[first], still[middle:]])

    def _read_angles(self) -> tuple[np.ndarray, np.ndarray] | None:
        """By what becomes of a first half of ones; None where the halves are not what turns together."""
        query, key, value, pasts = self._nothing()
        half = self._size // 2
        key.reshape(self._new, self._key_heads, self._size)[:, :, :half] = 1.0
        turned = self._compute(query, key, value, pasts)[1].reshape(self._new, self._key_heads, self._size)[:, 0]
        cosines, sines = turned[:, :half], turned[:, half:]
        key = np.random.default_rng(0).standard_normal(key.shape)
        expected = _turn(key.reshape(self._new, self._key_heads, self._size), cosines, sines)
        return (
            (cosines, sines) if are_alike(self._graph, expected, self._compute(query, key, value, pasts)[1]) else None
        )

    def _read_factor(self, cosines: np.ndarray, sines: np.ndarray) -> tuple[float, float | None, int | None]:
        """The factor of scores, their cap, and the window, checked on random heads: with usual scores and with capped ones.

        Raises:
            NotUnderstood: something else happens between heads and what is mixed.
        """
        window = self._count_seen()
        scale, cap = self._measure_scale(cosines, sines)
        draws = np.random.default_rng(1)
        query, key, value, pasts = self._nothing()
        query, key, value, *pasts = (draws.standard_normal(array.shape) for array in (query, key, value, *pasts))
        for magnitude in (1.0,) if cap is None else (1.0, cap / (scale * self._size**0.5)):
            mixed = self._compute(query * magnitude, key, value, pasts)[0]
            expected = self._attend((query * magnitude, key, value), pasts, (cosines, sines), (scale, cap), window)
            if not are_alike(self._graph, expected, mixed):
                raise NotUnderstood(
                    f"'{self._ends.mixed.name}' is not attention of queries that are turned as keys are"
                )
        return scale, cap, None if window == self._past + self._new else window

    def _count_seen(self) -> int:
        """Tokens that the last one sees: what share of equal scores it has itself."""
        query, key, value, pasts = self._nothing()
        value[-1] = 1.0
        share = self._compute(query, key, value, pasts)[0][-1, 0]
        if not share > 0:
            raise NotUnderstood(f"'{self._ends.mixed.name}' does not see the last token")
        return round(float(1 / share))

    def _measure_scale(self, cosines: np.ndarray, sines: np.ndarray) -> tuple[float, float | None]:
        """The factor and the cap, by scores of a small product and of a large one."""
        low = self._measure_score(cosines, sines, _SHARPNESS)
        scale = low / _SHARPNESS
        if not scale > 0:
            return scale, None  # which random heads will show
        product = _HIGHEST / scale
        high = cap = self._measure_score(cosines, sines, product)
        if abs(high - _HIGHEST) <= self._graph.tolerance * _HIGHEST:
            return scale, None
        if not low < high:
            raise NotUnderstood(f"'{self._ends.mixed.name}' does not grow with the products of queries and keys")
        for _ in range(_STEPS):
            scale = cap * float(np.arctanh(min(low / cap, 1 - 1e-16))) / _SHARPNESS
            cap = high / float(np.tanh(scale * product / cap))
        return scale, float(np.float32(cap))

    def _measure_score(self, cosines: np.ndarray, sines: np.ndarray, product: float) -> float:
        """What a product of a query and a key becomes, by the shares of two tokens of the cache; the other one's product is 0."""
        query, key, value, pasts = self._nothing()
        query[...] = np.random.default_rng(2).standard_normal(query.shape)
        turned = _turn(query.reshape(self._new, self._heads, self._size), cosines, sines)[0, 0]
        pasts[0][0, -1] = turned * (product / (turned @ turned))
        pasts[1][0, -1, 0] = pasts[1][0, -2, 1] = 1.0
        mixed = self._compute(query, key, value, pasts)[0][0]
        if not (mixed[0] > 0 and mixed[1] > 0):
            raise NotUnderstood(f"'{self._ends.mixed.name}' does not see the two tokens in front of it")
        return float(np.log(mixed[0] / mixed[1]))

    def _attend(
        self,
        rows: Sequence[np.ndarray],
        pasts: Sequence[np.ndarray],
        angles: tuple[np.ndarray, np.ndarray],
        factor: tuple[float, float | None],
        window: int,
    ) -> np.ndarray:
        """Attention as a description has it, [new, heads · size]."""
        query, key, value = (row.reshape(self._new, -1, self._size) for row in rows)
        query, key = _turn(query, *angles), _turn(key, *angles)
        keys = np.concatenate([pasts[0], key.swapaxes(0, 1)], axis=1)
        values = np.concatenate([pasts[1], value.swapaxes(0, 1)], axis=1)
        places = np.arange(self._past + self._new)
        behind = places[self._past :, None] - places
        hidden = np.where((behind >= 0) & (behind < window), 0.0, -np.inf)
        group, mixed, (scale, cap) = self._heads // self._key_heads, [], factor
        for head in range(self._heads):
            scores = query[:, head] @ keys[head // group].T * scale
            scores = scores if cap is None else cap * np.tanh(scores / cap)
            mixed.append(compute_softmax(scores + hidden) @ values[head // group])
        return np.stack(mixed, axis=1).reshape(self._new, -1)


def _turn(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """Heads [tokens, heads, size] with their halves turned."""
    first, second = np.split(x, 2, axis=-1)
    cosines, sines = cosines[:, None], sines[:, None]
    return np.asarray(np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1))
