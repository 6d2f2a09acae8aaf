"""Of training steps, their files and processes."""

from __future__ import annotations

from bricolage.errors.base import INACCURATE, BricolageError, UsageError


class BadTrainingSpec(UsageError):
    what = "'{path}' does not describe training: {reason}"
    hint = "Write it as docs/manual/train-fuse.md shows"


class BadTrainingCode(UsageError):
    """Python that a spec names, or what it returns."""

    what = "'{place}' cannot be trained with: {reason}"
    hint = "docs/manual/train-fuse.md says what a spec's functions take and return"


class NotFusible(UsageError):
    """Lanes of a sweep that cannot be trained as one. A sweep trains them one by one and says why."""

    what = "these lanes cannot be trained as one: {reason}"
    hint = (
        "They can be trained one by one: `bricolage train fuse --how serial`; docs/manual/train-fuse.md says what fuses"
    )


class NotTraceable(UsageError):
    """A training step whose operators rest on the values of tensors."""

    what = "this training step cannot be predicted: {reason}"
    hint = "Predict a step without control flow on values; docs/manual/train-predict.md says what can be followed"


class BadVariant(UsageError):
    """A change of a training step that cannot be made."""

    what = "'{variant}' cannot be asked of this training step: {reason}"
    hint = "`bricolage train predict --help` and docs/manual/train-predict.md list the changes and what they exclude"


class NoPipelinePlan(UsageError):
    """A model that fits on no devices, however it is divided."""

    what = "no plan fits on {devices} devices of {memory} each, however the step is divided"
    hint = "Describe devices with more memory, or more of them; or use a smaller batch"


class NoDevicePlacement(UsageError):
    """Operators that no method places on the devices."""

    what = "no method places the operators on these devices: {reason}"
    hint = "Describe devices with more memory, or more of them; or ask for another method: docs/manual/train-place.md"


class NoShardingPlan(UsageError):
    """Operators that no layouts fit into the memory of a group of devices, or of which none was found in time."""

    what = "no layout was found in which the step fits on {workers} devices of {memory} each"
    hint = "Describe devices with more memory, or more of them; use a smaller batch; or give the search more time"


class NotShardable(UsageError):
    """A training step that cannot be divided inside its operators."""

    what = "this training step cannot be divided inside its operators: {reason}"
    hint = "docs/manual/train-plan.md says which steps can; replicas and pipelines take any"


class BadPlan(UsageError):
    """A plan of a training step that cannot be made or run."""

    what = "the training step cannot be planned or run like this: {reason}"
    hint = "docs/manual/train-plan.md says what plans hold and what can be divided"


class DifferentDevices(UsageError):
    """A plan that was made for other devices."""

    what = "the plan is for {wanted}; here are {found}"
    hint = "Make a plan for these devices: `bricolage train plan`"


class NewerTrainingPlan(UsageError):
    """A plan of a later bricolage."""

    what = "'{path}' has format {found}; this version reads up to {known}"
    hint = "Update bricolage, or make the plan again: `bricolage train plan`"


class BadTrainingLog(UsageError):
    what = "'{path}' is no record of a training run: {reason}"
    hint = "Write a line for each step: its number, a comma, the loss; or for each run: workers, servers, batch, steps a second"


class TrainingWorkerFailed(BricolageError):
    what = "a process that takes part in training failed: {reason}"
    hint = (
        "See whether the training step runs by itself and memory suffices; `train fuse --how serial` needs no processes"
    )


class BadSparseNetwork(UsageError):
    """Matrices, a model or a plan whose rows cannot be divided between processes."""

    what = "'{path}' is no sparse network whose rows can be divided: {reason}"
    hint = "docs/manual/train-sparse.md says what is read"


class WrongExchange(BricolageError):
    """Processes that divide a sparse network, against one process in float64 and the exchange that was planned."""

    what = "the divided network, exchanged by '{mode}', is not the network: {reason}"
    hint = "Do not use this plan; with other numbers of processes or another --method the exchange is another one"
    exit_code = INACCURATE


class TrainingOperator(UsageError):
    what = "operator '{name}' has the type {domain}::{op_type}, which exists only for training"
    hint = "Export the model for inference (evaluation mode)"
