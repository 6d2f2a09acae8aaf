"""What running a plan's regions side by side gives, or could give at most."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.plan.plan import Bucket
from bricolage.plan.schedules import ScheduleAttempt
from bricolage.report import words
from bricolage.report.facts import RegionFacts
from bricolage.search.schedules.certificates import lower_bound
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor


def describe_concurrency(bucket: Bucket, facts: Sequence[RegionFacts], cores: int) -> str:
    """In words; empty for one region, and where a cost is not known.

    Without a schedule, the costs are those of regions that have all cores. The bound supposes that each were as fast on one of
    them: what no schedule of these regions can fall below whatever their speed-up curves are.
    """
    if bucket.program.schedule is not None:
        schedule = bucket.program.schedule
        used = len({core for region_cores in schedule.cores for core in region_cores})
        raced = "" if schedule.speedup is None else f"; raced, {schedule.speedup:.3f} times as fast"
        return (
            f"regions side by side on {words.count(used, 'core')} by {schedule.method}: predicted "
            f"{words.milliseconds(schedule.predicted_ms)}, one after the other {words.milliseconds(schedule.upper_ms)}, no "
            f"schedule of them below {words.milliseconds(schedule.lower_ms)}{raced}"
        )
    total = sum(fact.planned.cost_ms or 0.0 for fact in facts)
    if cores < 2:
        return ""
    if len(facts) < 2 or not total or any(fact.planned.cost_ms is None for fact in facts):
        return ""
    least = lower_bound(as_problem(facts, cores))
    gain = "nothing" if least >= total * 0.9995 else f"{words.percent(1.0 - least / total)} of it"
    return (
        f"the regions one after the other take {words.milliseconds(total)}; side by side on {words.count(cores, 'core')} no "
        f"schedule of them takes less than {words.milliseconds(least)}: at most {gain} can be saved"
    )


def attempt(one: ScheduleAttempt) -> str:
    """What was tried to run parts of a plan side by side, and what came of it."""
    into = f" in {words.count(one.regions, 'region')}" if one.regions > 1 else ""
    least = f", at least {words.milliseconds(one.least_ms)} side by side" if one.least_ms < one.whole_ms else ""
    predicted = f", predicted {words.milliseconds(one.predicted_ms)}" if one.predicted_ms is not None else ""
    measured = f", measured {words.milliseconds(one.measured_ms)}" if one.measured_ms is not None else ""
    return f"side by side, {one.plan} ({words.milliseconds(one.whole_ms)}){into}{least}{predicted}{measured}: {one.verdict}"


def as_problem(facts: Sequence[RegionFacts], cores: int) -> ScheduleProblem:
    """The regions as tasks whose time no core more or less changes."""
    operators = tuple(WorkOperator(fact.planned.title) for fact in facts)
    edges = tuple(
        WorkTensor(f"{index}-{after}", index, (after,)) for index, fact in enumerate(facts) for after in fact.after
    )
    times = tuple({"cpu": (fact.planned.cost_ms or 0.0,)} for fact in facts)
    return ScheduleProblem(WorkGraph(operators, edges), times, {"cpu": cores})
