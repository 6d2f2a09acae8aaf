"""Of results: accuracy, placements, references."""

from __future__ import annotations

from bricolage.errors.base import INACCURATE, NO_BACKEND, BricolageError, UsageError


class NotAccurate(BricolageError):
    what = "no contestant reaches the accuracy asked for: the best error is {error:.2e}, the bound {bound:.2e}"
    hint = "Ask for less (--precision medium) or give a --tolerance"
    exit_code = INACCURATE


class AllWrong(NotAccurate):
    what = "every backend that runs the model gives a wrong answer, at any precision: {reasons}"
    hint = "`bricolage reduce` makes the fault small enough to report it; other versions of these backends may be right"


class LatencyLimit(UsageError):
    what = "nothing answers 99 of 100 requests within {limit}: the best p99 is {best} ({name})"
    hint = "Give a --latency-limit above that, or leave it out"


class NoPlacement(BricolageError):
    what = "no candidate covers operator '{name}' ({op_type})"
    hint = "`bricolage backends` shows which backends could be added here"
    exit_code = NO_BACKEND


class Unclaimed(NoPlacement):
    what = "no backend here takes operator '{name}' ({op_type}): {reasons}"


class NoReference(BricolageError):
    what = "no float64 reference could be computed: {reason}"
    hint = "Give inputs of your own with --input, or install what knows more operators: {install}"
    extra = "torch,onnxruntime"
    exit_code = INACCURATE


class ReferenceLimit(BricolageError):
    what = "the float64 reference was given up: {reason}"
    hint = (
        "Without it no answer can be verified. Give a longer --budget if the model needs the time, a larger --memory-limit if it "
        "needs the memory; where its process was killed, give the same command again"
    )
    exit_code = INACCURATE


class NoCover(BricolageError):
    """Every operator has a candidate, but no choice of them fits together."""

    what = "no choice of candidates covers the graph exactly once without a cycle{where}"
    hint = "Allow more backends (--backend), or give a longer --budget, so that more regions are measured"
    exit_code = NO_BACKEND


class NotReduced(BricolageError):
    """A program fails, and no part of it that was tried fails in the same way by itself."""

    what = "{program} fails ({verdict}), but no change at fault shows that in a model of its own"
    hint = "`bricolage bisect` shows what is known of it; try again on a machine with nothing else to do"
    exit_code = INACCURATE
