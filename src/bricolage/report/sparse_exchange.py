"""What `bricolage train sparse` tells: what partitions of a sparse network send, and what came of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType

from bricolage.base.codec import JsonObject, encode
from bricolage.report import words
from bricolage.report.tables import plain_table

if TYPE_CHECKING:
    from bricolage.train.sparse.sparse_plan import LayerTraffic, PartitionTraffic, SparsePlan
    from bricolage.train.sparse.sparse_runs import ExchangeOutcome, SparseOutcome

_SHOWN = 12
"""Layers; of more the first ones are shown."""
_COMPARED = ("blocks", "random")
"""Partitions whose layers stand next to those of the chosen one."""


def sparse_json(plan: SparsePlan, outcome: SparseOutcome | None) -> JsonObject:
    """All numbers."""
    header = plan.header
    layers = [
        {
            "name": layer.name,
            "rows": layer.weights.shape[0],
            "inputs": layer.weights.shape[1],
            "non_zeros": int(layer.weights.nnz),
        }
        for layer in plan.layers
    ]
    partitions = [
        {"method": part.method, "words": part.words, "messages": part.messages, "imbalance": part.imbalance}
        | {"layers": encode(part.layers)}
        for part in header.partitions
    ]
    exchanges = [_exchange_json(plan, name, ends) for name, ends in _list_exchanges(plan)]
    return {
        "options": encode(header.options),
        "layers": layers,
        "partitions": partitions,
        "exchanges": exchanges,
        "run": None if outcome is None else encode(outcome),
    }


def sparse_parts(plan: SparsePlan, outcome: SparseOutcome | None) -> Iterator[RenderableType]:
    """The same for people."""
    stored = sum(int(layer.weights.nnz) for layer in plan.layers)
    dense = sum(layer.weights.shape[0] * layer.weights.shape[1] for layer in plan.layers)
    options = plan.header.options
    yield (
        f"{words.count(len(plan.layers), 'layer')}, {stored:,} non-zeros ({words.percent(stored / dense)} of all weights), "
        f"{options.processes} processes, inputs by {options.inputs}\n"
    )
    heads = [("Rows by", "left"), ("Words", "right"), ("Messages", "right"), ("Heaviest", "right")]
    yield plain_table(heads, [_partition_row(part) for part in plan.header.partitions])
    yield "\nLayer by layer, words in messages and heaviest process:"
    yield _layer_table(plan)
    yield "\nExchanges of a pass forward, for one sample:"
    heads = [("Exchange before", "left"), ("Exchanges", "right"), ("Messages", "right"), ("Words", "right")]
    rows = []
    for name, ends in _list_exchanges(plan):
        numbers = _exchange_json(plan, name, ends)
        cells = [f"{numbers[key]:,}" for key in ("exchanges", "messages", "words", "operations")]
        rows.append([name, *cells])
    yield plain_table([*heads, ("Operations", "right")], rows)
    if outcome is not None:
        yield from _outcome_parts(outcome)


def _list_exchanges(plan: SparsePlan) -> list[tuple[str, tuple[int, ...] | None]]:
    """Before each layer; and as few as the plan has."""
    exchanges: list[tuple[str, tuple[int, ...] | None]] = [("each layer", None)]
    if plan.header.options.depth > 1:
        exchanges.append((f"up to {plan.header.options.depth} layers", plan.header.ends))
    return exchanges


def _exchange_json(plan: SparsePlan, name: str, ends: tuple[int, ...] | None) -> dict[str, str | int]:
    exchanges = plan.exchanges(ends)
    return {
        "name": name,
        "exchanges": len(exchanges),
        "messages": sum(exchange.messages for exchange in exchanges),
        "words": sum(exchange.words for exchange in exchanges),
        "operations": sum(exchange.operations for exchange in exchanges),
    }


def _partition_row(part: PartitionTraffic) -> list[str]:
    return [part.method, f"{part.words:,}", f"{part.messages:,}", words.percent(part.imbalance, sign=True)]


def _layer_table(plan: SparsePlan) -> RenderableType:
    chosen, *others = plan.header.partitions
    shown = [chosen, *(part for part in others if part.method in _COMPARED)]
    heads = [("Layer", "fold"), ("Rows", "right"), *((part.method, "right") for part in shown)]
    rows = [
        [layer.name, f"{layer.weights.shape[0]:,}", *(_traffic_text(part.layers[number]) for part in shown)]
        for number, layer in enumerate(plan.layers[:_SHOWN])
    ]
    if len(plan.layers) > _SHOWN:
        rows.append([f"... of {len(plan.layers)}: --json", "", *[""] * len(shown)])
    return plain_table(heads, rows)


def _traffic_text(traffic: LayerTraffic) -> str:
    return f"{traffic.words:,} in {traffic.messages:,}, {traffic.imbalance:+.0%}"


def _outcome_parts(outcome: SparseOutcome) -> Iterator[RenderableType]:
    heads = [("Exchange before", "left"), ("Pass", "left"), ("Messages", "right"), ("Sent", "right")]
    heads += [("Packed", "right"), ("Error", "right"), ("Forward", "right"), ("Back", "right")]
    yield f"\nRun by {outcome.processes} processes, {words.count(outcome.samples, 'sample')}:"
    yield plain_table(heads, [_outcome_row(mode) for mode in outcome.modes])
    yield (
        f"\nMessages and bytes are those predicted; errors to one process in float64 are within {words.error(outcome.limit)}. "
        f"One process takes {words.milliseconds(outcome.undivided_ms)}, forward and back."
    )


def _outcome_row(mode: ExchangeOutcome) -> list[str]:
    return [
        mode.name,
        "both" if mode.backward else "forward",
        f"{mode.messages:,}",
        words.size(mode.sent_bytes),
        words.size(mode.packed_bytes),
        words.error(mode.error),
        words.milliseconds(mode.forward_ms),
        words.milliseconds(mode.backward_ms),
    ]
