"""A training step on several kinds and numbers of devices: one profile here, priced on each kind by its description."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.base.options import available_cores
from bricolage.base.progress import Progress, Silent
from bricolage.base.torch_library import load_torch
from bricolage.device.description import EqualDevices
from bricolage.train.predict.predict import StepPredictor
from bricolage.train.predict.prediction import Predicted
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.variant_step import prepare_step
from bricolage.train.step.spec import StepSpec
from bricolage.work.training_step import StepGraph


def predict_elsewhere(
    spec: StepSpec,
    places: Sequence[EqualDevices],
    *,
    threads: int | None = None,
    seconds: float = 4.0,
    progress: Progress | None = None,
) -> list[Predicted]:
    """Predicts a step as it is, on each placement; every worker has the batch of the file, and all-reduce averages gradients.

    Args:
        spec: the training step. It is run here for `seconds`.
        places: where it is asked about.
        threads: cores of this machine that the step has while it is profiled; all by default.
        seconds: for the profile.
        progress: told about placements.

    Returns:
        For each placement what is predicted; with a reason where it cannot be.

    Raises:
        MissingLibrary, BadTrainingCode, NotTraceable, BadDevices: as `predict_step` has it.
    """
    torch = load_torch()
    shown = progress if progress is not None else Silent()
    shown.start("predicting (placements)", len(places))
    here = StepPredictor(spec, threads or available_cores(), seconds, torch)
    kept = torch.get_num_threads()
    predictions = []
    try:
        for place in places:
            predictions.append(
                here.on(place.devices, place.link, place.least_ms).predict(Variant(workers=place.workers))
            )
            shown.advance(1)
        shown.finish()
    finally:
        torch.set_num_threads(kept)
    return predictions


def traced_step(spec: StepSpec) -> StepGraph:
    """The operators of a step as it is; nothing is run.

    Raises:
        MissingLibrary, BadTrainingCode, NotTraceable: as `predict_step` has it.
    """
    return StepPredictor(spec, available_cores(), 0.0, load_torch()).graph(prepare_step(spec, Variant()), Variant())
