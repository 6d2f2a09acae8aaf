"""Of data that accuracy is judged on, and of metrics of the user's own."""

from __future__ import annotations

from bricolage.errors.base import UsageError


class UnusableSamples(UsageError):
    what = "{option}: {reason}"
    hint = "Give a .npz file with an array for each input, whose first axis is the sample; it takes: {expected}"


class MetricFails(UsageError):
    """Costs that were measured until then are kept."""

    what = "the metric '{function}' of '{path}' cannot be used: {reason}"
    hint = (
        "It is called as {function}(outputs, reference), both a list of dicts from names to arrays, one dict for each sample, "
        "and returns a number; what was measured is kept"
    )
