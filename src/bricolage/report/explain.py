"""Why each region is where it is, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bricolage.backends.interface import Anatomy, FusedKernel
from bricolage.base.codec import JsonObject, encode
from bricolage.errors import BadOption
from bricolage.graph.graph import Graph
from bricolage.plan.plan import Bucket
from bricolage.plan.shipped_program import Alternative
from bricolage.report import agenda_rows, concurrency, words
from bricolage.report.facts import RegionFacts, region_facts
from bricolage.report.tables import plain_table, plain_text, verdict_text
from bricolage.work.implementation import Implementation
from bricolage.work.kernel_orders import KernelOrders

SHOWN = 25
"""Regions listed unless all are asked for: those that take the most time."""
_NAMES = 40
_KERNEL_NAMES = 4


def find_regions(facts: Sequence[RegionFacts], name: str) -> list[RegionFacts]:
    """Regions that hold an operator of that name; without one, of a name that contains it; without one, of that type.

    Raises:
        BadOption: there is none.
    """
    exact = [f for f in facts if name in f.operators]
    partly = [f for f in facts if any(name in operator for operator in f.operators)]
    typed = [f for f in facts if any(name == kind for kind, _ in f.types)]
    if exact or partly or typed:
        return exact or partly or typed
    examples = ", ".join(f"'{f.operators[0]}'" for f in facts[:3] if f.operators)
    raise BadOption(
        option="--op", value=name, advice=f"No operator has such a name or type; there are for example {examples}"
    )


def overview(bucket: Bucket, graph: Graph | None, everything: bool = False, cores: int = 1) -> RenderableType:
    """The verdict and a table of the regions, in the order of the plan. `cores` are those that it was planned for."""
    facts = region_facts(bucket, graph)
    by_time = sorted(facts, key=lambda f: -(f.planned.cost_ms or 0.0))
    shown = {f.number for f in (facts if everything else by_time[:SHOWN])}
    heads = [("#", "right"), ("Region", "fold"), ("Backend", "left"), ("Time", "right"), ("Share", "right")]
    heads += [("Runner-up", "left"), ("Margin", "right"), ("Clear", "left")]
    rows: list[list[str]] = []
    for f in facts:
        if f.number not in shown:
            continue
        other, p = f.runner_up, f.planned
        rows.append(
            [
                str(f.number),
                p.title,
                p.implementation.backend,
                words.milliseconds(p.cost_ms) + ("" if p.measured or p.cost_ms is None else "*"),
                words.percent(f.share),
                other.implementation.backend if other else words.MISSING,
                words.percent(f.margin, sign=True),
                {True: "yes", False: "no", None: words.MISSING}[f.clear],
            ]
        )
    parts: list[RenderableType] = [verdict_text(bucket), Text(quality(bucket))]
    side_by_side = concurrency.describe_concurrency(bucket, facts, cores) if graph is not None else ""
    attempts = map(concurrency.attempt, bucket.record.attempts)
    decided = (words.provisional(bucket), words.disturbance(bucket), words.proof(bucket), words.predictions(bucket))
    integers = (words.accuracy(bucket), *words.quantised_lines(bucket))
    remarks = (*integers, side_by_side, *attempts, words.rewriting(bucket))
    settled = (*decided, words.other_pattern(bucket))
    parts += [Text(remark) for remark in (*settled, words.describe_memory(bucket), *remarks) if remark]
    parts += [Text(""), plain_table(heads, rows)]
    parts += [Text(""), render_agenda(bucket)] if bucket.record.agenda else []
    hidden = len(facts) - len(rows)
    if hidden:
        parts.append(
            Text(f"and {words.count(hidden, 'region')} that take less time; --all lists every one", style="dim")
        )
    if any(not f.planned.measured and f.planned.cost_ms is not None for f in facts if f.number in shown):
        parts.append(Text("* predicted from its parts, not measured as a whole", style="dim"))
    return Group(*parts)


def render_agenda(bucket: Bucket) -> RenderableType:
    """The agenda: measurements in addition to the baselines, in order, and what each saved; what was left out, and why."""
    rows = agenda_rows.agenda_rows(bucket)
    kinds = ("fold", "left", *["right"] * len(agenda_rows.HEADS))
    heads = [(head.replace(" ", "\n"), kind) for head, kind in zip(agenda_rows.HEADS[:-1], kinds, strict=False)]
    reasons = [plain_text(f"{name}: ", "bold").append_text(plain_text(reason)) for name, *_, reason in rows]
    table = plain_table(heads, [row[:-1] for row in rows], title="Agenda")
    return Group(table, Text(""), *(Padding(line, (0, 0, 0, 2)) for line in reasons))


def quality(bucket: Bucket) -> str:
    """Prediction against measurement, and Collage's measures."""
    measured = (
        bucket.race.winner.median_ms if any(c.name == bucket.race.chosen for c in bucket.race.contestants) else None
    )
    predicted = (
        f"predicted {words.milliseconds(bucket.record.predicted_ms)}, "
        if bucket.record.predicted_ms is not None
        else ""
    )
    timed = f"measured {words.milliseconds(measured)}"
    if words.is_predicted(bucket):
        predicted, timed = f"predicted {words.shown_time(bucket.race.winner)}, ", "not measured"
    q = bucket.race.quality
    additive = f"additive error {words.percent(q.additive_error, sign=True)}, " if q.additive_error is not None else ""
    return (
        f"{words.count(len(bucket.program.regions), 'region')} of {words.count(bucket.program.operators, 'operator')}: {predicted}"
        f"{timed}; {additive}optimality loss {words.percent(q.optimality_loss)}, "
        f"apparent loss {words.percent(q.apparent_loss, sign=True)}"
    )


