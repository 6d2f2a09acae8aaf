"""Numbers and decisions in words, the same in tables, explanations and pages."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from bricolage.plan.disturbance_record import QUIET
from bricolage.plan.other_pattern import PAUSE_S
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant, RaceOutcome

MISSING = "-"
_LOSS = 0.95
"""From this ratio down a loss in the pattern of calls that did not decide is told as one."""


def milliseconds(value: float | None) -> str:
    """A time given in milliseconds with three significant digits, in the unit that suits it."""
    if value is None:
        return MISSING
    scale, unit = _unit(value)
    return f"{_three(value * scale)} {unit}"


def interval(bounds: tuple[float, float] | None) -> str:
    """An interval given in milliseconds: "12.1-12.5 ms"."""
    if bounds is None:
        return MISSING
    scale, unit = _unit(bounds[1])
    return f"{_three(bounds[0] * scale)}-{_three(bounds[1] * scale)} {unit}"


def seconds(value: float) -> str:
    """A duration given in seconds: "0.4 s", "12 s", "3 min 5 s"."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def percent(ratio: float | None, sign: bool = False) -> str:
    """0.053 → "5.3 %"."""
    if ratio is None:
        return MISSING
    value = ratio * 100
    digits = 0 if abs(value) >= 99.5 else 1
    return f"{value:+.{digits}f} %" if sign else f"{value:.{digits}f} %"


