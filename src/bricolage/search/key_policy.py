"""What a small network makes of random keys: for each of them one of a few beta distributions, that individuals are drawn from.

In the manner of REGAL (Paliwal et al., "Reinforced genetic algorithm learning for optimizing computation graphs", ICLR 2020), whose
network proposes distributions for each node of a graph. Here it reads what is known of each key: how many applications of rules
depend on it, and what they gain at once; and of each rule a vector that is learned by its name. Keys see one another through
means over all keys that something depends on. It is evaluated in numpy: a search that uses it loads no framework.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from bricolage.errors import BadOption
from bricolage.work.random_keys import KeyDistributions

BETAS = np.array([[1.0, 1.0], [0.8, 7.2], [2.4, 5.6], [4.0, 4.0], [5.6, 2.4], [7.2, 0.8]])
"""Parameters of the distributions that there are: any key, and keys about 0.1, 0.3, 0.5, 0.7 and 0.9."""
_KINDS = 4
FEATURES = _KINDS + 6
_SHIPPED = "key_policy.json"


@dataclass(frozen=True)
class KeyFeatures:
    """What is known of keys.

    names     [keys] of what a key is of, by which something may be learned of it; "" for none
    table     [keys, FEATURES] numbers about 0 to 1
    touched   [keys] whether anything depends on it
    """

    names: tuple[str, ...]
    table: np.ndarray
    touched: np.ndarray

    @staticmethod
    def of_gains(
        names: Sequence[str], kinds: np.ndarray, flags: np.ndarray, gains: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> KeyFeatures:
        """Features from possible steps.

        Args:
            names: [keys].
            kinds: [keys] of keys, below 4.
            flags: [keys] booleans, a property of each.
            gains: pairs of [steps]: a key that a step depends on, and the share of the cost that the step saves.
        """
        count = len(names)
        steps, saved, best, worst = np.zeros(count), np.zeros(count), np.full(count, -np.inf), np.full(count, np.inf)
        for keys, shares in gains:
            np.add.at(steps, keys, 1.0)
            np.add.at(saved, keys, _squash(shares))
            np.maximum.at(best, keys, shares)
            np.minimum.at(worst, keys, shares)
        touched = steps > 0.0
        spread = [_squash(np.where(touched, extreme, 0.0)) for extreme in (best, worst)]
        mean = saved / np.maximum(steps, 1.0)
        columns = [*np.eye(_KINDS)[:, kinds], flags, touched, np.log1p(steps) / 4.0, mean, *spread]
        return KeyFeatures(tuple(names), np.stack([np.asarray(column, float) for column in columns], axis=1), touched)


def _squash(shares: np.ndarray) -> np.ndarray:
    """Shares of a cost, which mostly are hundredths, as numbers between -1 and 1 that tell them apart."""
    return np.asarray(np.sign(shares) * np.sqrt(np.minimum(np.abs(shares), 1.0)))


@dataclass(frozen=True)
class KeyPolicy:
    """Weights by name, and the names that a vector was learned of.

    enter [FEATURES, hidden], enter_bias [hidden]; vectors [names, hidden], for `names`; mix [2 hidden, hidden], mix_bias; leave
    [hidden, distributions], leave_bias.

    Raises:
        ValueError: shapes do not fit.
    """

    names: tuple[str, ...]
    weights: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        hidden = self.weights["enter_bias"].shape[-1]
        shapes = {name: array.shape for name, array in self.weights.items()}
        if shapes != list_weight_shapes(len(self.names), hidden):
            raise ValueError(f"these are no weights of a policy over {len(self.names)} names: {shapes}")

    def compute_logits(self, features: KeyFeatures) -> np.ndarray:
        """Logarithms of probabilities, but for a constant of each key, [keys, distributions]."""
        places, w = {name: place for place, name in enumerate(self.names)}, self.weights
        vectors = np.concatenate([w["vectors"], np.zeros((1, w["enter_bias"].shape[0]))])
        of_names = vectors[[places.get(name, len(self.names)) for name in features.names]]
        inner = np.tanh(features.table @ w["enter"] + w["enter_bias"] + of_names)
        mean = inner[features.touched].mean(axis=0) if features.touched.any() else np.zeros(inner.shape[1])
        joined = np.concatenate([inner, np.broadcast_to(mean, inner.shape)], axis=1)
        return np.asarray(np.tanh(joined @ w["mix"] + w["mix_bias"]) @ w["leave"] + w["leave_bias"])

    def choose_distributions(self, features: KeyFeatures) -> KeyDistributions:
        """The most probable distribution of each key."""
        return make_distributions(self.compute_logits(features).argmax(axis=1))

    def save(self, file: Path) -> None:
        """Writes it as JSON.

        Raises:
            OSError: it cannot be written.
        """
        weights = {name: np.round(array, 4).tolist() for name, array in self.weights.items()}
        file.write_text(json.dumps({"names": self.names, "weights": weights}) + "\n", encoding="utf-8")


def list_weight_shapes(names: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a policy's weights."""
    return {
        "enter": (FEATURES, hidden),
        "enter_bias": (hidden,),
        "vectors": (names, hidden),
        "mix": (2 * hidden, hidden),
        "mix_bias": (hidden,),
        "leave": (hidden, len(BETAS)),
        "leave_bias": (len(BETAS),),
    }


def make_distributions(chosen: np.ndarray) -> KeyDistributions:
    """From a number of a distribution for each key, [keys]."""
    return KeyDistributions(*BETAS[chosen].T)


def load_policy(file: Path | None = None) -> KeyPolicy:
    """A policy from a file, or the one that comes with the package.

    Raises:
        BadOption: the file holds none.
    """
    try:
        text = (
            resources.files("bricolage.search").joinpath(_SHIPPED).read_text(encoding="utf-8")
            if file is None
            else file.read_text(encoding="utf-8")
        )
        stored = json.loads(text)
        shapes = list_weight_shapes(len(stored["names"]), len(stored["weights"]["enter_bias"]))
        weights = {name: np.array(stored["weights"][name], float).reshape(shape) for name, shape in shapes.items()}
        return KeyPolicy(tuple(map(str, stored["names"])), weights)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if file is None:
            raise
        raise BadOption(
            option="--policy", value=file, advice="Give a file that `bricolage rules learn` wrote"
        ) from error
