"""What really ran when, as a file that Perfetto and Chrome (about:tracing) draw.

The format is Chrome's Trace Event Format: complete events ("X"), times in microseconds from the first start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bricolage.plan.plan import Bucket
from bricolage.runtime.spans import Span


def chrome_trace(model: str, bucket: Bucket | None, spans: Sequence[Span]) -> dict[str, Any]:
    """One row for each thread that calls regions, one event for each call. Without a bucket (a shape that was not planned) events
    have numbers only."""
    begun = min((span.start_ns for span in spans), default=0)
    threads = list(dict.fromkeys(span.thread for span in sorted(spans, key=lambda span: span.step)))
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": model}},
        *(
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": f"thread {thread}"}}
            for row, thread in enumerate(threads, 1)
        ),
    ]
    events += [
        {
            "name": f"region {span.step + 1}",
            "ph": "X",
            "pid": 1,
            "tid": 1 + threads.index(span.thread),
            "ts": (span.start_ns - begun) / 1e3,
            "dur": (span.end_ns - span.start_ns) / 1e3,
            "args": _facts(bucket, span),
            **_named(bucket, span),
        }
        for span in sorted(spans, key=lambda span: (span.start_ns, span.step))
    ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(bucket: Bucket | None, span: Span) -> dict[str, str]:
    if bucket is None:
        return {}
    region = bucket.regions[span.step]
    return {"name": f"{span.step + 1} {region.title}".rstrip(), "cat": region.implementation.backend}


def _facts(bucket: Bucket | None, span: Span) -> dict[str, Any]:
    facts: dict[str, Any] = {} if span.core is None else {"core of the caller at the end": span.core}
    if bucket is None:
        return facts
    region = bucket.regions[span.step]
    facts |= {"implementation": str(region.implementation), "operators": region.operators}
    if region.cost_ms is not None:
        facts["planned ms"] = region.cost_ms
    if bucket.schedule is not None:
        facts["cores"] = list(bucket.schedule.cores[span.step])
    return facts
