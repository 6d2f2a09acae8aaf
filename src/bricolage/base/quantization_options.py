"""What a user can set when a model is quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bricolage.base.option_words import parse_accuracy
from bricolage.base.options import BOUNDS, WEIGHTS, Weights, declare_option
from bricolage.errors import BadOption

Observer = Literal["minmax", "percentile", "mse", "entropy"]
BlockFormat = Literal["matmulnbits", "blocks", "q4_0", "q4_1", "q8_0"]
BlockMethod = Literal["rtn", "mse", "hqq", "awq", "gptq"]
GGUF_FORMATS: tuple[BlockFormat, ...] = ("q4_0", "q4_1", "q8_0")
OBSERVERS: tuple[Observer, ...] = get_args(Observer)


@dataclass(frozen=True)
class QuantizationOptions:
    """How a model becomes one of integers. Every field is checked when the object is made; the command line derives from the
    fields that have a flag.

    Raises:
        BadOption: a number is out of its range, or options contradict each other.
    """

    weights: Weights | None = declare_option(
        None,
        flag="--weights",
        metavar="TYPE",
        help="Quantise weights alone, in blocks: int8 or int4. Needs no data.",
        parse=str,  # any word is: `__post_init__` names those that there are
    )
    """The blocks lie along k; activations stay float."""
    block_size: int = declare_option(
        32,
        flag="--block-size",
        metavar="N",
        help="Weights along k with one scale: 16, 32, 64, 128 or 256.",
    )
    block_format: BlockFormat | None = declare_option(
        None,
        flag="--format",
        metavar="FORM",
        help="Of --weights: matmulnbits (ONNX Runtime's operator, the default) or blocks (DequantizeLinear of opset 21); of a "
        "language model q4_1 (the default), q4_0 or q8_0.",
        parse=str,
    )
    block_method: BlockMethod | None = declare_option(
        None,
        flag="--method",
        metavar="NAME",
        help="Of --weights: rtn, hqq, awq or gptq; default: gptq with --calibrate, else hqq. Of a language model: rtn, mse, gptq; "
        "default: gptq with --calibrate, else mse.",
        parse=str,
    )
    accuracy_level: int = declare_option(
        4,
        flag="--accuracy-level",
        metavar="N",
        help="Of ONNX Runtime's operator: 4 multiplies bytes, several times as fast; 0 multiplies float numbers.",
    )
    observer: Observer = declare_option(
        "mse",
        flag="--observer",
        metavar="NAME",
        help="How ranges follow from values: minmax, percentile, mse or entropy.",
    )
    percentile: float = declare_option(
        99.99,
        flag="--percentile",
        metavar="P",
        help="Of the values, that the observer percentile keeps.",
    )
    keep_float: tuple[str, ...] = declare_option(
        (),
        flag="--keep-float",
        metavar="NAME",
        help="This operator, or type, stays float. Repeatable.",
        parse=tuple,
    )
    max_error: float | None = declare_option(
        BOUNDS["low"],
        flag="--max-error",
        metavar="E",
        help="Relative, on held-back samples: operators that cost most stay float until it holds. inf quantises all.",
    )
    """None quantises all that can be."""
    accuracy: str | None = declare_option(
        None,
        flag="--accuracy",
        metavar="METRIC",
        help="What must hold as well: sqnr=DB, cosine=X, top1=SHARE, or FILE.py:FUNCTION>=X; operators stay float until it does.",
    )
    """See `bricolage.verify.accuracy_measures`."""
    held_back: float = declare_option(
        0.25,
        flag="--held-back",
        metavar="SHARE",
        help="Share of the samples that calibration does not see.",
    )
    """Errors are measured on these."""
    pair_safe: bool = declare_option(
        True,
        flag="--pair-safe/--no-pair-safe",
        help="Scales of weights with which products are exact on processors without VNNI, too.",
    )
    """Neighbouring weights of one sign sum to at most 128."""
    smooth: float = declare_option(
        0.5,
        flag="--smooth",
        metavar="A",
        help="How far outliers behind normalisations move into weights (SmoothQuant); 0: not.",
    )
    """SmoothQuant's alpha."""
    equalise: bool = declare_option(
        True,
        flag="--equalise/--no-equalise",
        help="Make the ranges of channels between convolutions equal.",
    )
    outliers: bool = declare_option(
        True,
        flag="--outliers/--no-outliers",
        help="Multiply a few channels far larger than the others apart, where that pays.",
    )
    correct_bias: bool = declare_option(
        True,
        flag="--correct-bias/--no-correct-bias",
        help="Let biases take up the mean error of rounding.",
    )
    sums: bool = declare_option(
        False,
        flag="--sums",
        help="Quantise residual sums too: faster in ONNX Runtime, and less accurate.",
    )
    float_results: bool | None = declare_option(
        None,
        flag="--float-results/--no-float-results",
        help="Results of convolutions in front of a HardSwish or the like stay float: more accurate, and slower in ONNX Runtime, "
        "which computes these convolutions in float32. Default: where that leaves more in integers at the accuracy asked for.",
    )
    """Where no product reads them as they are. OpenVINO and the native engine multiply bytes all the same."""
    errors_by_operator: bool = True
    """Whether the error of each operator is measured, also where all of them are quantised: an evaluation for each."""
    seed: int = 0
    """Of what is drawn from the values of large activations."""

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, float, bool, str], ...] = (
            ("--percentile", self.percentile, 50 < self.percentile <= 100, "Give a number above 50, at most 100"),
            ("--smooth", self.smooth, 0 <= self.smooth < 1, "Give a number from 0, which is off, to below 1"),
            ("--held-back", self.held_back, 0 < self.held_back < 1, "Give a share between 0 and 1"),
            ("--max-error", self.max_error or 1.0, (self.max_error or 1.0) > 0, "Give a relative error above 0"),
            (
                "--accuracy-level",
                self.accuracy_level,
                self.accuracy_level in (0, 1, 2, 3, 4),
                "Give a number from 0, float, to 4, bytes",
            ),
            (
                "--block-size",
                self.block_size,
                self.block_size in (16, 32, 64, 128, 256),
                "Give 16, 32, 64, 128 or 256",
            ),
        )
        for option, value, right, advice in ranges:
            if not right:
                raise BadOption(option=option, value=value, advice=advice)
        words: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
            ("--observer", self.observer, OBSERVERS),
            ("--weights", self.weights, WEIGHTS),
            ("--format", self.block_format, get_args(BlockFormat)),
            ("--method", self.block_method, get_args(BlockMethod)),
        )
        for option, word, choices in words:
            if word is not None and word not in choices:
                raise BadOption(option=option, value=word, advice=f"Use one of: {', '.join(choices)}")
        if self.accuracy is not None and parse_accuracy(self.accuracy).limit is None:
            raise BadOption(option="--accuracy", value=self.accuracy, advice="--max-error limits the relative error")
