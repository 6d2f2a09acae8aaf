"""What quantising a model found: the error by operator, what stayed float and why; as a table, as JSON and as a page."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from bricolage._version import __version__
from bricolage.base.codec import JsonObject
from bricolage.report import pages, words
from bricolage.report.language_accuracy import text_sentences
from bricolage.report.tables import plain_table, plain_text

if TYPE_CHECKING:
    from bricolage.quantization.outcome import OperatorOutcome, QuantizationReport

_SHOWN = 12
"""Operators in integers in the table on a terminal, those that cost most; JSON and the page have all."""


def quantization_table(found: QuantizationReport) -> RenderableType:
    """What became of the operators, and the error of the whole."""
    costly = by_cost(found)[:_SHOWN]
    parts: list[RenderableType] = []
    if costly:
        heads = [("In integers", "fold"), ("Type", "left"), ("Error alone", "right"), ("Of its weights", "right")]
        rows = [
            [outcome.name, outcome.op_type, words.error(outcome.error), words.error(outcome.weight_error)]
            for outcome in costly
        ]
        parts += [plain_table(heads, rows), Text("")]
        if len(found.quantised) > len(costly):
            parts += [plain_text(f"and {len(found.quantised) - len(costly)} more that cost less"), Text("")]
    if found.kept_float:
        heads = [("Float", "fold"), ("Type", "left"), ("Why", "fold")]
        rows = [[outcome.name, outcome.op_type, outcome.reason] for outcome in found.kept_float]
        parts += [plain_table(heads, rows), Text("")]
    parts += [plain_text(line) for line in quantization_sentences(found)]
    return Group(*parts)


def by_cost(found: QuantizationReport) -> list[OperatorOutcome]:
    """Operators in integers, the one that costs most first."""
    return sorted(found.quantised, key=lambda outcome: -(outcome.error or outcome.weight_error or 0.0))


def quantization_sentences(found: QuantizationReport) -> list[str]:
    """The whole in words."""
    count, total = len(found.quantised), len(found.operators)
    before, after = (words.size(size) for size in found.bytes)
    sentences = [f"{count} of {total} products compute in integers; constants took {before} and take {after}"]
    if found.error is not None:
        samples = f"{words.count(found.held_back, 'sample')} that calibration has not seen"
        sentences.append(
            f"error on {samples}: {found.error:.2e} at most, {found.typical_error or 0.0:.2e} in the median"
        )
    if found.reached is not None:
        sentences.append(found.reached.told)
    if found.agreement is not None:
        sentences.append(f"largest element at the same place in {found.agreement:.1%} of the rows of the first output")
    if found.text is not None:
        sentences += text_sentences(found.text)
    return [*sentences, *(f"note: {warning}" for warning in found.warnings)]


def quantization_json(found: QuantizationReport) -> JsonObject:
    """The same as data."""
    return {**asdict(found), "operators": [asdict(operator) for operator in found.operators]}


def quantization_page(found: QuantizationReport, model: str) -> str:
    """The same as a page of HTML that needs nothing else."""
    most = max((operator.error or 0.0 for operator in found.operators), default=0.0)
    return pages.fill_template(
        "quantization.html.j2",
        {"error": words.error},
        model=model,
        version=__version__,
        found=found,
        most=most,
        sentences=quantization_sentences(found),
    )