def details(facts: RegionFacts, total: int) -> RenderableType:
    """Everything known about one region."""
    p = facts.planned
    head = f"Region {facts.number} of {total}: {p.title} ({words.count(p.count, 'operator')}) on {runner(p.implementation)}"
    lines = [("why", explain_choice(facts)), ("cost", describe_cost(facts))]
    if p.flops or p.bytes:
        work = f"{p.flops / 1e6:,.1f} MFLOP, {words.size(p.bytes)}; {words.flop_rate(p.flops, p.cost_ms)}"
        lines.append(("work", work))
    lines += [("tried" if i == 0 else "", describe_alternative(other)) for i, other in enumerate(p.alternatives)]
    if facts.before or facts.after:
        lines.append(("reads", _regions(facts.before) or "the model's inputs only"))
        lines.append(("feeds", _regions(facts.after) or "the model's outputs only"))
    if facts.operators:
        more = len(facts.operators) - _NAMES
        names = ", ".join(facts.operators[:_NAMES]) + (f" and {more} more" if more > 0 else "")
        lines.append(("operators", names))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in lines:
        grid.add_row(plain_text(f"  {name}"), plain_text(text))
    return Group(plain_text(head, "bold"), grid)


def kernel_table(number: int, made: Anatomy, everything: bool = False) -> RenderableType:
    """The kernels of a region: what each computes, how much, and how fast here."""
    total = sum(kernel.ms or 0.0 for kernel in made.kernels)
    slowest = sorted(made.kernels, key=lambda kernel: -(kernel.ms or 0.0))
    shown = set(slowest if everything else slowest[:SHOWN])
    heads = [("Kernel", "left"), ("Operators", "fold"), ("Stores", "left"), ("Time", "right"), ("Share", "right")]
    heads += [("Rate", "right"), ("Moves", "right"), ("Roofline", "right")]
    rows = [
        [
            kernel.name.removeprefix("kernel_"),
            _kernel_names(kernel),
            "x".join(map(str, kernel.shape)) or "scalar",
            words.milliseconds(kernel.ms),
            words.percent(kernel.ms / total if kernel.ms is not None and total else None),
            words.flop_rate(kernel.flops, kernel.ms),
            words.size(kernel.bytes),
            words.percent(made.of_roofline(kernel)),
        ]
        for kernel in made.kernels
        if kernel in shown
    ]
    title = f"Region {number}: {words.count(len(made.kernels), 'fused kernel')}, {words.milliseconds(total)} together"
    parts: list[RenderableType] = [Text(""), plain_text(title, "bold"), plain_table(heads, rows)]
    if len(rows) < len(made.kernels):
        rest = words.count(len(made.kernels) - len(rows), "kernel")
        parts.append(Text(f"and {rest} that take less time; --all lists every one", style="dim"))
    if made.peaks is not None:
        peaks = f"{words.flop_rate(round(made.peaks.gflops * 1e6), 1.0)}, {made.peaks.gbytes:.3g} GB/s from memory"
        parts.append(
            Text(
                f"roofline: {peaks}; above 100 %: data came from cache, or the algorithm needs fewer operations", "dim"
            )
        )
    return Group(*parts)


def orders_table(number: int, compared: Sequence[KernelOrders]) -> RenderableType:
    """What a region would take on other threads, by the order of its kernels' tasks."""
    heads = [
        ("Threads", "right"),
        ("Memory", "left"),
        ("Barriers", "right"),
        ("As it runs", "right"),
        ("Waves", "right"),
    ]
    heads += [("Lists", "right"), ("No order below", "right")]
    rows = [
        [
            str(orders.threads),
            "shared" if orders.shared_memory else "free",
            *map(
                words.milliseconds,
                (orders.barriers_ms, orders.usual_ms, orders.waves_ms, orders.lists_ms, orders.lower_ms),
            ),
        ]
        for orders in compared
    ]
    first = compared[0]
    tasks = f"{words.count(first.tasks, 'task')} on {first.threads} threads"
    title = f"Region {number}: {words.count(first.kernels, 'kernel')}, {tasks}"
    note = "simulated with the kernels' times on one thread of this machine; a task is a piece of a kernel's loop"
    return Group(Text(""), plain_text(title, "bold"), plain_table(heads, rows), Text(note, "dim"))


