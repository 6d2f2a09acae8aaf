"""A search that asks a model which points are worth a trial: gradient-boosted trees that learn the order of what was tried
(AutoTVM's rank loss; Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 3.2), on LightGBM."""

from __future__ import annotations

import importlib.util
import math
from typing import Any, ClassVar

import numpy as np

from bricolage.tune.grid import Grid, History, Point
from bricolage.tune.technique import Technique

_LEAST = 8
"""Trials before a model says anything."""
_AGAIN = 4
"""New trials after which it is trained again."""
_CANDIDATES = 256
_EXPLORES = 0.15
"""Part of the proposals that are drawn, so that the model sees more than what it likes."""
_GRADES = 16
"""Of relevance, for the ranking."""
_ROUNDS = 40


class Surrogate(Technique):
    """Proposes what a model of the grid ranks first among neighbours of the best points and points drawn at random."""

    name: ClassVar[str] = "surrogate"

    def __init__(self, grid: Grid, history: History, seed: int) -> None:
        super().__init__(grid, history, seed)
        self._seed = seed
        self._model: Any = None
        self._trained = 0

    @staticmethod
    def installed() -> bool:
        """Whether its library is there."""
        return importlib.util.find_spec("lightgbm") is not None

    def _draw(self) -> Point:
        trial_count = len(self.history.shares)
        if trial_count < _LEAST or self.rng.random() < _EXPLORES:
            return self.grid.draw(self.rng)
        if self._model is None or trial_count >= self._trained + _AGAIN:
            self._model, self._trained = self._train(), trial_count
        near = [point for best in self.history.best(4) for point in self.grid.neighbours(best)]
        drawn = [self.grid.draw(self.rng) for _ in range(_CANDIDATES)]
        candidates = list(dict.fromkeys(self.history.fresh([*near, *drawn])))
        if not candidates or self._model is None:
            return self.grid.draw(self.rng)
        scores = self._model.predict(self._features(candidates))
        return candidates[int(np.argmax(scores))]

    def _features(self, points: list[Point]) -> np.ndarray:
        """[points, features]: ordered parameters as their number, the others as one column for each value."""
        columns: list[np.ndarray] = []
        table = np.array(points)
        for axis, (radix, ordered) in enumerate(zip(self.grid.radix, self.grid.ordered, strict=True)):
            if ordered:
                columns += [table[:, axis], table[:, axis] == 0]
            else:
                columns += [table[:, axis] == at for at in range(1, min(radix, _CANDIDATES))]
        return np.stack(columns, axis=1).astype(np.float64)

    def _train(self) -> Any:
        """None where all that was tried takes the same time."""
        import lightgbm

        points = list(self.history.shares)
        shares = np.array([self.history.shares[point] for point in points])
        worst = float(np.max(shares[shares < math.inf], initial=1.0))
        order = np.argsort(np.argsort(-np.minimum(shares, worst * 2.0), kind="stable"), kind="stable")
        grades = order * _GRADES // len(points)
        if len(set(grades.tolist())) < 2:
            return None
        data = lightgbm.Dataset(self._features(points), label=grades, group=[len(points)])
        settings = {
            "objective": "rank_xendcg",
            "num_leaves": 15,
            "min_data_in_leaf": 2,
            "min_data_in_bin": 1,
            "learning_rate": 0.1,
            "num_threads": 1,
            "seed": self._seed,
            "deterministic": True,
            "verbosity": -1,
        }
        return lightgbm.train(settings, data, num_boost_round=_ROUNDS)
