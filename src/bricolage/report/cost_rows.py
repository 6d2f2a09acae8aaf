"""Measurements in the database, and how far off a model is that was trained on them."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import RenderableType

from bricolage.api.cost_model import TrainedCostModel
from bricolage.api.cost_records import ListedCosts
from bricolage.base.codec import JsonObject, encode
from bricolage.report import words
from bricolage.report.tables import WIDE, plain_table

_ERROR_HEADS = [("Left out, each once", "left"), ("Measurements", "right"), ("Mean error", "right"),
                ("Rank correlation", "right"), ("Regret, median", "right"), ("worst", "right"),
                ("In the interval", "right")]  # fmt: skip


def costs_table(listed: ListedCosts, *, failures: bool, width: int) -> RenderableType:
    """A row for each measurement; for `failures` with the reason, else with its interval where the console is wide."""
    wide = width >= WIDE
    heads = [("Region", "left"), ("Backend", "fold"), ("Config", "left"), ("Result", "right"), ("Measured", "left")]
    heads += [("Reason", "fold")] if failures else [("95 % interval", "right")] * wide
    rows: list[list[str]] = []
    for entry in listed.entries:
        key, cost = entry.key, entry.cost
        result = words.milliseconds(cost.ms) if cost.ms is not None else cost.outcome
        when = time.strftime("%Y-%m-%d", time.localtime(cost.date))
        row = [key.region[:8], f"{key.backend} {key.version}", key.config, result, when]
        bounds = (cost.latency.low_ms, cost.latency.high_ms) if cost.latency else None
        rows.append(row + ([cost.reason] if failures else [words.interval(bounds)] * wide))
    return plain_table(heads, rows) if rows else "no measurements"


def model_errors(trained: TrainedCostModel) -> RenderableType:
    """How far off models were on networks, and on machines, that they had not seen."""
    rows = [
        [
            f"{evaluation.groups} {what}",
            str(evaluation.samples),
            f"{evaluation.mape:.1%}",
            f"{evaluation.rank_correlation:.3f}",
            f"{evaluation.regret:.1%}",
            f"{evaluation.worst_regret:.1%}",
            f"{evaluation.covered:.0%}",
        ]
        for what, evaluation in (("networks", trained.by_network), ("machines", trained.by_machine))
        if evaluation is not None
    ]
    return (
        plain_table(_ERROR_HEADS, rows)
        if rows
        else "too few networks and machines to leave one out: how far off it is cannot be said"
    )


def trained_json(trained: TrainedCostModel, out: Path) -> JsonObject:
    """The same, with the file that holds the model."""
    counts = {"samples": trained.samples, "networks": trained.networks}
    errors = {"by_network": encode(trained.by_network), "by_machine": encode(trained.by_machine)}
    return {"file": str(out), **counts, **errors, "spread": dict(trained.model.spread)}
