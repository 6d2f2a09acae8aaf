"""What quantising a model found: the file's model, and which operators compute in integers at what cost in accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from bricolage.frontends.maps import restore
from bricolage.graph.extract import write_whole
from bricolage.verify.accuracy_measures import Reached
from bricolage.verify.text_accuracy import TextAccuracy


@dataclass(frozen=True)
class OperatorOutcome:
    """What became of one operator."""

    name: str
    op_type: str
    quantised: bool
    reason: str = ""
    """Why it stayed float."""
    error: float | None = None
    """Of the model's outputs on held-back samples with this operator alone in integers; None where that was not measured."""
    weight_error: float | None = None
    """Relative norm of what rounding takes from its weights."""
    bits: int = 8
    """Of its weights."""


@dataclass(frozen=True)
class QuantizationReport:
    """What was made of a model, and how well it answers on samples that calibration has not seen."""

    operators: tuple[OperatorOutcome, ...]
    """Those that multiply with weights, in the graph's order."""
    error: float | None
    """Relative to the float model in float64: the largest over held-back samples and outputs; None where there are none."""
    typical_error: float | None
    """The median over held-back samples."""
    agreement: float | None
    """Share of rows of the first output whose largest element is at the same place; None where it has none."""
    calibrated_on: int
    """Samples."""
    held_back: int
    """Samples that errors were measured on."""
    bytes: tuple[int, int]
    """Of weights, before and after."""
    warnings: tuple[str, ...] = ()
    reached: Reached | None = None
    """By the measure that was asked for, on held-back samples; None where none was."""
    text: TextAccuracy | None = None
    """Of a language model, compared with the float model on held-back windows of a text; None where there was none."""

    @property
    def quantised(self) -> tuple[OperatorOutcome, ...]:
        """Those in integers."""
        return tuple(operator for operator in self.operators if operator.quantised)

    @property
    def kept_float(self) -> tuple[OperatorOutcome, ...]:
        """Those that stayed float."""
        return tuple(operator for operator in self.operators if not operator.quantised)


@dataclass(frozen=True)
class QuantizedModel:
    """A model in QDQ form, for any runtime."""

    model: ir.Model = field(repr=False)
    report: QuantizationReport

    def save(self, path: str | Path) -> None:
        """Writes an ONNX file: there whole or not at all.

        Raises:
            NotWritable: the disk is full or the folder is not writable.
        """
        write_whole(self.model, Path(path))
        restore(Path(path))


def constant_bytes(model: ir.Model) -> int:
    """Of all constants, as a file holds them."""
    return sum(
        initializer.const_value.nbytes
        for initializer in model.graph.initializers.values()
        if initializer.const_value is not None
    )
