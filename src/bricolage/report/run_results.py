"""What a run of a plan answered, how requests were served, and what a race of backends says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import RenderableType

from bricolage.api.run_artifact import RunOutcome
from bricolage.api.serve import ServedRequests
from bricolage.base.codec import JsonObject, encode
from bricolage.plan.plan import Plan
from bricolage.report.operating_points import points_overview
from bricolage.report.perfetto import chrome_trace
from bricolage.report.tables import header, plain_table, plain_text, result
from bricolage.work.values import ModelValue

_OUTPUT_HEADS = [("Output", "fold"), ("Type", "left"), ("Shape", "left"),
                 ("Min", "right"), ("Max", "right"), ("Mean", "right")]  # fmt: skip


def run_json(found: RunOutcome) -> JsonObject:
    """Facts of the outputs, and of the requests where there were some."""
    document: JsonObject = {"outputs": {name: _describe(array) for name, array in found.outputs.items()}}
    if found.served is not None:
        document["served"] = {**encode(found.served), "requests_per_s": found.served.requests_per_s}
    return document


def run_parts(found: RunOutcome) -> Iterator[RenderableType]:
    """A table of the outputs, and what came of requests."""
    yield _outputs_table(found.outputs)
    if found.served is not None:
        yield from _serving_parts(found.served)


def run_trace(found: RunOutcome) -> JsonObject:
    """When each region of the traced run ran, for Perfetto."""
    spans = () if found.traced is None else found.traced.spans
    return chrome_trace(found.plan.model, found.traced_bucket, spans)


def race_parts(plan: Plan, width: int) -> Iterator[RenderableType]:
    """All contestants of a race in which nothing ships."""
    if plan.throughput is None:
        yield result(plan, width, ships=False)
        return
    yield header(plan)
    yield ""
    yield points_overview(plan.throughput, None, width, ships=False)


def _serving_parts(served: ServedRequests) -> Iterator[RenderableType]:
    statistics = served.statistics
    each = statistics.rows / statistics.batches
    yield plain_text(f"{served.point}; {served.requests} requests, {served.concurrency} under way at a time")
    yield plain_text(f"{served.requests_per_s:.4g} requests/s; {statistics.batches} runs of {each:.3g} rows on average")
    heads = [("ms", "left"), ("Mean", "right"), ("p50", "right"), ("p99", "right"), ("Max", "right")]
    times = (("latency", statistics.latency), ("queueing", statistics.queueing), ("service", statistics.service))
    rows = [
        [name, *(f"{value:.3g}" for value in (quantiles.mean_ms, quantiles.p50_ms, quantiles.p99_ms, quantiles.max_ms))]
        for name, quantiles in times
    ]
    yield plain_table(heads, rows)


def _describe(array: ModelValue) -> dict[str, Any]:
    """Type, shape and, for numbers, range and mean."""
    if not isinstance(array, np.ndarray):
        return {"type": type(array).__name__, "length": len(array)}
    facts: dict[str, Any] = {"type": array.dtype.name, "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiubV":
        wide = array.astype(np.float64)
        facts |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return facts


def _outputs_table(outputs: Mapping[str, ModelValue]) -> RenderableType:
    rows = []
    for name, array in outputs.items():
        facts = _describe(array)
        shape = "x".join(map(str, facts["shape"])) or "scalar" if "shape" in facts else str(facts["length"])
        rows.append(
            [name, facts["type"], shape, *(f"{facts[k]:.6g}" if k in facts else "-" for k in ("min", "max", "mean"))]
        )
    return plain_table(_OUTPUT_HEADS, rows)
