"""Training: what a step costs and what would change it, many models trained as one, replicas kept in step.

Whatever is public is loaded when it is first used, as in `bricolage` itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bricolage.train.fuse.fuse import FusedSweep, train_sweep
    from bricolage.train.fuse.hyperparameter_search import Searched, tune
    from bricolage.train.fuse.search_spec import Search, read_search
    from bricolage.train.fuse.sweep import Sweep, read_sweep
    from bricolage.train.predict.predict import predict_step
    from bricolage.train.predict.prediction import Predicted, Prediction
    from bricolage.train.predict.variant import Variant, parse_variant
    from bricolage.train.replicas.replica_spec import Method, Replicas, read_replicas
    from bricolage.train.replicas.replicas import ReplicasResult, train_replicas
    from bricolage.train.step.spec import Optimiser, StepSpec, read_spec
    from bricolage.train.step.step import TrainingStep, build

__all__ = [
    "FusedSweep",
    "Method",
    "Optimiser",
    "Predicted",
    "Prediction",
    "Replicas",
    "ReplicasResult",
    "Search",
    "Searched",
    "StepSpec",
    "Sweep",
    "TrainingStep",
    "Variant",
    "build",
    "parse_variant",
    "predict_step",
    "read_replicas",
    "read_search",
    "read_spec",
    "read_sweep",
    "train_replicas",
    "train_sweep",
    "tune",
]

_HOMES = {
    "FusedSweep": "bricolage.train.fuse.fuse",
    "Method": "bricolage.train.replicas.replica_spec",
    "Optimiser": "bricolage.train.step.spec",
    "Predicted": "bricolage.train.predict.prediction",
    "Prediction": "bricolage.train.predict.prediction",
    "Replicas": "bricolage.train.replicas.replica_spec",
    "Search": "bricolage.train.fuse.search_spec",
    "Searched": "bricolage.train.fuse.hyperparameter_search",
    "StepSpec": "bricolage.train.step.spec",
    "Sweep": "bricolage.train.fuse.sweep",
    "ReplicasResult": "bricolage.train.replicas.replicas",
    "TrainingStep": "bricolage.train.step.step",
    "Variant": "bricolage.train.predict.variant",
    "build": "bricolage.train.step.step",
    "parse_variant": "bricolage.train.predict.variant",
    "predict_step": "bricolage.train.predict.predict",
    "read_replicas": "bricolage.train.replicas.replica_spec",
    "read_search": "bricolage.train.fuse.search_spec",
    "read_spec": "bricolage.train.step.spec",
    "read_sweep": "bricolage.train.fuse.sweep",
    "train_replicas": "bricolage.train.replicas.replicas",
    "train_sweep": "bricolage.train.fuse.fuse",
    "tune": "bricolage.train.fuse.hyperparameter_search",
}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bricolage.train' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
