"""The BERT encoder: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", NAACL 2019.

Attention is written out (two matrix products around a softmax): every exporter and every engine's pattern matcher
knows that form, while the fused operator exists only in the newest operator sets.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import branch_end, calibrated, zero_mean
from benchmarks.workloads.inputs import tokens


@dataclass(frozen=True)
class Size:
    """Dimensions of an encoder."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int = 30522
    positions: int = 512


BASE = Size(layers=12, hidden=768, heads=12, feed_forward=3072)


def _gelu(x: Tensor) -> Tensor:
    """GELU in the order of operations that the engines' fusions recognise; the exporter's own order they do not."""
    return x * (1.0 + torch.erf(x / math.sqrt(2.0))) * 0.5


class SelfAttention(nn.Module):
    """Multi-head self-attention; `bias` is added to the scores (0 = attend, very negative = ignore)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        # scores of standard deviation 1/2: attention that prefers some tokens and forgets none
        self.query, self.key = (zero_mean(nn.Linear(hidden, hidden), 0.7) for _ in range(2))
        self.value = nn.Linear(hidden, hidden)
        self.output = branch_end(nn.Linear(hidden, hidden))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        batch, sequence, hidden = x.shape
        split = (batch, sequence, self.heads, self.width)
        query = self.query(x).reshape(split).transpose(1, 2)
        key = self.key(x).reshape(split).permute(0, 2, 3, 1)
        value = self.value(x).reshape(split).transpose(1, 2)
        scores = query @ key / math.sqrt(self.width)
        if bias is not None:
            scores = scores + bias
        context = (functional.softmax(scores, -1) @ value).transpose(1, 2)
        return self.output(context.reshape(batch, sequence, hidden))


class Layer(nn.Module):
    """Attention and feed-forward network, each followed by the sum with its input and a layer normalisation."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = SelfAttention(size.hidden, size.heads)
        self.attention_norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.expand = nn.Linear(size.hidden, size.feed_forward)
        self.contract = branch_end(nn.Linear(size.feed_forward, size.hidden))
        self.output_norm = nn.LayerNorm(size.hidden, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, bias))
        return self.output_norm(x + self.contract(_gelu(self.expand(x))))


class Encoder(nn.Module):
    """Token numbers (batch, sequence) and mask to hidden states (batch, sequence, hidden); one segment."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.positions, size.hidden)
        self.segments = nn.Embedding(2, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = self.positions.weight[: input_ids.shape[1]] + self.segments.weight[0]
        x = self.norm(self.words(input_ids) + places)
        bias = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, bias)
        return x


class Bert(nn.Module):
    """Encoder and pooler: hidden states, and the tanh of a linear layer on the first token's state."""

    def __init__(self, size: Size = BASE) -> None:
        super().__init__()
        self.encoder = Encoder(size)
        self.pooler = nn.Linear(size.hidden, size.hidden)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(input_ids, attention_mask)
        return hidden, torch.tanh(self.pooler(hidden[:, 0]))


def bert_base() -> Any:
    """BERT-base (12 layers, hidden 768, 12 heads, feed-forward 3072) with calibrated weights."""
    numbers = torch.from_numpy(tokens((4, 128), seed=1_000_003, vocabulary=BASE.vocabulary))
    return calibrated(Bert, (numbers, torch.ones_like(numbers)))
