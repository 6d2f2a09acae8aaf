"""Of artifacts, plans and described devices."""

from __future__ import annotations

from bricolage.errors.base import BricolageError, UsageError


class BadArtifact(UsageError):
    what = "'{path}' is not a usable bricolage artifact: {reason}"
    hint = "Make it again with `bricolage optimize`"


class UnreadableArtifact(BricolageError):
    """An artifact would be written that no reader accepts."""

    what = "the artifact '{path}' would not be usable: {reason}"
    hint = "Nothing was written. This is a fault of bricolage: report it with the model"


class ArtifactFails(BricolageError):
    """An artifact that was written does not do in a fresh process what was measured of it."""

    what = "the artifact fails in a fresh process {where}: {reason}"
    hint = "Nothing was written. Leave out the backend at fault by naming others (--backend onnxruntime), and report the model"


class NewerArtifact(UsageError):
    what = "'{path}' has the artifact format {found}; this bricolage reads up to {known}"
    hint = "Upgrade bricolage, or make the artifact again with this version"


class OlderArtifact(UsageError):
    what = "'{path}' has the artifact format {found}, which this bricolage does not read any more (it reads {known})"
    hint = "Make it again with `bricolage optimize`"


class ForeignArtifact(UsageError):
    what = "'{path}' was planned for another machine or other versions: {difference}"
    hint = "Plan it again here with `bricolage optimize`, or run the best available backend with --any-machine"


class NotExportable(UsageError):
    what = "the plan of '{path}' cannot leave Python: {reason}"
    hint = "{advice}"


class NotEnoughMemory(UsageError):
    what = "running it takes {wanted} for tensors alone; this machine has {present} of memory"
    hint = "Use smaller shapes, or a machine with more memory"


class ForeignPlan(UsageError):
    what = "the plan '{name}' is not for this model: {difference}"
    hint = "Race artifacts of one model, made by this version of bricolage"


class BadDevices(UsageError):
    what = "'{path}' does not describe devices: {reason}"
    hint = "Write [[device]] and [[link]] tables as docs/manual/schedule.md shows them"


class DevicesTooSmall(UsageError):
    """The memory of the devices together, or of each of them, does not hold the operators."""

    what = "the devices' memory is too small: none has room for operator '{task}', which takes {wanted}"
    hint = "Describe devices with more memory, or more of them; or use a smaller model or batch"


class BadPlacementInstance(UsageError):
    """A file of operators, their times and the outputs that move between devices."""

    what = "'{path}' is no instance of device placement: {reason}"
    hint = "docs/manual/train-place.md shows the fields that it must have"


class NoTarget(UsageError):
    what = "no plan of the pack runs here: {reason}"
    hint = "Name one (target=...), or make a pack with a target for this machine"


class BadTargets(UsageError):
    what = "'{path}' lists no targets: {reason}"
    hint = "docs/manual/packs.md lists what such a file may hold"


class UnservedTargets(UsageError):
    """The decisions for the other targets are on record: the same command without these takes them over."""

    what = "{count} of {total} targets cannot be served: {reasons}"
    hint = (
        "Nothing was written, and what was decided for the other targets is kept. Loosen these targets or take them out, and give "
        "the same command"
    )
    longest_fact = 4000


class TargetMissed(BricolageError):
    """Of one target of a pack: the limit that no plan keeps."""

    what = "{reason}"
    hint = "Loosen the target"


class PackNodeFailed(UsageError):
    """Targets with `ray` are decided on another machine."""

    what = "target '{target}' was not decided on a Ray node that offers '{resource}': {reason}"
    hint = (
        "Start a node with it (ray start --address=HOST:6379 --resources '{{\"{resource}\": 1}}'), "
        "or leave `ray` out of the target"
    )


class NotPack(UsageError):
    what = "'{path}' has one plan, and a {option} was given"
    hint = "Leave it out, or give a pack (`bricolage pack`)"
