"""Of backends."""

from __future__ import annotations

from bricolage.errors.base import NO_BACKEND, BricolageError, UsageError


class NoBackend(BricolageError):
    what = "no backend is usable{why}"
    hint = "Install one, for example: {install}"
    extra = "onnxruntime"
    exit_code = NO_BACKEND


class MissingBackend(BricolageError):
    what = "backend '{name}' is missing: {reason}"
    hint = "{cure}"
    exit_code = NO_BACKEND


class DuplicateBackend(UsageError):
    what = "backend '{name}' is registered twice: by {first} and by {second}"
    hint = "Uninstall one of the two packages"


class BrokenPlugin(UsageError):
    what = "the backend plugin '{name}' from {source} could not be loaded: {reason}"
    hint = "Upgrade or uninstall that package"


class Refused(BricolageError):
    """A backend declines a region. Not a failure of the run: the candidate is dropped with this reason."""

    what = "{backend} refuses the region: {reason}"
    hint = "Another backend may take it; `bricolage backends` lists them"


class FileUnlikeModel(Refused):
    """A user's file has not the interface of the model read of it: its tool cannot be called in the model's place."""

    what = "the file as it comes cannot be called as the model that was read of it: {reason}"
    hint = "The model is run as prepared here; this tool has no row for the file"


class UnsupportedOperator(BricolageError):
    """A lowering meets an operator it has no faithful translation for."""

    what = "{library} has no lowering for {op_type} (opset {opset}): {reason}"
    hint = "Another backend may run it; `bricolage backends` lists them"


class BackendFailed(BricolageError):
    what = "{backend} failed {stage}: {reason}"
    hint = (
        "`bricolage optimize` goes on without it, and `bricolage costs list --failures` shows all such reasons; "
        "an artifact that cannot be loaded any more is planned anew with `bricolage optimize --replan`"
    )


class RunFailed(BackendFailed):
    """What a backend raised when it ran a compiled region."""

    what = "{backend} failed to run: {reason}"
    hint = (
        "What it held is made anew, so later calls are answered as before. Check that the values of the inputs fit each other; "
        "another backend may answer them (`bricolage backends` lists them)"
    )


class SizeFailed(BricolageError):
    what = "nothing installed runs the model at {sizes}: {reasons}"
    hint = (
        "This process is unharmed: the size was tried in another one. `bricolage optimize --shape NAME=SIZE` plans for it, "
        "and says more; another backend may run it (`bricolage backends` lists them)"
    )
    exit_code = NO_BACKEND


class ForkedProcess(UsageError):
    what = "{backend} cannot run in this process, which was forked after it was loaded: its threads stayed behind"
    hint = "Fork first and load the artifact in each process, or start processes with multiprocessing's 'spawn'"
