"""Data that users give for calibrating and for judging accuracy: samples of the model's inputs, checked, and divided."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage.base.options import Options
from bricolage.base.quantization_options import QuantizationOptions
from bricolage.errors import BadOption, BricolageError, UnusableSamples
from bricolage.graph.graph import Graph
from bricolage.quantization.calibration_samples import doubts, inputs_of, make_samples, require_telling, split_samples
from bricolage.quantization.products import require_float
from bricolage.verify.accuracy_measures import AccuracyDemand
from bricolage.verify.held_back import GivenSamples, HeldBackData, Sample, most_samples, spread_evenly
from bricolage.verify.inputs import not_finite
from bricolage.verify.named_arrays import digest
from bricolage.verify.npz_files import read_arrays

_LOG = logging.getLogger(__name__)
_LEAST = 3
"""Two to calibrate with, one to judge by."""
Arrays = Mapping[str, np.ndarray]
Data = Arrays | str | Path


@dataclass(frozen=True)
class GivenData:
    """Arrays by name whose first axis is the sample."""

    calibrate: Arrays | None = None
    """For scales."""
    evaluate: Arrays | None = None
    """For judging."""

    @staticmethod
    def of(calibrate: Data | None, evaluate: Data | None) -> GivenData:
        """From files or arrays.

        Raises:
            MissingFile, BadOption: there is no such file, or it is no .npz file of plain arrays.
        """
        return GivenData(_read(calibrate, "--calibrate"), _read(evaluate, "--evaluate"))

    @property
    def digest(self) -> str:
        """Of all arrays."""
        return "".join(digest(kind, arrays)[:16] for kind, arrays in self.named)

    @property
    def named(self) -> list[tuple[str, Arrays]]:
        """The arrays that are given, by the option that gives them."""
        both = (("--calibrate", self.calibrate), ("--evaluate", self.evaluate))
        return [(option, arrays) for option, arrays in both if arrays is not None]

    def check(self, options: Options) -> None:
        """Whether they go with the options.

        Raises:
            BadOption: something is given that has no use, or missing that is needed.
        """
        if self.calibrate is not None and options.precision != "low":
            advice = "Scales of integers are found with it, and integers take part at --precision low; --evaluate judges accuracy"
            raise BadOption(option="--calibrate", value=f"given with --precision {options.precision}", advice=advice)
        if options.accuracy != "relative" and not self.named:
            advice = "It is measured on samples that you give: --evaluate DATA.npz"
            raise BadOption(option="--accuracy", value=f"{options.accuracy} without data", advice=advice)
        if self.named and options.objective == "throughput":
            raise BadOption(
                option=self.named[0][0], value="given with --objective throughput", advice="Ask for latency"
            )


NO_DATA = GivenData()


def _read(data: Data | None, option: str) -> Arrays | None:
    return read_arrays(data, option) if isinstance(data, str | Path) else data


def samples_of(graph: Graph, given: GivenData, options: Options) -> GivenSamples | None:
    """Samples that fit a graph; None where nothing is given.

    Raises:
        UnusableSamples: arrays do not fit the graph's inputs, hold NaN, or are too few.
        UnusableCalibration: those for calibrating say nothing of what the model will see.
        AlreadyQuantised: the model holds integers already.
        MissingFile, MetricFails: the user's measure of accuracy cannot be loaded.
    """
    if not given.named:
        return None
    demand = AccuracyDemand(options.accuracy, options.bound)
    calibration = (
        divide_samples(graph, given.calibrate, "--calibrate", more=demand.takes_more) if given.calibrate else ()
    )
    if given.evaluate is not None:
        kept, origin = divide_samples(graph, given.evaluate, "--evaluate", more=demand.takes_more), "given to judge"
    else:
        if len(calibration) < _LEAST:
            number = f"{len(calibration)} sample{'s' * (len(calibration) != 1)}"
            reason = f"it holds {number}; {_LEAST} are needed, of which one judges (--evaluate gives others for that)"
            raise _unusable(graph, "--calibrate", reason)
        seen, held = split_samples(calibration, QuantizationOptions.held_back)
        calibration, kept = tuple(seen), tuple(held)
        origin = "held back from calibration"
    most = most_samples(graph)
    if len(kept) > most:
        _LOG.warning("accuracy is judged on %d of %d samples: references of all would take too long", most, len(kept))
    provenance = f"{min(len(kept), most)} sample{'s' * (min(len(kept), most) != 1)} {origin}"
    if given.calibrate is not None:
        require_float(graph.model)
        seen, others = ([inputs_of(graph.model, sample) for sample in part] for part in (calibration, kept))
        require_telling(seen)
        for doubt in doubts(seen, others):
            _LOG.warning("--calibrate: %s", doubt)
    return GivenSamples(calibration, HeldBackData(demand, spread_evenly(kept, most), provenance))


def first_inputs(graph: Graph, samples: GivenSamples) -> tuple[dict[str, np.ndarray], str]:
    """What a graph is measured with where no inputs are given: numbers of the kind that it is made for."""
    names = {info.name for info in graph.inputs}
    return {
        name: array for name, array in samples.held_back.samples[0].items() if name in names
    }, "a sample that is held back"


def divide_samples(graph: Graph, arrays: Arrays, option: str, *, more: bool) -> tuple[Sample, ...]:
    """The samples of arrays (see `bricolage.quantization.calibration_samples`). `more`: arrays that are no inputs go along.

    Raises:
        UnusableSamples
    """
    inputs = {info.name: info for info in graph.inputs}
    given = {name if name in inputs else name.rpartition(".")[0] for name in arrays}
    missing = [name for name in inputs if name not in given]
    unknown = [name for name in arrays if name not in inputs and name.rpartition(".")[0] not in inputs]
    if missing or (unknown and not more):
        reason = f"input '{missing[0]}' is missing" if missing else f"the model has no input '{unknown[0]}'"
        raise _unusable(graph, option, reason)
    try:
        samples = make_samples(graph.model, arrays, more=more)
    except BricolageError as error:
        raise _unusable(graph, option, error.sentence) from error
    for number, sample in enumerate(samples):
        if bad := not_finite(inputs_of(graph.model, sample)):
            raise _unusable(graph, option, f"'{bad[0]}' of sample {number} holds NaN or infinite numbers")
    return tuple(samples)


def _unusable(graph: Graph, option: str, reason: str) -> UnusableSamples:
    taken = ", ".join(
        f"{info.name} {list(info.shape) if info.shape is not None else 'of any shape'}" for info in graph.inputs
    )
    return UnusableSamples(option=option, reason=reason, expected=taken)


def first_rows(model: ir.Model, given: GivenData) -> dict[str, np.ndarray]:
    """The first sample of data by the ranks of a model's inputs alone, to read the sizes of open dimensions off. What does not
    fit is told when samples are made."""
    _, arrays = given.named[0]
    rows: dict[str, np.ndarray] = {}
    for value in model.graph.inputs:
        name = value.name or ""
        array = np.asarray(arrays.get(name, 0))
        if name in arrays and value.shape is not None and array.ndim >= len(value.shape):
            rows[name] = array[0] if array.ndim == len(value.shape) + 1 and len(array) else array[:1]
    return rows
