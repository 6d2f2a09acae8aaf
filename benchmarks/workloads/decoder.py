"""Decoders of text: token numbers to logits of the next token, for a whole prompt.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (GPT-2, its smallest size); Touvron et al.,
"LLaMA: Open and Efficient Foundation Language Models", 2023 (root mean square normalisation, rotary embedding of Su et al.,
2021, gated feed-forward network; here four layers of 512). Both are written out in elementary operations, as their public
implementations write them.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import branch_end, calibrated, zero_mean
from benchmarks.workloads.inputs import tokens

GPT2_VOCABULARY, GPT2_LENGTH = 50257, 128
ROTARY_VOCABULARY, ROTARY_LENGTH = 8000, 64


def _causal(length: int) -> Tensor:
    """1 where a token may look, of shape (1, 1, length, length); a constant of the network."""
    return torch.ones((length, length), dtype=torch.bool, device="cpu").tril()[None, None]


class CausalAttention(nn.Module):
    """Multi-head self-attention over the tokens before, queries, keys and values from one product."""

    def __init__(self, hidden: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.projection = zero_mean(nn.Linear(hidden, 3 * hidden), 0.8)
        self.output = branch_end(nn.Linear(hidden, hidden))
        self.allowed = _causal(length)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        parts = self.projection(x).split(hidden, dim=2)
        query, key, value = (p.view(batch, length, self.heads, self.width).permute(0, 2, 1, 3) for p in parts)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.width)
        scores = torch.where(self.allowed[:, :, :length, :length], scores, torch.finfo(x.dtype).min)
        context = torch.matmul(functional.softmax(scores, dim=-1), value)
        return self.output(context.permute(0, 2, 1, 3).contiguous().view(batch, length, hidden))


def _new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Layer(nn.Module):
    """Attention and feed-forward network, each on the normalised input and added to it."""

    def __init__(self, hidden: int, heads: int, length: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = CausalAttention(hidden, heads, length)
        self.expand = nn.Linear(hidden, 4 * hidden)
        self.contract = branch_end(nn.Linear(4 * hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.contract(_new_gelu(self.expand(self.feed_norm(x))))


class GPT2(nn.Module):
    """Token numbers (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, layers: int = 12, hidden: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(GPT2_VOCABULARY, hidden)
        self.positions = nn.Embedding(1024, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, GPT2_LENGTH) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, GPT2_VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1])[None])
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class RootMeanSquareNorm(nn.RMSNorm):
    """x / sqrt(mean(x²) + ε) · weight, written out."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + (self.eps or 0.0)))


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class RotaryLayer(nn.Module):
    """Attention with rotary embedding and a gated feed-forward network."""

    def __init__(self, hidden: int, heads: int, inner: int, length: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.attention_norm, self.feed_norm = (RootMeanSquareNorm(hidden, eps=1e-6) for _ in range(2))
        self.query, self.key = (zero_mean(nn.Linear(hidden, hidden, bias=False), 0.8) for _ in range(2))
        self.value = nn.Linear(hidden, hidden, bias=False)
        self.output = branch_end(nn.Linear(hidden, hidden, bias=False))
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = branch_end(nn.Linear(inner, hidden, bias=False))
        self.mask = torch.where(_causal(length), 0.0, torch.finfo(torch.float32).min)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        y = self.attention_norm(x)
        query, key, value = (
            part(y).view(batch, length, self.heads, self.width).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query = query * cos + _rotate_half(query) * sin
        key = key * cos + _rotate_half(key) * sin
        scores = torch.matmul(query, key.transpose(2, 3)) * self.width**-0.5 + self.mask
        context = torch.matmul(functional.softmax(scores, dim=-1), value).transpose(1, 2)
        x = x + self.output(context.reshape(batch, length, hidden))
        y = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class RotaryDecoder(nn.Module):
    """Token numbers (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, layers: int = 4, hidden: int = 512, heads: int = 8, inner: int = 1376) -> None:
        super().__init__()
        self.words = nn.Embedding(ROTARY_VOCABULARY, hidden)
        self.layers = nn.ModuleList(RotaryLayer(hidden, heads, inner, ROTARY_LENGTH) for _ in range(layers))
        self.norm = RootMeanSquareNorm(hidden, eps=1e-6)
        self.head = nn.Linear(hidden, ROTARY_VOCABULARY, bias=False)
        width = hidden // heads
        self.frequencies = 10000.0 ** (-torch.arange(0, width, 2, device="cpu") / width)

    def forward(self, input_ids: Tensor) -> Tensor:
        angles = torch.arange(input_ids.shape[1])[:, None] * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)[None, None]
        cos, sin = angles.cos(), angles.sin()
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def gpt2() -> Any:
    """GPT-2 of 124 million parameters, on 128 tokens."""
    return calibrated(GPT2, (torch.from_numpy(tokens((4, GPT2_LENGTH), 1_000_003, GPT2_VOCABULARY)),))


def rotary_decoder() -> Any:
    """Four layers of 512, on 64 tokens."""
    return calibrated(RotaryDecoder, (torch.from_numpy(tokens((4, ROTARY_LENGTH), 1_000_003, ROTARY_VOCABULARY)),))
