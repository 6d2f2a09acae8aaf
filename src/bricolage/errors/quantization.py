"""Of models that are to be computed in integers."""

from __future__ import annotations

from bricolage.errors.base import UsageError


class UnusableCalibration(UsageError):
    what = "the calibration data cannot be used: {reason}"
    hint = "Give inputs as the model will see them: for each input an array whose first axis is the sample"


class AlreadyQuantised(UsageError):
    what = "the model is quantised already: operator '{name}' is a {op_type}"
    hint = "Quantise the float model that it was made from; `bricolage optimize` takes this one as it is"


class NothingToQuantise(UsageError):
    what = "nothing of the model can be quantised: {reason}"
    hint = "{advice}"


class UnknownOperatorName(UsageError):
    what = "the model has no operator '{name}' to keep float"
    hint = "Names and types of those that can be quantised: {known}"
