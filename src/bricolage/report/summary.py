"""Results as JSON, for `--json`."""

from __future__ import annotations

from bricolage.base.codec import JsonObject, encode
from bricolage.plan.pack import PackEntry
from bricolage.plan.plan import Bucket, Plan
from bricolage.report import headline, operating_points


def summary(plan: Plan) -> JsonObject:
    """The first bucket's result at the top level, the whole plan under "plan", and all results under "buckets" where
    there are several."""
    whole: JsonObject = {"model": plan.model, "precision": plan.provenance.options.precision}
    whole["constants"] = {constant.name: constant.value for constant in plan.constants}
    whole |= bucket_summary(plan.buckets[0])
    if plan.throughput is not None:
        whole |= operating_points.points_json(plan.throughput, plan.operating_point)
    whole["plan"] = encode(plan)
    if len(plan.buckets) > 1:
        whole["buckets"] = [{"sizes": dict(bucket.program.sizes)} | bucket_summary(bucket) for bucket in plan.buckets]
    return whole


def target_summary(plan: Plan, entry: PackEntry) -> JsonObject:
    """The same of a plan for a device that is not here: what a call is predicted to take there, of all buckets, and how its answers
    were checked."""
    low, high = entry.predicted_ms or (0.0, 0.0)
    predicted = {"device": plan.provenance.hardware, "ms": entry.median_ms, "from_ms": low, "to_ms": high}
    emulated = "here, by the same C without the device's instructions" if entry.emulated else "here, as it ships"
    predicted |= {"timed": False, "answers_compared": emulated, "error": entry.error}
    return {"target": encode(entry.target), "predicted": predicted} | summary(plan)


def bucket_summary(bucket: Bucket) -> JsonObject:
    """One bucket's result. Times in milliseconds, phases in seconds."""
    return {
        **headline.headline_json(bucket),
        "chosen": bucket.race.chosen,
        "best_baseline": bucket.race.best_baseline,
        "speedup_vs_baseline": bucket.race.speedup_vs_baseline,
        "speedup_ci": list(bucket.race.speedup_ci),
        "significant": bucket.race.significant,
        "decided_by": bucket.race.decided_by,
        "disturbance": encode(bucket.race.disturbance),
        "interrupted": bucket.record.interrupted,
        "provisional": list(bucket.record.provisional),
        "continued": bucket.record.continued,
        "variant": bucket.program.variant,
        "rules": dict(bucket.program.rules),
        "accuracy": encode(bucket.verification.accuracy),
        "quantised": encode(bucket.verification.quantised),
        "contestants": [
            {
                "name": c.name,
                "kind": c.kind,
                "median_ms": c.median_ms,
                "ci_ms": None if c.ci_ms is None else list(c.ci_ms),
                "predicted_ms": c.predicted_ms,
                "predicted_ci_ms": None if c.predicted_ci_ms is None else list(c.predicted_ci_ms),
                "error": c.error,
                "reached": c.reached,
                "held_back_error": c.held_back_error,
                "accepted": c.accepted,
                "reason": c.reason,
                "compile_s": c.compile_s,
                "first_run_ms": c.first_run_ms,
                "regions": c.regions,
                "speedup_vs_baseline": _figure(headline.over_single(bucket, c)),
                "speedup_vs_other": _figure(headline.over_other(bucket, c)),
            }
            for c in bucket.race.contestants
        ],
        "agenda": encode(bucket.record.agenda),
        "seconds": dict(bucket.record.seconds),
    }


def _figure(one: headline.Speedup | None) -> JsonObject | None:
    """A ratio with its interval; null for the interval where it is of separate measurements."""
    return None if one is None else {"value": one.value, "ci": None if one.interval is None else list(one.interval)}
