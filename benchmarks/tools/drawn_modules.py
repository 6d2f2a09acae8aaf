"""Small networks around one module of `torch.nn`, with its attributes at their defaults or one of them changed.

`DRAWN` lists them; `network(number)` is one of them, `data()` what they train on. They are named in specs as
`benchmarks.tools.drawn_modules:network`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

FEATURES = 32
SAMPLES = 48
_SHAPES: dict[str, tuple[int, ...]] = {
    "flat": (16,),
    "sequence": (6, 8),
    "images": (4, 6, 6),
    "volumes": (2, 5, 5, 5),
    "tokens": (5,),
}
"""Of one sample, as the module under test reads it."""


@dataclass(frozen=True)
class Drawn:
    """A module: class, what it reads, positional arguments, and the attributes that differ from their defaults."""

    kind: str
    reads: str
    given: tuple[Any, ...]
    changed: Mapping[str, Any]
    inputs: int = 1
    """How many times it is given its input."""

    @property
    def name(self) -> str:
        """ "Conv2d(4, 6, 3, stride=2)"."""
        words = [*map(repr, self.given), *(f"{key}={value!r}" for key, value in self.changed.items())]
        return f"{self.kind}({', '.join(words)})"


_CONVOLUTION = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, "bias": False}
_RECURRENT = {"num_layers": 2, "bias": False, "batch_first": True, "bidirectional": True}
_NORM = {"eps": 1e-2, "momentum": (0.4, None), "affine": False, "track_running_stats": False}
_POOL = {"stride": 1, "padding": 1, "ceil_mode": True}
_BLOCK = {"dropout": (0.0, 0.3), "activation": "gelu", "norm_first": True, "batch_first": True, "bias": False}
_ONE_OF: tuple[tuple[str, str, tuple[Any, ...], Mapping[str, Any]], ...] = (
    ("Linear", "flat", (16, 8), {"bias": False}),
    ("Bilinear", "flat", (16, 16, 4), {"bias": False}),
    ("Identity", "flat", (), {}),
    *((f"Conv{d}d", reads, (channels, 6, 3), {**_CONVOLUTION, "padding": (1, "same")})
      for d, reads, channels in ((1, "sequence", 6), (2, "images", 4), (3, "volumes", 2))),
    *((f"ConvTranspose{d}d", reads, (channels, 4, 3), {**_CONVOLUTION})
      for d, reads, channels in ((1, "sequence", 6), (2, "images", 4), (3, "volumes", 2))),
    *((f"MaxPool{d}d", reads, (2,), {**_POOL, "dilation": 2})
      for d, reads in ((1, "sequence"), (2, "images"), (3, "volumes"))),
    *((f"AvgPool{d}d", reads, (2,), {**_POOL, "count_include_pad": False})
      for d, reads in ((1, "sequence"), (2, "images"), (3, "volumes"))),
    *((f"AdaptiveAvgPool{d}d", reads, (3,), {}) for d, reads in ((1, "sequence"), (2, "images"), (3, "volumes"))),
    *((f"AdaptiveMaxPool{d}d", reads, (3,), {}) for d, reads in ((1, "sequence"), (2, "images"), (3, "volumes"))),
    *((f"LPPool{d}d", reads, (2, 2), {"stride": 1, "ceil_mode": True}) for d, reads in ((1, "sequence"), (2, "images"))),
    *((f"BatchNorm{d}d", reads, (channels,), _NORM)
      for d, reads, channels in ((1, "sequence", 6), (1, "flat", 16), (2, "images", 4), (3, "volumes", 2))),
    *((f"InstanceNorm{d}d", reads, (channels,), {"eps": 1e-2, "momentum": 0.4, "affine": True, "track_running_stats": True})
      for d, reads, channels in ((1, "sequence", 6), (2, "images", 4), (3, "volumes", 2))),
    ("LayerNorm", "sequence", (8,), {"eps": 1e-2, "elementwise_affine": False, "bias": False}),
    ("RMSNorm", "sequence", (8,), {"eps": 1e-2, "elementwise_affine": False}),
    ("GroupNorm", "images", (2, 4), {"eps": 1e-2, "affine": False}),
    ("LocalResponseNorm", "images", (2,), {"alpha": 1e-2, "beta": 0.5, "k": 2.0}),
    ("Dropout", "flat", (), {"p": (0.0, 0.2, 1.0), "inplace": True}),
    *((f"Dropout{d}d", reads, (), {"p": (0.0, 0.2, 1.0)})
      for d, reads in ((1, "sequence"), (2, "images"), (3, "volumes"))),
    ("AlphaDropout", "flat", (), {"p": 0.0}),
    ("Embedding", "tokens", (7, 4), {"padding_idx": 2, "max_norm": 0.5, "scale_grad_by_freq": True, "sparse": True}),
    ("EmbeddingBag", "tokens", (7, 4), {"mode": ("sum", "max"), "padding_idx": 2, "max_norm": 0.5, "sparse": True}),
    *((kind, "sequence", (8, 5), {**_RECURRENT, **more})
      for kind, more in (("RNN", {"nonlinearity": "relu"}), ("LSTM", {"proj_size": 3}), ("GRU", {}))),
    ("MultiheadAttention", "sequence", (8, 2),
     {"dropout": 0.2, "bias": False, "add_bias_kv": True, "add_zero_attn": True, "batch_first": True}),
    ("TransformerEncoderLayer", "sequence", (8, 2, 12), _BLOCK),
    ("TransformerDecoderLayer", "sequence", (8, 2, 12), _BLOCK),
    ("ELU", "flat", (), {"alpha": 0.5, "inplace": True}),
    ("CELU", "flat", (), {"alpha": 0.5}),
    ("SELU", "flat", (), {"inplace": True}),
    ("GELU", "flat", (), {"approximate": "tanh"}),
    ("GLU", "flat", (), {"dim": 1}),
    ("Hardshrink", "flat", (), {"lambd": 0.2}),
    ("Hardsigmoid", "flat", (), {"inplace": True}),
    ("Hardswish", "flat", (), {"inplace": True}),
    ("Hardtanh", "flat", (), {"min_val": -0.3, "inplace": True}),
    ("LeakyReLU", "flat", (), {"negative_slope": 0.3, "inplace": True}),
    ("LogSigmoid", "flat", (), {}),
    ("LogSoftmax", "flat", (1,), {}),
    ("Mish", "flat", (), {"inplace": True}),
    ("PReLU", "images", (), {"num_parameters": 4, "init": 0.1}),
    ("RReLU", "flat", (), {"lower": 0.2}),
    ("ReLU", "flat", (), {"inplace": True}),
    ("ReLU6", "flat", (), {"inplace": True}),
    ("SiLU", "flat", (), {"inplace": True}),
    ("Sigmoid", "flat", (), {}),
    ("Softmax", "images", (1,), {}),
    ("Softmax", "images", (-1,), {}),
    ("Softmax2d", "images", (), {}),
    ("Softmin", "flat", (1,), {}),
    ("Softplus", "flat", (), {"beta": 2.0, "threshold": 0.1}),
    ("Softshrink", "flat", (), {"lambd": 0.1}),
    ("Softsign", "flat", (), {}),
    ("Tanh", "flat", (), {}),
    ("Tanhshrink", "flat", (), {}),
    ("Threshold", "flat", (0.1, 0.5), {"inplace": True}),
    ("ChannelShuffle", "images", (2,), {}),
    ("PixelShuffle", "images", (2,), {}),
    ("PixelUnshuffle", "images", (2,), {}),
    ("Upsample", "images", (), {"mode": ("bilinear", "bicubic")}),
    ("Flatten", "images", (), {"start_dim": 2, "end_dim": 2}),
    ("Unflatten", "flat", (1, (4, 4)), {}),
    ("Unfold", "images", (2,), {"stride": 2, "padding": 1, "dilation": 2}),
    *((f"{word}Pad{d}d", reads, (1,), {})
      for word in ("Zero", "Constant", "Reflection", "Replication", "Circular")
      for d, reads in ((1, "sequence"), (2, "images"), (3, "volumes"))),
    ("FractionalMaxPool2d", "images", (2,), {}),
)  # fmt: skip
_WRAPPED = ("weight_norm", "weight_norm dim 1", "spectral_norm", "spectral_norm 2", "spectral_norm dim 1", "orthogonal")


def _changes(one_away: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = [{}]
    for key, values in one_away.items():
        several = values if isinstance(values, tuple) else (values,)
        found += [{key: value} for value in several]
    return found


def _all() -> tuple[Drawn, ...]:
    found = []
    for kind, reads, given, one_away in _ONE_OF:
        more: dict[str, Any] = {}
        if kind == "Upsample":
            more = {"scale_factor": 2}
        elif kind.startswith("ConstantPad"):
            more = {"value": 0.5}
        elif kind == "FractionalMaxPool2d":
            more = {"output_size": 2}
        count = {"Bilinear": 2, "MultiheadAttention": 3, "TransformerDecoderLayer": 2}.get(kind, 1)
        found += [Drawn(kind, reads, given, {**more, **changed}, count) for changed in _changes(one_away)]
    modes = [(1, "sequence", 6), (2, "images", 4), (3, "volumes", 2)]
    for mode in ("circular", "reflect", "replicate"):
        found += [
            Drawn(f"Conv{d}d", reads, (channels, 4, 3), {"padding": 1, "padding_mode": mode})
            for d, reads, channels in modes
        ]
    found += [Drawn(f"Linear {word}", "flat", (16, 8), {}) for word in _WRAPPED]
    found += [Drawn(f"Conv2d {word}", "images", (4, 6, 3), {}) for word in _WRAPPED[:-1]]
    return tuple(found)


DRAWN = _all()


class Network(nn.Module):
    """A linear layer, the module, means of what it gives, a linear layer; and a linear layer beside them."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.drawn = drawn
        shape = _SHAPES[drawn.reads]
        self.first = nn.Linear(FEATURES, torch.Size(shape).numel())
        kind, _, wrapped = drawn.kind.partition(" ")
        layer = getattr(nn, kind)(*drawn.given, **drawn.changed)
        self.layer = _wrapped(layer, wrapped) if wrapped else layer
        self.beside, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, FEATURES] to scores [N, 3]."""
        shape = _SHAPES[self.drawn.reads]
        x = x.to(self.last.weight.dtype)
        made = self.first(x)
        given = (
            x[:, : shape[0]].mul(2).long().clamp(-3, 3) + 3 if self.drawn.reads == "tokens" else made.view(-1, *shape)
        )
        found = self.layer(*[given] * self.drawn.inputs)
        found = found[0] if isinstance(found, tuple) else found
        means = nn.functional.adaptive_avg_pool1d(found.reshape(len(x), 1, -1), 8)
        scores: torch.Tensor = self.last(means.squeeze(1) + self.beside(x) * 0.1)
        return scores


def _wrapped(layer: nn.Module, word: str) -> nn.Module:
    name, *rest = word.split()
    more: dict[str, int] = {}
    if rest:
        more = {"dim": 1} if rest[0] == "dim" else {"n_power_iterations": 2}
    found: nn.Module = getattr(parametrizations, name)(layer, **more)
    return found


def network(number: int, wide: bool = False) -> nn.Module:
    """One of `DRAWN`; in float64 if `wide`."""
    made = Network(DRAWN[number])
    return made.double() if wide else made


def data() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Random numbers [48, FEATURES] and classes, and 16 more."""
    made = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES + 16, FEATURES, generator=made)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return (x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:])


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first samples."""
    del seed
    (x, y), _ = data()
    return x[:size], y[:size]
