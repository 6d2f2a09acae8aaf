"""Training: what a step costs and what would change it, many models trained as one, replicas kept in step.

Whatever is public is loaded when it is first used, as in `bricolage` itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bricolage.train.spec import Optimiser, StepSpec, read_spec
    from bricolage.train.step import TrainingStep, build

__all__ = ["Optimiser", "StepSpec", "TrainingStep", "build", "read_spec"]

_HOMES = {
    "Optimiser": "bricolage.train.spec",
    "StepSpec": "bricolage.train.spec",
    "TrainingStep": "bricolage.train.step",
    "build": "bricolage.train.step",
    "read_spec": "bricolage.train.spec",
}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bricolage.train' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
