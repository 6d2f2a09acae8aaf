"""What a training step takes, and what changes of it would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.train.predict.predict import predict_step
from bricolage.train.predict.prediction import Prediction
from bricolage.train.predict.variant import Variant, parse_variant
from bricolage.train.step.spec import StepSpec, read_spec


@dataclass(frozen=True)
class PredictionRequest:
    """A training step, and the changes that are asked about; None: the usual ones."""

    spec: StepSpec
    variants: tuple[Variant, ...] | None


def open_prediction(path: Path, changes: Sequence[str] | None = None) -> PredictionRequest:
    """The training step that a file describes, with changes in the words of `train_changes`.

    Raises:
        MissingFile, BadTrainingSpec: the file cannot be used.
        BadVariant: a change is none.
    """
    spec = read_spec(path)
    return PredictionRequest(spec, tuple(parse_variant(change) for change in changes) if changes else None)


def predict_changes(
    request: PredictionRequest,
    *,
    threads: int | None = None,
    seconds: float = 4.0,
    measure: bool = False,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> Prediction:
    """Predicts time and memory of a training step and of changes of it. The step runs to time its operators.

    Args:
        request: of `open_prediction`.
        threads: of one worker; all cores by default, divided among workers.
        seconds: for each measurement.
        measure: whether every change is run too.
        memory_bytes: that a step may take; blocks to recompute are chosen so that it does.
        progress: told about changes.

    Raises:
        MissingLibrary, BadTrainingCode, NotTraceable, BadDevices, MissingFile, TrainingWorkerFailed: as `predict_step`.
    """
    return predict_step(
        request.spec,
        request.variants,
        threads=threads,
        seconds=seconds,
        measure=measure,
        memory_limit=memory_bytes,
        progress=progress,
    )
