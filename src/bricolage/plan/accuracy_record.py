"""What a plan says of integers and of accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bricolage.plan.field_types import Amount, Count, ErrorNumber, Ratio


@dataclass(frozen=True)
class JudgedAccuracy:
    """An accuracy that was asked for on samples that are held back, and what ships reached of it."""

    asked: str
    """As the user wrote it."""
    measure: str
    """For people."""
    limit: Ratio
    at_least: bool
    samples: Count
    origin: str
    """Where the samples come from, for people."""
    reached: Ratio | None = None
    """By what ships, as its own backend computed it; None where it was not measured."""


@dataclass(frozen=True)
class FloatOperator:
    """An operator that a quantised graph leaves in float."""

    name: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class QuantisedGraph:
    """A graph that was made of the model by calibration, or by storing its weights in fewer bits, and what came of it."""

    variant: str
    """Its name among the variants of the graph."""
    products: Count
    """Operators that compute with integers ..."""
    floats: tuple[FloatOperator, ...]
    """... and those that could, and do not."""
    calibrated_on: Count
    """Samples."""
    bytes: tuple[Amount, Amount]
    """Of weights, before and after."""
    verdict: str
    """What became of it."""
    outcome: Literal["raced", "too inaccurate", "not made", "not run by any"]
    error: ErrorNumber | None = None
    """Of what it computes with exact integers, relative to float64: the largest over the samples that are held back."""


@dataclass(frozen=True)
class Verification:
    """What the answers of a plan were judged by."""

    original_error: ErrorNumber
    """Of the original in float32, relative to float64."""
    bound: ErrorNumber
    """Relative error that is accepted."""
    inputs_from: str = "generated"
    """Where the inputs of the measurements came from: "generated" with a seed, or the user's file."""
    without_float64: tuple[str, ...] = ()
    """Types of operators that have no float64 semantics here: ONNX Runtime without its optimisations was the reference for them."""
    accuracy: JudgedAccuracy | None = None
    """What was asked for on samples that are held back, and what was reached; None where there are none."""
    quantised: tuple[QuantisedGraph, ...] = ()
    """Quantised graphs that were tried, and what became of each."""
