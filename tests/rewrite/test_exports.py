"""What PyTorch writes out in elementary operators is recognised, through all families together: small modules, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from bricolage.api.rewrite import rewrite
from bricolage.verify.reference import evaluate

torch = pytest.importorskip("torch")
Tensor = Any
pytest.importorskip("onnxscript")

HEADS_FIRST, HEADS_BEHIND = (2, 3, 5, 8), (2, 5, 3, 8)


def angles(size: int = 8) -> Tensor:
    """(positions, size / 2)"""
    return torch.outer(torch.arange(5.0), 10_000.0 ** (-torch.arange(0.0, size, 2.0) / size))


class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
    """One of the functions here, with tables and parameters of its own."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)


class TurnPairs(Module):
    """GPT-J: x · cos + rotate_every_two(x) · sin on a part of each head, heads behind positions."""

    def forward(self, x: Tensor) -> Tensor:
        size = self.cos.shape[-1]
        turned, rest = x[..., :size], x[..., size:]
        woven = torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2)
        return torch.cat((turned * self.cos + woven * self.sin, rest), dim=-1)


class Pairs(Module):
    """The original LLaMA: pairs as complex numbers, written out."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
        return torch.stack((a * self.cos - b * self.sin, a * self.sin + b * self.cos), dim=-1).flatten(-2)


class Halves(Module):
    """LLaMA in the library transformers."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-b, a), dim=-1) * self.sin


class MaskedAndAdded(Module):
    """GPT-2 in the library transformers: a choice by position, then a mask for padding."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) / 2.0
        scores = torch.where(self.seen[:, :, :5, :5] != 0, scores, torch.finfo(scores.dtype).min) + mask
        return torch.softmax(scores, dim=-1) @ v


class Causal(Module):
    """The function of PyTorch, which the exporter writes with a root of the scale on either side."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Folded(Module):
    """Layer normalisation as TensorFlow writes it."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        factor = torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x * factor + (self.shift - mean * factor)


class Unbiased(Module):
    """Layer normalisation by `var`, which takes a mean of its own."""

    def forward(self, x: Tensor) -> Tensor:
        root = torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-6)
        return self.scale * (x - x.mean(-1, keepdim=True)) / root + self.shift


def tables(table: Tensor) -> dict[str, Tensor]:
    return {"cos": table.cos(), "sin": table.sin()}


BESIDE = ["Reshape", "RotaryEmbedding", "Reshape"]
SEEN = torch.tril(torch.ones(1, 1, 16, 16))
AFFINE = {"scale": torch.rand(8), "shift": torch.rand(8)}


@pytest.mark.parametrize(
    ("module", "shapes", "expected"),
    [
        (TurnPairs(**tables(angles(4).repeat_interleave(2, -1)[:, None])), [HEADS_BEHIND], BESIDE),
        pytest.param(Pairs(**tables(angles()[:, None])), [HEADS_BEHIND], BESIDE, marks=pytest.mark.slow),
        pytest.param(
            Halves(**tables(torch.cat([angles()] * 2, -1)[:, None])), [HEADS_BEHIND], BESIDE, marks=pytest.mark.slow
        ),
        (MaskedAndAdded(seen=SEEN), [*[HEADS_FIRST] * 3, (2, 1, 1, 5)], ["Add", "Attention"]),
        pytest.param(Causal(), [HEADS_FIRST] * 3, ["Attention"], marks=pytest.mark.slow),
        (Folded(**AFFINE), [HEADS_FIRST], ["LayerNormalization"]),
        pytest.param(Unbiased(**AFFINE), [HEADS_FIRST], ["LayerNormalization"], marks=pytest.mark.slow),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Module) else "",
)
def test_recognised(module: Module, shapes: list[tuple[int, ...]], expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    inputs = tuple(torch.rand(shape) for shape in shapes)
    torch.onnx.export(module.eval(), inputs, path, dynamo=True, opset_version=18, verbose=False)
    found = rewrite(path, opset=23, evaluate=evaluate)
    assert [node.op_type for node in found.model.graph if isinstance(node, ir.Node)] == expected
