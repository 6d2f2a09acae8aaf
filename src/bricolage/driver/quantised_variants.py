"""Quantised graphs as variants of a graph: made, and made again for a plan on record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bricolage.base.options import BOUNDS, WEIGHTS, Options
from bricolage.base.quantization_options import QuantizationOptions
from bricolage.errors import BricolageError
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import simplify
from bricolage.quantization.canonical import canonical
from bricolage.quantization.outcome import QuantizationReport
from bricolage.quantization.quantize_model import quantize_graph
from bricolage.quantization.weights_only import quantized_weights_only
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.held_back import GivenSamples

_LOG = logging.getLogger(__name__)

CALIBRATED = "quantised"
"""Name of the variant whose scales come from samples."""
_MULTIPLY_BYTES = frozenset({"native", "openvino"})
"""Backends that do so also where the result stays float, which rounds less often and takes no longer; ONNX Runtime multiplies
floats there."""
QUANTISED_VARIANTS = frozenset([CALIBRATED, *(f"weights-{word}" for word in WEIGHTS)])


@dataclass(frozen=True)
class MadeQuantised:
    """A quantised graph, and what was found when it was made."""

    variant: GraphVariant
    report: QuantizationReport


def variant_name(options: Options) -> str:
    """Of the graph whose weights alone are stored in fewer bits."""
    return f"weights-{options.weights}"


def float_results(backends: Iterable[str]) -> bool | None:
    """Whether results of convolutions stay float (see `QuantizationOptions`) where these backends take part."""
    return True if _MULTIPLY_BYTES.intersection(backends) else None


def quantised_variant(
    graph: Graph, name: str, options: Options, samples: GivenSamples | None, floats: bool | None = None
) -> MadeQuantised:
    """A quantised graph of a model. The same arguments give the same graph.

    Args:
        graph: in float.
        name: `CALIBRATED`, or that of the graph whose weights alone are in fewer bits.
        options: of the decision.
        samples: to calibrate with; needed for `CALIBRATED`.
        floats: as of `float_results`.

    Raises:
        NothingToQuantise, UnusableCalibration, AlreadyQuantised, OpsetOutOfReach, NoReference
        MetricFails, UnusableSamples: the accuracy asked for cannot be measured.
    """
    calibration = samples.calibration if samples is not None else ()
    wanted = QuantizationOptions(
        max_error=compute_accepted_error(options),
        accuracy=options.accuracy if calibration and options.accuracy != "relative" else None,
        float_results=floats,
        errors_by_operator=False,
        weights=options.weights if name != CALIBRATED else None,
        seed=abs(options.seed) % 2**31,
    )
    whole = canonical(graph.model, wanted)
    if name == CALIBRATED:
        quantisation = quantize_graph(whole, calibration, wanted)
    else:
        quantisation = quantized_weights_only(whole, calibration or None, wanted)
    return MadeQuantised(GraphVariant(name, simplify(quantisation.model), quantised=True), quantisation.report)


def remade(graph: Graph, name: str, options: Options, samples: GivenSamples | None) -> Iterator[GraphVariant]:
    """What a quantised graph of an earlier decision on the same data may be: backends that took part decided its form. Nothing
    where it cannot be made any more."""
    for floats in (True, None) if name == CALIBRATED else (None,):
        try:
            yield quantised_variant(graph, name, options, samples, floats).variant
        except BricolageError as error:
            _LOG.info("a quantised graph is not made again: %s", error.sentence)


def compute_accepted_error(options: Options) -> float:
    """The relative error that a quantised model may have: who asks for integers asks for `low` at least."""
    return options.tolerance if options.tolerance is not None else max(options.bound, BOUNDS["low"])
