"""For tests of backends and rules: random models as hypothesis strategies, and what is wrong with an answer.

    from hypothesis import given
    from bricolage.testing import cases

    @given(cases())
    def test_my_backend(case): assert not case.truth().wrong(run(case.model, case.inputs))

It needs hypothesis (`pip install hypothesis`); nothing else in bricolage needs it.
"""

from __future__ import annotations

from bricolage.testing.branching import branching_model
from bricolage.testing.contexts import CONTEXTS
from bricolage.testing.grow import SideBySide, WideGraph, grow, grow_wide, side_by_side
from bricolage.testing.random_models import random_model
from bricolage.testing.strategies import KINDS, ModelCase, build_model, cases, models
from bricolage.testing.truth import Truth, Wrong

__all__ = [
    "CONTEXTS",
    "KINDS",
    "ModelCase",
    "SideBySide",
    "Truth",
    "WideGraph",
    "Wrong",
    "branching_model",
    "build_model",
    "cases",
    "grow",
    "grow_wide",
    "models",
    "random_model",
    "side_by_side",
]
