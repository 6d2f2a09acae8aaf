"""Training: gradient-boosted trees over all backends together, and intervals from what cross-validation was off by.

The trees are LightGBM's (Ke et al., NeurIPS 2017), the loss is squared error of logarithms, so that a factor counts the same
whatever a region takes. Intervals are those of split conformal prediction (Lei et al., JASA 2018): the factor that holds nine of
ten residuals of networks that the model had not seen.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from bricolage.costs.models.learned.features import NAMES, features
from bricolage.costs.models.learned.forest import Forest, Tree
from bricolage.costs.models.learned.model import LearnedCosts, encode_features
from bricolage.costs.models.roofline import least_ms
from bricolage.errors import MissingLibrary, TooFewCosts
from bricolage.work.cost import Setting, Work
from bricolage.work.implementation import Implementation, KernelConfig
from bricolage.work.workload import Workload

_FEWEST = 50
"""Costs to learn from."""
_FEWEST_OF_ONE = 15
"""Of one implementation."""
_FOLDS = 5
_COVERED = 0.9
_TREES = 300
_SETTINGS: Mapping[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 5,
    "feature_fraction": 0.7,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "verbosity": -1,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    # There are thousands of rows: threads would wait for each other, for minutes on a busy machine.
    "num_threads": 1,
}
_DIGITS = 7
"""Of numbers in a model."""


@dataclass(frozen=True)
class Sample:
    """A measured cost with what it is of."""

    workload: Workload
    setting: Setting
    implementation: str
    """Backend and configuration, such as "openvino f32"."""
    ms: float
    region: str
    """Samples of one region on one machine compete."""
    network: str
    machine: str
    version: str = ""
    """Of the backend."""

    @property
    def backend(self) -> str:
        """Without its configuration."""
        return self.implementation.partition(" ")[0]

    @property
    def work(self) -> Work:
        """What is asked about it."""
        backend, _, config = self.implementation.partition(" ")
        return Work(self.workload, Implementation(backend, KernelConfig(config)))


@dataclass(frozen=True)
class Errors:
    """How far predictions of what the model had not seen are off."""

    samples: int
    groups: int
    """Networks or machines, each left out once."""
    mape: float
    """Mean of |predicted / measured - 1|."""
    median_error: float
    rank_correlation: float
    """Spearman's, over all samples."""
    regret: float
    """Median over regions with several implementations: what the one predicted as fastest takes over the fastest one, less 1."""
    worst_regret: float
    covered: float
    """Part of the samples inside their intervals."""

    def __str__(self) -> str:
        regret = f"regret {self.regret:.1%}, worst {self.worst_regret:.1%}, {self.covered:.0%} in the interval"
        errors = f"mean error {self.mape:.1%}, median {self.median_error:.1%}"
        return f"{self.groups} left out, each once: {errors}, rank correlation {self.rank_correlation:.3f}, {regret}"


def fit_costs(samples: Sequence[Sample], provenance: Mapping[str, str]) -> LearnedCosts:
    """A model of all samples, its intervals from cross-validation by network. Implementations with few samples are left out: it
    would pretend to know them.

    Raises:
        TooFewCosts: there is too little to learn from.
        MissingLibrary: LightGBM is not installed.
    """
    counts = Counter(sample.implementation for sample in samples)
    samples = [sample for sample in samples if counts[sample.implementation] >= _FEWEST_OF_ONE]
    if len(samples) < _FEWEST:
        raise TooFewCosts(found=len(samples), needed=_FEWEST)
    implementations = tuple(sorted({sample.implementation for sample in samples}))
    numbers = {name: number for number, name in enumerate(implementations)}
    rows = np.concatenate(
        [
            encode_features(features(s.workload, s.setting)[None], numbers[s.implementation], len(numbers))
            for s in samples
        ]
    )
    targets = np.array([math.log(sample.ms / least_ms(sample.workload, sample.setting)) for sample in samples])
    off = np.abs(_out_of_fold(rows, targets, [sample.network for sample in samples]) - targets)
    overall = float(np.quantile(off, _COVERED))
    by_name: dict[str, list[float]] = defaultdict(list)
    for sample, each in zip(samples, off, strict=True):
        by_name[sample.implementation].append(float(each))
    spread = {
        # With few samples, their own quantile says little.
        name: math.exp(float(np.quantile(deviations, _COVERED)) if len(deviations) >= _FEWEST else overall)
        for name, deviations in by_name.items()
    }
    rounded = {name: float(f"{value:.{_DIGITS}g}") for name, value in spread.items()}
    return LearnedCosts(NAMES, implementations, _fit_forest(rows, targets), rounded, dict(provenance))