def size(count: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{_round(count)} {unit}"
        count /= 1024
    return f"{_round(count)} GiB"


def constant_gains(bucket: Bucket) -> list[str]:
    """What folding inputs would help that decide control flow and nothing else, and how much where that is known."""
    sentences = []
    for gain in bucket.record.constant_gains:
        decided = f"input '{gain.name}' decides {count(gain.decided, 'If')} and nothing else"
        if not gain.value:
            sentences.append(
                f"{decided}: if it never changes, --constant {gain.name}=VALUE removes that; --input shows how much"
            )
            continue
        before, after = gain.operators
        constant = shlex.quote(f"{gain.name}={gain.value}")
        line = f"{decided}: --constant {constant} removes {before - after:,} of {before:,} operators"
        ships = bucket.race.winner.median_ms
        if gain.median_ms is None:
            sentences.append(f"{line}; what time that saves was not measured")
        else:
            now = f", where {bucket.race.chosen} takes {milliseconds(ships)}" if ships is not None else ""
            sentences.append(
                f"{line}; then {gain.implementation} takes {milliseconds(gain.median_ms)}{now} (measured apart)"
            )
    return sentences


def error(value: float | None) -> str:
    """A relative error."""
    return MISSING if value is None else f"{value:.1e}"


def loss(value: float | None) -> str:
    """A loss of training in at most eleven letters, however large or small it is."""
    if value is None:
        return MISSING
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 or value != value else f"{value:.3e}"


def flop_rate(flops: int, ms: float | None) -> str:
    """Floating-point operations a second."""
    if not ms or not flops:
        return MISSING
    billions = flops / ms / 1e6
    return f"{_three(billions)} GFLOP/s" if billions < 1000 else f"{_three(billions / 1000)} TFLOP/s"


def format_shape(sizes: Mapping[str, int]) -> str:
    """The binding of a bucket: "batch=1, sequence=128"."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def count(number: int, noun: str) -> str:
    """ "1 region", "3 regions"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def list_devices(counts: Mapping[str, int]) -> str:
    """ "4 a100, 2 t4"."""
    return ", ".join(f"{number} {kind}" for kind, number in counts.items())


def match(contestant: Contestant) -> str:
    """Whether the answer is right: yes, no, or nothing where none was given."""
    if contestant.accepted:
        return "yes"
    return MISSING if contestant.error is None else "no"


def shown_time(contestant: Contestant) -> str:
    """The time of a run; a predicted one behind "~"."""
    if contestant.predicted_ms is not None:
        return f"~{milliseconds(contestant.predicted_ms)}"
    return milliseconds(contestant.median_ms)


def shown_interval(contestant: Contestant) -> str:
    """The interval of a time: 95 % of a measured one, the extremes of a predicted one."""
    return interval(contestant.ci_ms if contestant.predicted_ms is None else contestant.predicted_ci_ms)


def is_predicted(bucket: Bucket) -> bool:
    """Whether nothing was timed of what ships, since its device is not here."""
    return bucket.race.decided_by == "predicted costs"


def disturbance(bucket: Bucket) -> str:
    """How busy the machine was while the decision was measured, and what that did to it; empty where it was quiet."""
    given = bucket.race.disturbance.given_back_s > QUIET * sum(bucket.record.seconds.values())
    return describe_disturbance(bucket.race, given=given) if bucket.race.under_load or given else ""


def describe_disturbance(race: RaceOutcome, *, given: bool = False) -> str:
    """What others did during a race, and how it was decided all the same. `given`: seconds that they took were added to it."""
    load = race.disturbance
    taken = [f"other processes took {percent(load.others)} of the cores"] if load.others > QUIET else []
    taken += [f"the hypervisor gave {percent(load.stolen)} of the cores to others"] if load.stolen > QUIET else []
    taken += [f"{seconds(load.given_back_s)} that others took were added to the budget"] if given else []
    samples = f"{load.disturbed} of {count(load.samples, 'sample')} disturbed, {load.repeated} repeated"
    did = {
        "race": "the race was still conclusive",
        "race and prior evidence": "the race was inconclusive; earlier measurements were included",
        "prior evidence": "earlier measurements decided",
        "learnt costs": "learnt costs decided",
        "predicted costs": "predicted times decided, and answers of emulated instructions",
    }[race.decided_by]
    return f"machine busy: {'; '.join([*taken, samples, did])}"


def provisional(bucket: Bucket) -> str:
    """Why the next decision goes on with this one; empty where it is final."""
    late = [item.name for item in bucket.record.agenda if item.outcome == "no time"]
    reasons = {
        "no time": f"there was no time for {count(len(late), 'item')} of its agenda",
        "load": "it was made under load",
    }
    if not bucket.record.provisional:
        return ""
    why = " and ".join(reasons[reason] for reason in bucket.record.provisional)
    return f"provisional, since {why}: the same command goes on from here; --provisional takes this decision as it is"


def inputs(bucket: Bucket) -> list[str]:
    """Where the inputs came from, if there is more to say than that."""
    return [f"inputs {bucket.verification.inputs_from}"] if ";" in bucket.verification.inputs_from else []


def reference_lines(bucket: Bucket) -> list[str]:
    """What answers were compared with, if that is not float64 all through."""
    if not bucket.verification.without_float64:
        return []
    names = ", ".join(bucket.verification.without_float64)
    return [f"compared with ONNX Runtime without its optimisations; no float64 reference for {names}"]


def dropped_for_accuracy(bucket: Bucket) -> list[str]:
    """What a wider tolerance would take: baselines that are faster than what ships, and were dropped for their accuracy."""
    if not any(c.name == bucket.race.chosen for c in bucket.race.contestants):
        return []
    limit = bucket.race.winner.median_ms or 0.0
    dropped = [
        (c.dropped_ms, c.name, c.error) for c in bucket.race.contestants if c.dropped_ms and c.dropped_ms < limit
    ]
    return [
        f"{name}: {milliseconds(ms)} at {error(wrong)}; --tolerance {tolerance(wrong):.0e} accepts it"
        for ms, name, wrong in sorted(dropped, key=lambda entry: entry[0])
        if wrong is not None
    ]


def tolerance(wrong: float) -> float:
    """The next round number above an error: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(wrong))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power > wrong)


def proof(bucket: Bucket) -> str:
    """How good the op-level placement was with which the search for plans began; empty where nothing was searched."""
    placement = bucket.record.proof
    if placement is None:
        return ""
    bound = milliseconds(placement.lower_bound_ms)
    if placement.of_measured:
        sure = "optimal" if placement.optimal else f"at most {percent(placement.gap)} above the optimum (bound {bound})"
        costs = f"all {count(placement.measured, 'cost')} measured"
    else:
        sure = "the cheapest" if placement.optimal else "the cheapest that was found"
        share = (
            "" if placement.measured_share is None else f", {placement.measured_share:.0%} of them by weight measured"
        )
        costs = f"of predicted costs{share} ({placement.measured} measured, {placement.predicted} predicted)"
    return f"op-level placement {milliseconds(placement.total_ms)}, {sure} in the additive model by {placement.method}; {costs}"


def predictions(bucket: Bucket) -> str:
    """What the learned cost model decided; empty where none was used."""
    model_use = bucket.record.model_use
    if model_use is None:
        return ""
    model = f"the cost model ({model_use.model})" if model_use.model else "no cost model: the roofline"
    if model_use.left_out:
        did = f"{model} replaced {model_use.left_out} of {count(model_use.offered, 'region measurement')}"
    else:
        did = f"{model} ordered the measurements of whole models"
    return did + (
        f"; it has no data on {', '.join(model_use.unknown)}" if model_use.unknown and model_use.model else ""
    )


def describe_memory(bucket: Bucket) -> str:
    """Memory of the tensors between regions; empty for one region."""
    return ", ".join(
        f"tensors between regions take {size(most)} of {name} at most"
        for name, most in bucket.program.peak_bytes.items()
    )


def rewriting(bucket: Bucket) -> str:
    """Which rules made the variant of the graph that ships; empty where it is the original."""
    if not bucket.program.rules:
        return ""
    applied = ", ".join(f"{times} × {rule}" for rule, times in bucket.program.rules.items())
    return f"{bucket.program.variant} by {count(sum(bucket.program.rules.values()), 'rule application')}: {applied}"


def shown_error(one: Contestant) -> float | None:
    """How far a contestant is from the float model: on samples that are held back, where there are any. (`Contestant.error` of a
    quantised graph is that against exact integers.)"""
    return one.held_back_error if one.held_back_error is not None else one.error


def accuracy(bucket: Bucket) -> str:
    """What was asked for on samples that are held back, and what ships reached; empty where there are none."""
    outcome = bucket.verification.accuracy
    if outcome is None:
        return ""
    reached = "not measured" if outcome.reached is None else f"{outcome.reached:.4g}"
    asked = f"at {'least' if outcome.at_least else 'most'} {outcome.limit:.4g} asked for"
    return f"accuracy: {outcome.measure} {reached}, {asked}, on {outcome.origin}"


def quantised_lines(bucket: Bucket) -> list[str]:
    """Quantised graphs that were tried, and what became of each."""
    lines = []
    for attempt in bucket.verification.quantised:
        counts = (
            ""
            if attempt.outcome == "not made"
            else f" ({count(attempt.products, 'product')} in integers, {len(attempt.floats)} float)"
        )
        off = "" if attempt.error is None else f", error {error(attempt.error)} with exact integers"
        lines.append(f"{attempt.variant} graph{counts}{off}: {attempt.outcome}: {attempt.verdict}")
    return lines


def kept_float(bucket: Bucket) -> list[tuple[str, str, str]]:
    """Name, type and reason of operators that the quantised graph which ships leaves in float."""
    shipped = next(
        (attempt for attempt in bucket.verification.quantised if attempt.variant == bucket.program.variant), None
    )
    return (
        [] if shipped is None else [(operator.name, operator.op_type, operator.reason) for operator in shipped.floats]
    )


PATTERN_TITLES = {"steady": "call after call", "sparse": "after pauses"}


def other_title(bucket: Bucket) -> str:
    """Heading of the times in the pattern of calls that did not decide; empty where they were not taken."""
    if bucket.race.pattern is None:
        return ""
    return PATTERN_TITLES["sparse" if bucket.race.pattern == "steady" else "steady"].capitalize()


def other_pattern(bucket: Bucket) -> str:
    """How what ships stands in the pattern of calls that did not decide; empty where that was not timed."""
    loss, winner = (
        bucket.race.other_pattern,
        next((c for c in bucket.race.contestants if c.name == bucket.race.chosen), None),
    )
    if loss is None or winner is None or winner.other_pattern_ms is None or bucket.race.pattern is None:
        return ""
    other = "sparse" if bucket.race.pattern == "steady" else "steady"
    when = f"called after pauses of {tick(PAUSE_S * 1e3)}" if other == "sparse" else "called again and again"
    took = f"{when}, {winner.name} takes {milliseconds(winner.other_pattern_ms)}"
    best = next((c for c in bucket.race.contestants if c.name == loss.other), None)
    if best is None or best.name == winner.name:
        return took
    against = f"{best.name}, the best other tool there, {milliseconds(best.other_pattern_ms)}"
    if loss.speedup < _LOSS and loss.interval[1] < 1.0:
        return f"{took}, {1 / loss.speedup:.2f} times as long as {against}: --pattern {other} decides by that"
    return f"{took}; {against}"


def is_tried(contestant: Contestant) -> bool:
    """Whether anything of a contestant was compiled, or predicted; nothing was of what the decision left out."""
    return any(value is not None for value in (contestant.compile_s, contestant.median_ms, contestant.predicted_ms))


def rank_contestants(bucket: Bucket) -> list[Contestant]:
    """Contestants that were tried, and what ships: the user's file as it comes; then the fastest accepted ones first; then those
    that were refused, failed or wrong."""

    def order(c: Contestant) -> tuple[object, ...]:
        ms = c.median_ms or c.predicted_ms or 0.0
        timed = c.median_ms is None, not c.accepted, ms, c.name != bucket.race.chosen, c.name
        return (not c.as_it_comes, *timed)

    return sorted((c for c in bucket.race.contestants if is_tried(c) or c.name == bucket.race.chosen), key=order)


def tick(ms: float) -> str:
    """A round time on an axis: "5 ms"."""
    scale, unit = _unit(ms)
    return f"{_round(ms * scale)} {unit}" if ms else "0"


def _unit(ms: float) -> tuple[float, str]:
    if ms >= 1000:
        return 1e-3, "s"
    return (1.0, "ms") if ms >= 0.0995 or ms == 0 else (1e3, "µs")


def _three(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"


def _round(value: float) -> str:
    text = _three(value)
    return text.rstrip("0").rstrip(".") if "." in text else text
