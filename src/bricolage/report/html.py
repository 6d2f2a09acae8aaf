"""The report page: one self-contained file. Nothing is loaded from outside, and everything of the model is escaped."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bricolage._version import __version__
from bricolage.backends.interface import Anatomy
from bricolage.graph.graph import Graph
from bricolage.plan.decision_record import Transfer
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.throughput import Throughput
from bricolage.report import accuracy_front, agenda_rows, charts, concurrency, front, headline, operating_points, words
from bricolage.report.drawing import region_graph
from bricolage.report.explain import describe_cost, explain_choice
from bricolage.report.facts import RegionFacts, region_facts
from bricolage.report.pages import fill_template
from bricolage.report.palette import COLOURS, slots
from bricolage.report.roofline_chart import roofline, roofs, timed_kernels
from bricolage.report.tuning import describe_choice, format_sizes, rank_tasks


def render(
    plan: Plan, graphs: Sequence[Graph | None], command: str = "", insides: Sequence[Mapping[int, Anatomy]] = ()
) -> str:
    """The page. `graphs` are the buckets' graphs in order (None where one is missing: then regions have no operator
    names and no neighbours); `command` is what made the page. `insides` are, for each bucket, the kernels of its regions by
    their numbers, where they shall be shown."""
    filters: dict[str, Callable[..., object]] = {
        "ms": words.milliseconds,
        "ci": words.interval,
        "time": words.shown_time,
        "range": words.shown_interval,
        "percent": words.percent,
        "err": words.error,
        "secs": words.seconds,
        "bytes": words.size,
        "match": words.match,
        "rate": operating_points.request_rate,
        "rates": operating_points.rates,
    }
    servers = () if plan.throughput is None else plan.throughput.servers
    answering = [server.implementation.backend for server in servers if server.implementation is not None]
    colours = slots([*answering, *(name for bucket in plan.buckets for name in _backends(bucket))])
    seen = insides or [{}] * len(plan.buckets)
    buckets = [_bucket(*given, colours) for given in zip(plan.buckets, graphs, seen, strict=True)]
    return fill_template(
        "report.html.j2",
        filters,
        plan=plan,
        buckets=buckets,
        served=None if plan.throughput is None else _describe_serving(plan.throughput, plan, colours),
        colours=COLOURS,
        command=command,
        remake=remake(plan),
        version=__version__,
        agenda_heads=agenda_rows.HEADS,
    )


def remake(plan: Plan) -> str:
    """The command that makes the plan again."""
    model = plan.model if "." in plan.model else f"{plan.model}.onnx"
    names = dict.fromkeys(name for bucket in plan.buckets for name in bucket.program.sizes)
    sizes = {name: tuple(b.program.sizes[name] for b in plan.buckets if name in b.program.sizes) for name in names}
    options = dataclasses.replace(plan.provenance.options, shapes=sizes)
    words = {constant.name: None if "..." in constant.value else constant.value for constant in plan.constants}
    words |= {name: word for name, word in options.constants.items() if word is not None}
    options = dataclasses.replace(options, constants=words)
    if options.backends is None:  # others may be installed by then
        options = dataclasses.replace(options, backends=tuple(plan.provenance.versions))
    judged = [bucket for bucket in plan.buckets if bucket.verification.accuracy is not None]
    calibrated = any(variant.calibrated_on for bucket in judged for variant in bucket.verification.quantised)
    data = ["--calibrate" if calibrated else "--evaluate", "DATA.npz"] if judged else []
    return shlex.join(["bricolage", "optimize", model, *data, *options.flags()])


def _describe_serving(found: Throughput, plan: Plan, colours: Mapping[str, int]) -> dict[str, Any]:
    """How requests are served, and what else was tried."""
    return {
        "found": found,
        "won": found.winner,
        "point": plan.operating_point,
        "verdict": operating_points.points_verdict(found, plan.operating_point).replace("x [", "× ["),
        "limits": operating_points.bounding_lines(found),
        "figure": Markup(front.figure(found, colours)),
        "classes": {server.name: front.colour(server, colours) for server in found.servers},
        "standing": {server.name: operating_points.points_standing(server, found) for server in found.servers},
    }


def _backends(bucket: Bucket) -> list[str]:
    transfer_backends = [
        end.backend for transfer in bucket.record.transfers for end in (transfer.producer, transfer.consumer)
    ]
    baselines = [c.implementation.backend for c in bucket.race.contestants if c.implementation is not None]
    return [*baselines, *bucket.program.backends, *transfer_backends]


def _bucket(
    bucket: Bucket, graph: Graph | None, inside: Mapping[int, Anatomy], colours: Mapping[str, int]
) -> dict[str, Any]:
    facts = region_facts(bucket, graph)
    planned = {f.number: f.planned for f in facts}
    kernels = timed_kernels(planned, inside)
    limit = bucket.verification.bound
    lines = [concurrency.describe_concurrency(bucket, facts, 1), *map(concurrency.attempt, bucket.record.attempts)]
    return {
        "plan": bucket,
        "title": words.format_shape(bucket.program.sizes) or "all shapes fixed",
        "rewriting": words.rewriting(bucket),
        "verdict": headline.verdict(bucket),
        "hero": headline.hero(bucket),
        "gain": headline.good_news(bucket),
        "winner": next((c for c in bucket.race.contestants if c.name == bucket.race.chosen), None),
        "ranked": words.rank_contestants(bucket),
        "over_other": {c.name: headline.over_other(bucket, c) for c in bucket.race.contestants},
        "over_single": {c.name: headline.over_single(bucket, c) for c in bucket.race.contestants},
        "classes": {c.name: charts.backend_class(c, colours) for c in bucket.race.contestants},
        "raced": any(c.first_run_ms is not None for c in bucket.race.contestants),
        "race": Markup(charts.contestant_chart(bucket, colours)),
        "front": Markup(accuracy_front.accuracy_figure(bucket, colours)),
        "other_pattern": words.other_pattern(bucket),
        "other_title": words.other_title(bucket),
        "accuracy": words.accuracy(bucket),
        "quantised": words.quantised_lines(bucket),
        "kept_float": words.kept_float(bucket),
        "errors": Markup(charts.error_chart(bucket, limit, colours)),
        "limit": limit,
        "timeline": Markup(charts.timeline_chart(facts, colours)),
        "schedule": Markup(charts.schedule_chart(bucket, colours)),
        "side_by_side": list(filter(None, lines)),
        "graph": Markup(region_graph(facts, colours)),
        "linked": graph is not None,
        "facts": facts,
        "rates": [words.flop_rate(f.planned.flops, f.planned.cost_ms) for f in facts],
        "legend": _legend(bucket, colours),
        "disturbance": words.disturbance(bucket),
        "provisional": words.provisional(bucket),
        "proof": words.proof(bucket),
        "agenda": agenda_rows.agenda_rows(bucket),
        "predictions": words.predictions(bucket),
        "transfer_total": sum(region.transfer_ms for region in bucket.program.regions),
        "slots": colours,
        "matrices": _matrices(bucket.record.transfers),
        "data": [_hover(f) for f in facts],
        "tuned": [
            {
                "title": f"{run.implementation.backend} {run.implementation.config.name}",
                "tasks": [{"task": t, "choice": describe_choice(t.choice), "sizes": format_sizes(t)} for t in rank_tasks(run)],
                "saved_ms": sum(task.saved_ms for task in run.tasks),
            }
            for run in bucket.program.tuned
        ],
        "kernels": kernels,
        "kernel_rates": [words.flop_rate(kernel.kernel.flops, kernel.ms) for kernel in kernels],
        "roofline": Markup(roofline(kernels, roofs(planned, inside), colours)),
    }  # fmt: skip


def _legend(bucket: Bucket, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """Backends by the time that their regions take, transfers being part of the whole."""
    used = dict.fromkeys(bucket.program.backends, 0.0)
    for region in bucket.program.regions:
        used[region.implementation.backend] += region.cost_ms or 0.0
    total = sum(used.values()) + sum(region.transfer_ms for region in bucket.program.regions)
    return [
        {
            "name": name,
            "slot": colours[name],
            "ms": ms,
            "share": ms / total if total else None,
            "regions": sum(1 for r in bucket.program.regions if r.implementation.backend == name),
        }
        for name, ms in sorted(used.items(), key=lambda item: -item[1])
    ]


def _hover(f: RegionFacts) -> dict[str, Any]:
    """What the pointer shows, and what the search box searches."""
    p = f.planned
    types = ", ".join(kind if n == 1 else f"{kind} ×{n}" for kind, n in f.types[:6])
    return {
        "title": f"{f.number} · {p.title}",
        "backend": f"{p.implementation.backend} ({p.implementation.config})",
        "lines": [
            line
            for line in (
                describe_cost(f),
                explain_choice(f),
                f"{words.count(p.count, 'operator')}" + (f": {types}" if types else ""),
            )
            if line
        ],
        "operators": list(f.operators),
        "before": list(f.before),
        "after": list(f.after),
    }


def _matrices(transfers: Sequence[Transfer]) -> list[dict[str, Any]]:
    """One matrix of transfer costs for each size: rows hand over, columns take over."""
    matrices: list[dict[str, Any]] = []
    for size in sorted({transfer.bytes for transfer in transfers}):
        cells = {
            (str(transfer.producer), str(transfer.consumer)): transfer.median_ms
            for transfer in transfers
            if transfer.bytes == size
        }
        names = list(dict.fromkeys(name for pair in cells for name in pair))
        longest = max(cells.values()) or 1.0
        rows = [
            {
                "name": row,
                "cells": [(cells.get((row, column)), cells.get((row, column), 0.0) / longest) for column in names],
            }
            for row in names
        ]
        matrices.append({"bytes": size, "names": names, "rows": rows})
    return matrices
