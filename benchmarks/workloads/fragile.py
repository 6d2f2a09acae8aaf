"""Networks of which one part does not bear a low precision, so that neither the low nor the full precision alone is best.

Each has layers as trained networks have them: attention that is nearly a choice (a large scale of its scores), features far from
zero whose common part a layer takes away again, and a long chain of products without normalisation, in which errors add up. Rows
are 128 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.workloads.registry import Arrays, Workload

if TYPE_CHECKING:
    import torch

_TOKENS, _WIDTH, _LAYERS = 128, 512, 6
_SHARPNESS, _LOUDNESS = 160.0, 8.0
"""Of the scores of one attention, whose softmax nearly chooses, and of what it adds to the tokens."""
_OFFSET = 20.0
"""Mean of features whose deviation is 1: bfloat16 has steps of 1/8 there."""
_CHAIN = 128


def fragile() -> Mapping[str, Workload]:
    """The three, by name; their GFLOPs are of the products."""
    layer = 24 * _TOKENS * _WIDTH**2 + 4 * _TOKENS**2 * _WIDTH
    table = {
        "sharp-attention": (_sharp_attention, _WIDTH, _LAYERS * layer),
        "far-from-zero": (_far_from_zero, _WIDTH, (2 * _LAYERS + 1) * 2 * _TOKENS * _WIDTH**2),
        "long-chain": (_long_chain, _WIDTH // 2, _CHAIN * 2 * _TOKENS * (_WIDTH // 2) ** 2),
    }
    return {
        name: Workload(name, "fragile", build, _noise(width), ("x",), ("y",), flops / 1e9)
        for name, (build, width, flops) in table.items()
    }


def _noise(width: int) -> Callable[[int], Arrays]:
    shape = (1, _TOKENS, width)
    return lambda seed: {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def _sharp_attention() -> torch.nn.Module:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self, sharp: bool) -> None:
            super().__init__()
            self.norm, self.behind = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
            self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
            self.wide, self.back = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
            self.scale = (_SHARPNESS if sharp else 1.0) / math.sqrt(_WIDTH // 8)
            if sharp:
                self.out.weight.data *= _LOUDNESS

        def forward(self, x: Tensor) -> Tensor:
            heads = self.qkv(self.norm(x)).reshape(1, _TOKENS, 3, 8, _WIDTH // 8).permute(2, 0, 3, 1, 4)
            scores = torch.softmax(heads[0] @ heads[1].transpose(-1, -2) * self.scale, -1)
            x = x + self.out((scores @ heads[2]).transpose(1, 2).reshape(1, _TOKENS, _WIDTH))
            return x + self.back(functional.gelu(self.wide(self.behind(x))))

    torch.manual_seed(0)
    return nn.Sequential(*(Layer(n == _LAYERS // 2) for n in range(_LAYERS))).eval()


def _far_from_zero() -> torch.nn.Module:
    import torch
    from torch import Tensor, nn

    class Far(nn.Module):
        """Features far from zero, and a layer whose weights sum to zero for each of its results."""

        def __init__(self) -> None:
            super().__init__()
            self.product = nn.Linear(_WIDTH, _WIDTH)
            with torch.no_grad():
                self.product.weight -= self.product.weight.mean(1, keepdim=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.product(x + _OFFSET)

    def block() -> list[nn.Module]:
        return [nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH), nn.GELU()]

    torch.manual_seed(0)
    before = [one for _ in range(_LAYERS) for one in block()]
    after = [one for _ in range(_LAYERS) for one in block()]
    return nn.Sequential(*before, nn.LayerNorm(_WIDTH), Far(), *after).eval()


def _long_chain() -> torch.nn.Module:
    import torch
    from torch import nn

    width, draw = _WIDTH // 2, torch.Generator().manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(_CHAIN):
        product = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            product.weight.copy_(torch.linalg.qr(torch.randn(width, width, generator=draw))[0])
        layers += [product, nn.LeakyReLU(0.9)]
    return nn.Sequential(*layers).eval()
