"""The generators as hypothesis strategies: their choices are hypothesis's own, so that what fails shrinks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import onnx_ir as ir
from hypothesis import reject
from hypothesis import strategies as st

from bricolage.errors import NoReference
from bricolage.graph.inference import infer
from bricolage.graph.prepare import bind
from bricolage.testing.contexts import BY_NAME, CONTEXTS, sizes
from bricolage.testing.grow import grow, grow_wide
from bricolage.testing.random_models import random_model
from bricolage.testing.truth import Truth
from bricolage.verify.inputs import choose_sample
from bricolage.work.values import ModelValue

Kind = Literal["basic", "wide", "edges", "patterns"]
KINDS: tuple[Kind, ...] = ("basic", "wide", "edges", "patterns")
"""Which steps a model is made of: a few that fuse deeply; every operator; the edges of what they allow, too, at any opset from 18;
what rewrite rules look for."""


@dataclass(frozen=True, eq=False)
class ModelCase:
    """A model, sizes for its symbolic dimensions, and inputs."""

    model: ir.Model
    sizes: dict[str, int]
    inputs: dict[str, ModelValue]

    def truth(self) -> Truth:
        """What the model should answer."""
        return Truth(self.fixed(), self.inputs)

    def fixed(self) -> ir.Model:
        """The model with its symbolic dimensions bound."""
        fixed = bind(self.model, self.sizes)
        infer(fixed)
        return fixed


def models(
    kinds: tuple[Kind, ...] = KINDS, contexts: tuple[str, ...] = CONTEXTS, *, steps: tuple[str, ...] | None = None
) -> st.SearchStrategy[ir.Model]:
    """Valid ONNX models of up to a few dozen operators, with types and shapes inferred.

    Args:
        kinds: of which steps, see `KINDS`.
        contexts: what they are put into, see `CONTEXTS`.
        steps: only these, by the names of methods of `WideGraph`, whatever the kind.
    """
    return st.builds(_model, _chances(), _seeds(), st.sampled_from(kinds), st.sampled_from(contexts), st.just(steps))


def cases(
    kinds: tuple[Kind, ...] = KINDS, contexts: tuple[str, ...] = CONTEXTS, *, steps: tuple[str, ...] | None = None
) -> st.SearchStrategy[ModelCase]:
    """Models with inputs under which their float64 answer is finite, as far as some of six draws give one."""
    return st.builds(_case, models(kinds, contexts, steps=steps), _seeds())


def _chances() -> st.SearchStrategy[Any]:
    return st.randoms(use_true_random=False)


def _seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**32 - 1)


def _case(model: ir.Model, seed: int) -> ModelCase:
    case = ModelCase(model, sizes(model), {})
    try:
        return replace(case, inputs=choose_sample(case.fixed(), seed).inputs)
    except NoReference:
        reject()


def _model(chance: Any, seed: int, kind: Kind, context: str, steps: tuple[str, ...] | None) -> ir.Model:
    return build_model(seed, kind, context, chance, steps)


def build_model(
    seed: int, kind: Kind, context: str = "", chance: Any = None, steps: tuple[str, ...] | None = None
) -> ir.Model:
    """One model; the same for the same arguments, where `chance` is left out."""
    if steps is not None:
        model = _infer_model(grow_wide(seed, chance, steps=steps))
    elif kind == "patterns":
        model = random_model(seed, chance=chance)
    else:
        model = _infer_model(grow(seed, chance) if kind == "basic" else grow_wide(seed, chance, edges=kind == "edges"))
    return BY_NAME[context](model)


def _infer_model(graph: Any) -> ir.Model:
    for index, node in enumerate(graph.nodes):
        node.name = f"{node.op_type}_{index}"
    model: ir.Model = ir.from_proto(graph.proto())
    infer(model)
    return model
