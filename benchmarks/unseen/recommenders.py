"""Networks that recommend, after their papers; one call ranks the candidates of a request.

Guo et al., "DeepFM", IJCAI 2017; Wang et al., "DCN V2", WWW 2021 (stacked, cross layers of full rank); Zhou et al., "Deep Interest
Network", KDD 2018 (with its activation, Dice); Kang & McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018 (SASRec).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

FIELDS, FIELD_SIZE, NUMBERS = 26, 4000, 13
"""Of the advertisements of Criteo: categorical fields, here with so many values each, and numbers."""
ITEMS, HISTORY = 20000, 50


def _perceptron(*widths: int) -> nn.Sequential:
    return nn.Sequential(
        *(layer for inner, outer in pairwise(widths) for layer in (nn.Linear(inner, outer), nn.ReLU()))
    )


class FieldEmbedding(nn.Module):
    """One table for all fields: numbers (rows, fields) to vectors (rows, fields, width)."""

    starts: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(FIELDS * FIELD_SIZE, width)
        self.register_buffer("starts", torch.arange(FIELDS) * FIELD_SIZE)

    def forward(self, categories: Tensor) -> Tensor:
        vectors: Tensor = self.table(categories + self.starts)
        return vectors


class DeepFM(nn.Module):
    """A factorisation machine and a perceptron that share their embeddings."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.vectors, self.biases = FieldEmbedding(width), FieldEmbedding(1)
        self.linear = nn.Linear(NUMBERS, 1)
        self.deep = nn.Sequential(_perceptron(FIELDS * width + NUMBERS, 400, 400, 400), nn.Linear(400, 1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        vectors = self.vectors(categories)
        first = self.biases(categories).sum(1) + self.linear(numbers)
        second = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)
        deep = self.deep(torch.cat([vectors.flatten(1), numbers], 1))
        return torch.sigmoid(first + 0.02 * second + deep)


class CrossNetwork(nn.Module):
    """x ← x₀ ⊙ (W x + b) + x, layer by layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, first: Tensor) -> Tensor:
        x = first
        for layer in self.layers:
            x = first * layer(x) + x
        return x


class DeepCross(nn.Module):
    """DCN V2, stacked: crosses of features, then a perceptron."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.vectors = FieldEmbedding(width)
        inner = FIELDS * width + NUMBERS
        self.cross = CrossNetwork(inner, depth)
        self.deep = nn.Sequential(_perceptron(inner, 512, 256), nn.Linear(256, 1))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        return torch.sigmoid(self.deep(self.cross(torch.cat([self.vectors(categories).flatten(1), numbers], 1))))


class Dice(nn.Module):
    """A rectifier whose corner follows the data: p x + (1 - p) a x with p = sigmoid of x, normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.slope = nn.Parameter(torch.full((width,), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        share = torch.sigmoid(self.norm(x))
        return share * x + (1.0 - share) * self.slope * x


class DeepInterest(nn.Module):
    """Weighs what a user did by each candidate: `history` (1, length), `length` (1,), `candidates` (rows,) to (rows, 1)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, width)
        self.attention = nn.Sequential(
            nn.Linear(4 * width, 80), Dice(80), nn.Linear(80, 40), Dice(40), nn.Linear(40, 1)
        )
        self.deep = nn.Sequential(nn.Linear(3 * width, 200), Dice(200), nn.Linear(200, 80), Dice(80), nn.Linear(80, 1))

    def forward(self, history: Tensor, length: Tensor, candidates: Tensor) -> Tensor:
        rows, steps = candidates.shape[0], history.shape[1]
        wanted, past = self.items(candidates), self.items(history)
        query, keys = wanted[:, None].expand(-1, steps, -1), past.expand(rows, -1, -1)
        pairs = torch.cat([query, keys, query - keys, query * keys], -1).flatten(0, 1)
        weights = self.attention(pairs).view(rows, steps)
        interest = torch.where(torch.arange(steps) < length[:, None], weights, 0.0) @ past[0]
        return torch.sigmoid(self.deep(torch.cat([interest, wanted, interest * wanted], 1)))


class SequenceBlock(nn.Module):
    """Attention to what came before, then two linear layers for each step."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_linear = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.before_attention(x)  # queries are normalised, keys and values are not
        split = [
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.queries(normal), self.keys(x), self.values(x))
        ]
        attended = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        x = self.before_linear(normal + attended.transpose(1, 2).flatten(2))
        answer: Tensor = x + self.second(functional.relu(self.first(x)))
        return answer


class SelfAttentive(nn.Module):
    """SASRec: sequences of items (users, length) to a score for each item (users, items)."""

    def __init__(self, width: int = 64, blocks: int = 2, heads: int = 1, length: int = 200) -> None:
        super().__init__()
        self.items, self.positions = nn.Embedding(ITEMS, width), nn.Parameter(0.3 * torch.randn(length, width))
        self.blocks = nn.ModuleList(SequenceBlock(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def forward(self, history: Tensor) -> Tensor:
        x = self.items(history) * self.items.embedding_dim**0.5 + self.positions
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.norm(x)[:, -1] @ self.items.weight.T
        return scores
