"""What a user can set when a model is quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bricolage.base.option_words import parse_accuracy
from bricolage.base.options import BOUNDS, WEIGHTS, Weights
from bricolage.errors import BadOption

Observer = Literal["minmax", "percentile", "mse", "entropy"]
BlockFormat = Literal["matmulnbits", "blocks"]
BlockMethod = Literal["rtn", "hqq", "awq", "gptq"]
OBSERVERS: tuple[Observer, ...] = get_args(Observer)


@dataclass(frozen=True)
class QuantizationOptions:
    """How a model becomes one of integers.

    Raises:
        BadOption: a number is out of its range, or options contradict each other.
    """

    observer: Observer = "mse"
    """How the range of an activation follows from its values."""
    percentile: float = 99.99
    """Of the values, in percent, that the observer `percentile` keeps."""
    pair_safe: bool = True
    """Whether neighbouring weights of one sign sum to at most 128, so that products are exact on every processor."""
    smooth: float = 0.5
    """How far outliers of activations behind a normalisation are moved into the weights (SmoothQuant's alpha); 0 leaves them."""
    equalise: bool = True
    """Whether ranges of channels between two convolutions are made equal."""
    outliers: bool = True
    """Whether a few channels of an activation that are far larger than the others may have a product of their own."""
    correct_bias: bool = True
    """Whether a bias takes up the mean error that rounding makes."""
    sums: bool = False
    """Whether residual sums are quantised too, which runtimes compute faster and less accurately."""
    float_results: bool | None = None
    """Whether results of convolutions stay float where no product reads them as they are, in front of a HardSwish for example: more
    accurate, and ONNX Runtime then computes these convolutions in float32. OpenVINO and the native engine multiply bytes. None:
    where that leaves more work in integers at the accuracy asked for."""
    keep_float: tuple[str, ...] = ()
    """Operators, or types of operators, that stay as they are."""
    max_error: float | None = BOUNDS["low"]
    """Relative, on held-back samples: operators that cost most stay float until it holds. None quantises all that can be."""
    accuracy: str | None = None
    """What must hold as well on held-back samples: `sqnr=DB`, `cosine=X`, `top1=SHARE`, or `FILE.py:FUNCTION>=X` (see
    `bricolage.verify.accuracy_measures`)."""
    errors_by_operator: bool = True
    """Whether the error of each operator is measured, also where all of them are quantised: an evaluation for each."""
    held_back: float = 0.25
    """Share of the samples that calibration does not see, and that errors are measured on."""
    weights: Weights | None = None
    """Weights alone, in blocks along k; activations stay float."""
    block_size: int = 32
    """Weights with one scale, where weights alone are quantised."""
    block_format: BlockFormat = "matmulnbits"
    """ONNX Runtime's operator, or DequantizeLinear with blocks, of opset 21."""
    block_method: BlockMethod | None = None
    """How blocks are rounded; None is GPTQ where there are samples, and HQQ where there are none."""
    accuracy_level: int = 4
    """Of ONNX Runtime's operator: 4 multiplies bytes, which is several times as fast; 0 float numbers."""
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
