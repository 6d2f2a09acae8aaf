"""What scores of attention are made of, found by computing them: angles of positions, a factor, and how many tokens are seen.

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


@dataclass(frozen=True)
class ScoreReading:
    """What scores are made of."""

    angles: np.ndarray
    """float64 [new tokens, head_size / 2], in radians, modulo a turn."""
    scale: float
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
        scale, window = self._read_factor(cosines, sines)
        return ScoreReading(np.arctan2(sines, cosines), scale, window)

    def _compute(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, pasts: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """What is mixed [new, heads · size] and new keys [new, key_heads · size].

        Args:
            query, key, value: of new tokens [new, heads · size], in front of the rotation and behind biases.
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
            given.setdefault(border, np.zeros(read_sizes(border))).reshape(-1)[order] = numbers
        given[ends.past_key], given[ends.past_value] = (past[None] for past in pasts)
        mixed, present = self._graph.evaluate([ends.mixed, ends.present_key], given)
        if not np.array_equal(present[0, :, : self._past], pasts[0]):
            raise NotUnderstood(f"'{ends.present_key.name}' does not begin with the cache as it was")
        return [mixed.reshape(self._new, -1), ends.new_rows(present)]

    def _nothing(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
        groups = self._key_heads * self._size
        rows = [np.zeros((self._new, width)) for width in (self._heads * self._size, groups, groups)]
        return *rows, [np.zeros((self._key_heads, self._past, self._size)) for _ in range(2)]  # type: ignore[return-value]

    def _read_rotation(self) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines [new, size / 2] of the keys' angles, by what becomes of a first half of ones."""
        query, key, value, pasts = self._nothing()
        half = self._size // 2
        key.reshape(self._new, self._key_heads, self._size)[:, :, :half] = 1.0
        turned = self._compute(query, key, value, pasts)[1].reshape(self._new, self._key_heads, self._size)[:, 0]
        cosines, sines = turned[:, :half], turned[:, half:]
        key = np.random.default_rng(0).standard_normal(key.shape)
        expected = _turn(key.reshape(self._new, self._key_heads, self._size), cosines, sines)
        if not are_alike(self._graph, expected, self._compute(query, key, value, pasts)[1]):
            name = self._ends.present_key.name
            raise NotUnderstood(f"'{name}' does not hold keys whose halves are turned by their positions")
        return cosines, sines

    def _read_factor(self, cosines: np.ndarray, sines: np.ndarray) -> tuple[float, int | None]:
        """The factor of scores and the window, checked on random heads.

        Raises:
            NotUnderstood: something else happens between heads and what is mixed.
        """
        window = self._count_seen()
        scale = self._measure_scale(cosines, sines)
        draws = np.random.default_rng(1)
        query, key, value, pasts = self._nothing()
        query, key, value, *pasts = (draws.standard_normal(array.shape) for array in (query, key, value, *pasts))
        mixed = self._compute(query, key, value, pasts)[0]
        expected = self._attend((query, key, value), pasts, (cosines, sines), scale, window)
        if not are_alike(self._graph, expected, mixed):
            raise NotUnderstood(f"'{self._ends.mixed.name}' is not attention of queries that are turned as keys are")
        return scale, None if window == self._past + self._new else window

    def _count_seen(self) -> int:
        """Tokens that the last one sees: what share of equal scores it has itself."""
        query, key, value, pasts = self._nothing()
        value[-1] = 1.0
        share = self._compute(query, key, value, pasts)[0][-1, 0]
        if not share > 0:
            raise NotUnderstood(f"'{self._ends.mixed.name}' does not see the last token")
        return round(float(1 / share))

    def _measure_scale(self, cosines: np.ndarray, sines: np.ndarray) -> float:
        """By the shares of two tokens of the cache whose scores differ."""
        query, key, value, pasts = self._nothing()
        query[...] = np.random.default_rng(2).standard_normal(query.shape)
        turned = _turn(query.reshape(self._new, self._heads, self._size), cosines, sines)[0, 0]
        pasts[0][0, -1] = turned * (_SHARPNESS / (turned @ turned))
        pasts[1][0, -1, 0] = pasts[1][0, -2, 1] = 1.0
        mixed = self._compute(query, key, value, pasts)[0][0]
        if not (mixed[0] > 0 and mixed[1] > 0):
            raise NotUnderstood(f"'{self._ends.mixed.name}' does not see the two tokens in front of it")
        return float(np.log(mixed[0] / mixed[1]) / _SHARPNESS)

    def _attend(
        self,
        rows: Sequence[np.ndarray],
        pasts: Sequence[np.ndarray],
        angles: tuple[np.ndarray, np.ndarray],
        scale: float,
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
        group, mixed = self._heads // self._key_heads, []
        for head in range(self._heads):
            scores = query[:, head] @ keys[head // group].T * scale + hidden
            mixed.append(compute_softmax(scores) @ values[head // group])
        return np.stack(mixed, axis=1).reshape(self._new, -1)


def _turn(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """Heads [tokens, heads, size] with their halves turned."""
    first, second = np.split(x, 2, axis=-1)
    cosines, sines = cosines[:, None], sines[:, None]
    return np.asarray(np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1))
