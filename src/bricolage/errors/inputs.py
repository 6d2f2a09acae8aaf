"""Of values given to a model that runs."""

from __future__ import annotations

from bricolage.errors.base import UsageError


class MissingInput(UsageError):
    what = "input '{name}' is missing"
    hint = "The model takes: {expected}"


class UnknownInput(UsageError):
    what = "the model has no input '{name}'"
    hint = "It takes: {expected}"


class WrongType(UsageError):
    what = "input '{name}' has the type {actual}; the model takes {expected}"
    hint = "Convert it, for example x.astype('{expected}')"


class WrongShape(UsageError):
    what = "input '{name}' has the shape {actual}; the model takes {expected}"
    hint = "Check the order of dimensions and the batch dimension"


class OtherConstant(UsageError):
    what = "input '{name}' is {actual}, and the model was optimised for {name} = {expected} alone"
    hint = "Leave it out or give {expected}, or optimise with --constant {name}=VALUE for another value, or without it for all"


class IndexBeyond(UsageError):
    """An operator would read or write outside of a tensor."""

    what = "{index} lies outside of what operator '{name}' ({op_type}) may take: {least} to {most}"
    hint = "Check the values of {inputs}"


class NotPicklable(UsageError, TypeError):
    what = "{what} cannot be pickled or copied: it is bound to memory of this process"
    hint = "Give the other process the executable, or save it and load it there"


class QueueFull(UsageError):
    what = "the queue of requests is full: {waiting} wait"
    hint = "Submit more slowly, wait longer (timeout), or give the operating point a longer queue"


class ExecutableClosed(UsageError):
    what = "the executable of '{model}' is closed and takes no more requests"
    hint = "Load its artifact again"


class NotBatchable(UsageError):
    what = "requests to '{model}' cannot be put together: {reason}"
    hint = "Use batch=1, or a model with a symbolic batch dimension whose rows do not depend on each other"
