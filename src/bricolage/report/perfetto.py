"""What really ran when, or is predicted to, as a file that Perfetto and Chrome (about:tracing) draw.

The format is Chrome's Trace Event Format: complete events ("X"), times in microseconds from the first start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bricolage.base.codec import JsonObject
from bricolage.plan.plan import Bucket
from bricolage.runtime.spans import RunSpan

if TYPE_CHECKING:
    from bricolage.search.schedules.schedule import Move, Schedule


def chrome_trace(model: str, bucket: Bucket | None, spans: Sequence[RunSpan]) -> JsonObject:
    """One row for each thread that calls regions, one event for each call. Without a bucket (a shape that was not planned) events
    have numbers only."""
    begun = min((span.start_ns for span in spans), default=0)
    threads = list(dict.fromkeys(span.thread for span in sorted(spans, key=lambda span: span.step)))
    events = _rows(model, [f"thread {thread}" for thread in threads])
    events += [
        {
            "name": f"region {span.step + 1}",
            "ph": "X",
            "pid": 1,
            "tid": 1 + threads.index(span.thread),
            "ts": (span.start_ns - begun) / 1e3,
            "dur": (span.end_ns - span.start_ns) / 1e3,
            "args": _facts(bucket, span),
            **_name_span(bucket, span),
        }
        for span in sorted(spans, key=lambda span: (span.start_ns, span.step))
    ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def predicted_trace(model: str, tasks: Sequence[str], schedule: Schedule, moves: Sequence[Move]) -> JsonObject:
    """One row for each core of a device, one for each pair of devices between which something is moved. `tasks` are the names of
    the schedule's tasks. A move is an event from its source's end to the arrival."""
    cores = list(
        dict.fromkeys((interval.device, lane) for interval in schedule.intervals for lane in sorted(interval.lanes))
    )
    ways = list(dict.fromkeys((move.from_device, move.to_device) for move in moves))
    events = _rows(
        model,
        [*(f"{device}, core {lane}" for device, lane in cores), *(f"{source} to {target}" for source, target in ways)],
    )
    for task, interval in enumerate(schedule.intervals):
        for lane in interval.lanes:
            facts: JsonObject = {"device": interval.device, "cores": len(interval.lanes)}
            events.append(
                _event(tasks[task], 1 + cores.index((interval.device, lane)), interval.start_ms, interval.end_ms, facts)
            )
    for move in moves:
        row = 1 + len(cores) + ways.index((move.from_device, move.to_device))
        events.append(_event(f"{tasks[move.source]} to {tasks[move.target]}", row, move.start_ms, move.end_ms, {}))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _rows(model: str, names: Sequence[str]) -> list[JsonObject]:
    threads: list[JsonObject] = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}
        for row, name in enumerate(names, 1)
    ]
    return [{"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": model}}, *threads]


def _event(name: str, row: int, start_ms: float, end_ms: float, facts: JsonObject) -> JsonObject:
    span = {"ts": start_ms * 1e3, "dur": (end_ms - start_ms) * 1e3}
    return {"name": name, "ph": "X", "pid": 1, "tid": row, **span, "args": facts}


def _name_span(bucket: Bucket | None, span: RunSpan) -> dict[str, str]:
    if bucket is None:
        return {}
    region = bucket.program.regions[span.step]
    return {"name": f"{span.step + 1} {region.title}".rstrip(), "cat": region.implementation.backend}


def _facts(bucket: Bucket | None, span: RunSpan) -> JsonObject:
    facts: JsonObject = {} if span.core is None else {"core of the caller at the end": span.core}
    if bucket is None:
        return facts
    region = bucket.program.regions[span.step]
    facts |= {"implementation": str(region.implementation), "operators": region.operators}
    if region.cost_ms is not None:
        facts["planned ms"] = region.cost_ms
    if bucket.program.schedule is not None:
        facts["cores"] = list(bucket.program.schedule.cores[span.step])
    return facts