def _kernel_names(kernel: FusedKernel) -> str:
    """Its first operators and how many more."""
    more = len(kernel.operators) - _KERNEL_NAMES
    names = ", ".join(kernel.operators[:_KERNEL_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"{kernel.kind}: {names}" if names else kernel.kind


def _regions(indices: Sequence[int]) -> str:
    return ("region " if len(indices) == 1 else "regions ") + ", ".join(str(i + 1) for i in indices) if indices else ""


def runner(implementation: Implementation) -> str:
    """An implementation in a sentence: "openvino (f32)"."""
    return f"{implementation.backend} ({implementation.config})"


def explain_choice(facts: RegionFacts) -> str:
    """The reason for the choice in one sentence."""
    p, other = facts.planned, facts.runner_up
    timed = sum(1 for a in p.alternatives if a.median_ms is not None and a.outcome == "ok")
    if other is None:
        if timed:
            return "the only accurate implementation measured"
        return "part of a program that won the race; this region was not measured by itself"
    name, margin = runner(other.implementation), facts.margin
    if margin is None:
        return f"its own cost is not known; {name} takes {words.milliseconds(other.median_ms)}"
    sure = {
        True: "the intervals do not overlap",
        False: "the intervals overlap, so both are equally good",
        None: "no intervals",
    }
    if margin >= 0:
        return f"the fastest of {timed} measured; {name} is {words.percent(margin)} slower ({sure[facts.clear]})"
    return (
        f"{name} is {words.percent(-margin)} faster by itself, but slower here: transferring tensors, or losing fusion "
        f"with its neighbours, costs more ({sure[facts.clear]})"
    )


def describe_cost(facts: RegionFacts) -> str:
    """Time, interval, share and transfers."""
    p, alternative = facts.planned, facts.chosen
    how = "measured" if p.measured else "predicted from its parts"
    bounds = (
        f", 95 % CI {words.interval(alternative.ci_ms)}"
        if alternative is not None and alternative.ci_ms is not None
        else ""
    )
    share = f"; {words.percent(facts.share)} of the plan" if facts.share is not None else ""
    time = f"{words.milliseconds(p.cost_ms)} {how}{bounds}" if p.cost_ms is not None else "time not known"
    return f"{time}{share}; taking over tensors: {words.milliseconds(p.transfer_ms)}"


def describe_alternative(other: Alternative) -> str:
    """One alternative: its time and error, or why there is none."""
    name = runner(other.implementation)
    if other.median_ms is None:
        return f"{name}: {other.outcome}" + (f", {other.reason}" if other.reason else "")
    bounds = f", 95 % CI {words.interval(other.ci_ms)}" if other.ci_ms is not None else ""
    wrong = f"; {other.outcome}: {other.reason}" if other.reason else ""
    return f"{name}: {words.milliseconds(other.median_ms)}{bounds}, error {words.error(other.error)}{wrong}"


def bucket_json(
    bucket: Bucket,
    regions: Sequence[RegionFacts],
    insides: Mapping[int, Anatomy],
    orders: Mapping[int, Sequence[KernelOrders]],
) -> JsonObject:
    """A bucket with some of its regions for `--json`, and, by their numbers, the kernels of those regions in `insides` and what
    they take in several orders."""
    kept = {"provisional": list(bucket.record.provisional), "disturbance": encode(bucket.race.disturbance)}
    documents = [
        region_json(region)
        | (_anatomy_json(insides[region.number]) if region.number in insides else {})
        | ({"orders": encode(tuple(orders[region.number]))} if region.number in orders else {})
        for region in regions
    ]
    return {"sizes": dict(bucket.program.sizes), **kept, "regions": documents}


def _anatomy_json(made: Anatomy) -> JsonObject:
    return {"kernels": encode(made.kernels), "peaks": encode(made.peaks)}


def region_json(facts: RegionFacts) -> JsonObject:
    """One region for `--json`."""
    return {
        "number": facts.number,
        **encode(facts.planned),
        "operator_names": list(facts.operators),
        "reads_from": [i + 1 for i in facts.before],
        "feeds": [i + 1 for i in facts.after],
        "share": facts.share,
        "margin": facts.margin,
        "clear": facts.clear,
        "why": explain_choice(facts),
    }