def left_out(samples: Sequence[Sample], group: Callable[[Sample], str]) -> Errors | None:
    """Errors of models that are trained without one network (or machine) each, on it. Those are left away without which there is
    too little to learn from; None where that leaves none.

    Raises:
        MissingLibrary: see `fit_costs`.
    """
    names = sorted({group(sample) for sample in samples})
    predicted: list[tuple[Sample, float, bool]] = []
    left = 0
    for name in names:
        try:
            model = fit_costs([sample for sample in samples if group(sample) != name], {})
        except TooFewCosts:
            continue  # almost all is of this one
        left += 1
        predicted += _predict_samples(model, [sample for sample in samples if group(sample) == name])
    return _errors(predicted, left) if predicted else None


def errors_of(model: LearnedCosts, samples: Sequence[Sample]) -> Errors | None:
    """Errors of a model on measurements that it was not trained on; None where it knows none of their implementations."""
    predicted = _predict_samples(model, samples)
    return _errors(predicted, len({sample.network for sample, _, _ in predicted})) if predicted else None


def _predict_samples(model: LearnedCosts, samples: Sequence[Sample]) -> list[tuple[Sample, float, bool]]:
    """Milliseconds of each sample whose implementation the model knows, and whether what was measured lies in the interval."""
    alike: dict[Setting, list[Sample]] = defaultdict(list)
    for sample in samples:
        alike[sample.setting].append(sample)
    predictions: list[tuple[Sample, float, bool]] = []
    for setting, group in alike.items():
        for sample, estimate in zip(group, model.estimate([sample.work for sample in group], setting), strict=True):
            if estimate is not None:
                predictions.append((sample, estimate.ms, estimate.low_ms <= sample.ms <= estimate.high_ms))
    return predictions


def _errors(predicted: Sequence[tuple[Sample, float, bool]], groups: int) -> Errors:
    from scipy.stats import spearmanr  # takes longer to import than most commands take

    measured = np.array([sample.ms for sample, _, _ in predicted])
    ms = np.array([predicted_ms for _, predicted_ms, _ in predicted])
    relative = np.abs(ms / measured - 1.0)
    by_region: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for sample, predicted_ms, _ in predicted:
        by_region[sample.machine, sample.region, sample.setting.threads].append((predicted_ms, sample.ms))
    regrets = [min(pairs)[1] / min(ms for _, ms in pairs) - 1.0 for pairs in by_region.values() if len(pairs) > 1]
    return Errors(
        len(predicted),
        groups,
        mape=float(np.mean(relative)),
        median_error=float(np.median(relative)),
        rank_correlation=float(spearmanr(ms, measured).statistic),
        regret=median(regrets) if regrets else 0.0,
        worst_regret=max(regrets, default=0.0),
        covered=float(np.mean([inside for _, _, inside in predicted])),
    )


def _out_of_fold(
    rows: npt.NDArray[np.float64], targets: npt.NDArray[np.float64], networks: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Predictions of each sample by a model that has seen none of its network; of its fold, where there are few networks."""
    names = sorted(set(networks))
    if len(names) >= _FOLDS:
        numbers = {name: place % _FOLDS for place, name in enumerate(names)}
        folds = np.array([numbers[name] for name in networks])
    else:
        folds = np.arange(len(rows)) % _FOLDS
    predictions = np.zeros(len(rows))
    for fold in range(_FOLDS):
        inside = folds == fold
        predictions[inside] = _fit_forest(rows[~inside], targets[~inside])(rows[inside])
    return predictions


def _fit_forest(rows: npt.NDArray[np.float64], targets: npt.NDArray[np.float64]) -> Forest:
    try:
        import lightgbm
    except (ImportError, OSError) as error:  # OSError: its library finds no OpenMP
        raise MissingLibrary(
            name="LightGBM", purpose="to train a model of costs", extra="learn", reason=error
        ) from error
    data = lightgbm.Dataset(rows, targets, params={"verbosity": -1, "max_bin": 255})
    booster = lightgbm.train(dict(_SETTINGS), data, num_boost_round=_TREES)
    return Forest(tuple(_tree(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]))


def _tree(root: Mapping[str, Any]) -> Tree:
    """A tree of LightGBM's, its nodes in the order of a walk from the root, so that children come after their parents."""
    asked: list[int] = []
    thresholds: list[float] = []
    left: list[int] = []
    right: list[int] = []
    leaves: list[float] = []

    def add(node: Mapping[str, Any]) -> int:
        if "split_feature" not in node:
            leaves.append(float(f"{node['leaf_value']:.{_DIGITS}g}"))
            return -len(leaves)
        number = len(asked)
        asked.append(int(node["split_feature"]))
        thresholds.append(float(node["threshold"]))
        left.append(0)
        right.append(0)
        left[number] = add(node["left_child"])
        right[number] = add(node["right_child"])
        return number

    add(root)
    return Tree(tuple(asked), tuple(thresholds), tuple(left), tuple(right), tuple(leaves))
