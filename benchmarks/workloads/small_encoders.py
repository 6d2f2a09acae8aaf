"""Smaller relatives of BERT whose kernels DNNFusion counted, for 128 tokens.

Jiao et al., "TinyBERT", EMNLP 2020 (4 layers, hidden 312); Sanh et al., "DistilBERT", 2019 (6 layers, no segments); Lan et al.,
"ALBERT", ICLR 2020 (12 layers with one set of weights, embeddings of 128); Sun et al., "MobileBERT", ACL 2020 (24 layers with
bottlenecks of 128, no layer normalisation, trigram embeddings).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.bert import Bert, Layer, SelfAttention, Size
from benchmarks.workloads.calibrate import branch_end, calibrated
from benchmarks.workloads.inputs import tokens

_VOCABULARY = 30522


def _ignored(mask: Tensor, like: Tensor) -> Tensor:
    return (1.0 - mask[:, None, None, :].to(like.dtype)) * torch.finfo(like.dtype).min


class Distilled(nn.Module):
    """Token numbers and mask to hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(_VOCABULARY, 768), nn.Embedding(512, 768)
        self.norm = nn.LayerNorm(768, eps=1e-12)
        self.layers = nn.ModuleList(Layer(Size(6, 768, 12, 3072)) for _ in range(6))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.norm(self.words(input_ids) + self.positions.weight[: input_ids.shape[1]])
        bias = _ignored(attention_mask, x)
        for layer in self.layers:
            x = layer(x, bias)
        return x


class Albert(nn.Module):
    """The same layer `times` times."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(30000, 128), nn.Embedding(512, 128)
        self.norm = nn.LayerNorm(128, eps=1e-12)
        self.widen = nn.Linear(128, 768)
        self.layer = Layer(Size(12, 768, 12, 3072))
        self.pooler = nn.Linear(768, 768)
        self.times = 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.widen(self.norm(self.words(input_ids) + self.positions.weight[: input_ids.shape[1]]))
        bias = _ignored(attention_mask, x)
        for _ in range(self.times):
            x = self.layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Affine(nn.Module):
    """MobileBERT's normalisation: a factor and a term for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Embedding(1, width)
        self.shift = nn.Embedding(1, width)

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 + 0.1 * self.scale.weight[0]) + 0.1 * self.shift.weight[0]


class Feed(nn.Module):
    """A feed-forward network with its sum."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(width, inner), branch_end(nn.Linear(inner, width))
        self.norm = Affine(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.contract(functional.relu(self.expand(x))))


class Narrow(SelfAttention):
    """Attention in the bottleneck, whose values come from the wide stream."""

    def __init__(self, hidden: int, inner: int, heads: int) -> None:
        super().__init__(inner, heads)
        self.value = nn.Linear(hidden, inner)

    def mixed(self, shared: Tensor, wide: Tensor, bias: Tensor) -> Tensor:
        """Queries and keys from `shared` (batch, sequence, inner), values from `wide` (batch, sequence, hidden)."""
        batch, sequence, inner = shared.shape
        split = (batch, sequence, self.heads, self.width)
        query = self.query(shared).reshape(split).transpose(1, 2)
        key = self.key(shared).reshape(split).permute(0, 2, 3, 1)
        value = self.value(wide).reshape(split).transpose(1, 2)
        scores = query @ key / self.width**0.5 + bias
        context = (functional.softmax(scores, -1) @ value).transpose(1, 2)
        return self.output(context.reshape(batch, sequence, inner))


class Bottleneck(nn.Module):
    """A layer of MobileBERT: into the bottleneck, attention, four feed-forward networks, and out."""

    def __init__(self, hidden: int = 512, inner: int = 128, heads: int = 4, feeds: int = 4) -> None:
        super().__init__()
        self.input, self.input_norm = nn.Linear(hidden, inner), Affine(inner)
        self.shared, self.shared_norm = nn.Linear(hidden, inner), Affine(inner)
        self.attention, self.attention_norm = Narrow(hidden, inner, heads), Affine(inner)
        self.feeds = nn.ModuleList(Feed(inner, 4 * inner) for _ in range(feeds))
        self.output, self.norm = branch_end(nn.Linear(inner, hidden)), Affine(hidden)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        y = self.input_norm(self.input(x))
        y = self.attention_norm(y + self.attention.mixed(self.shared_norm(self.shared(x)), x, bias))
        for feed in self.feeds:
            y = feed(y)
        return self.norm(x + self.output(y))


class MobileBert(nn.Module):
    """Token numbers and mask to hidden states; each token is seen with its neighbours."""

    def __init__(self, layers: int = 24, hidden: int = 512) -> None:
        super().__init__()
        self.words = nn.Embedding(_VOCABULARY, 128)
        self.widen = nn.Linear(3 * 128, hidden)
        self.positions, self.norm = nn.Embedding(512, hidden), Affine(hidden)
        self.layers = nn.ModuleList(Bottleneck(hidden) for _ in range(layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        words = self.words(input_ids)
        before = functional.pad(words[:, 1:], (0, 0, 0, 1))
        behind = functional.pad(words[:, :-1], (0, 0, 1, 0))
        x = self.widen(torch.cat([before, words, behind], 2))
        x = self.norm(x + self.positions.weight[: input_ids.shape[1]])
        bias = _ignored(attention_mask, x)
        for layer in self.layers:
            x = layer(x, bias)
        return x


def _calibrated(make: Any, vocabulary: int = _VOCABULARY) -> Any:
    numbers = torch.from_numpy(tokens((4, 128), seed=1_000_003, vocabulary=vocabulary))
    return calibrated(make, (numbers, torch.ones_like(numbers)))


def tinybert() -> Any:
    """TinyBERT with 4 layers."""
    return _calibrated(lambda: Bert(Size(layers=4, hidden=312, heads=12, feed_forward=1200)))


def distilbert() -> Any:
    """DistilBERT."""
    return _calibrated(Distilled)


def albert() -> Any:
    """ALBERT-base; its layer is calibrated where it is met first."""
    model = _calibrated(Albert, 30000)
    model.times = 12
    return model


def mobilebert() -> Any:
    """MobileBERT."""
    return _calibrated(MobileBert)
