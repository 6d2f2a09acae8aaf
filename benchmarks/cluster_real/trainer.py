"""A small training, by the contract of docs/manual/cluster-serve.md: a perceptron with one hidden layer, by gradient descent on
data that is drawn for each step by its number. `python trainer.py SEED KIND=SECONDS...`

A step takes less than a millisecond of a core; what a device's step takes is waited for, so that eight devices fit into two cores
and do not disturb each other. A step that comes late by up to a quarter of a second is made up for.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

SAVED_EVERY = 20
"""Steps between checkpoints."""
_FEATURES, _HIDDEN, _BATCH, _LR = 16, 32, 64, 0.05
_MOST_LATE_S = 0.25
Weights = dict[str, npt.NDArray[np.float64]]


def fresh(seed: int) -> Weights:
    """Weights at the start."""
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(0, 0.3, (_FEATURES, _HIDDEN)), "b": rng.normal(0, 0.3, (_HIDDEN, 1))}


def step(weights: Weights, seed: int, number: int) -> float:
    """One step of descent on its own batch, in place. Returns the loss."""
    rng = np.random.default_rng((seed, number))
    x = rng.normal(size=(_BATCH, _FEATURES))
    y = np.sin(x[:, :1] + x[:, 1:2])
    hidden = np.maximum(x @ weights["a"], 0.0)
    error = hidden @ weights["b"] - y
    slope = 2.0 * error / _BATCH
    back = (slope @ weights["b"].T) * (hidden > 0)
    weights["b"] -= _LR * hidden.T @ slope
    weights["a"] -= _LR * x.T @ back
    return float((error**2).mean())


def trained(seed: int, steps: int) -> Weights:
    """What an undisturbed run ends with."""
    weights = fresh(seed)
    for number in range(steps):
        step(weights, seed, number)
    return weights


def put(path: Path, text: str) -> None:
    """A small file, whole."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def load(folder: Path, seed: int) -> tuple[Weights, int]:
    """The checkpoint, and its steps; fresh weights where there is none."""
    if not (folder / "weights.npz").exists():
        return fresh(seed), 0
    with np.load(folder / "weights.npz") as found:
        return {"a": found["a"], "b": found["b"]}, int(found["steps"])


def save(folder: Path, weights: Weights, steps: int) -> None:
    """The checkpoint, then what it holds."""
    partial = folder / f"{os.getpid()}.npz"
    np.savez(partial, steps=steps, **weights)  # type: ignore[arg-type]
    partial.replace(folder / "weights.npz")
    put(folder / "steps", str(steps))


def train(seed: int, pace: Mapping[str, float]) -> None:
    """As the environment says."""
    folder, progress = Path(os.environ["BRICOLAGE_CHECKPOINT"]), Path(os.environ["BRICOLAGE_PROGRESS"])
    wanted, period, first = (
        int(os.environ["BRICOLAGE_STEPS"]),
        pace[os.environ["BRICOLAGE_KIND"]],
        os.environ["RANK"] == "0",
    )
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    weights, done = load(folder, seed)
    if first:
        put(progress, str(done))
    due = told = time.monotonic()
    while done < wanted and not asked:
        step(weights, seed, done)
        done += 1
        due = max(due + period, time.monotonic() - _MOST_LATE_S)
        time.sleep(max(due - time.monotonic(), 0.0))
        if first and time.monotonic() > told + 0.5:
            told = time.monotonic()
            put(progress, str(done))
        if first and done % SAVED_EVERY == 0:
            save(folder, weights, done)
    if first:
        save(folder, weights, done)


if __name__ == "__main__":
    train(int(sys.argv[1]), {kind: float(pace) for kind, _, pace in (word.partition("=") for word in sys.argv[2:])})
