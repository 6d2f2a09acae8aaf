"""A decoder's weights from a GGUF file, block for block as they lie in it.

The file is read by the package `gguf`; what does not fit together in it is told as `Unavailable`, whatever that package raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.real.packages import Unavailable

Array = np.ndarray[Any, Any]
Format = Literal["q4_1", "q4_0"]
BLOCK = 32
"""Weights of a block in Q4_0, Q4_1 and Q8_0."""
_HALF = BLOCK // 2


@dataclass(frozen=True)
class Blocks:
    """A matrix [n, k] of integers without a sign; a weight is scale · (integer - zero point)."""

    integers: Array
    """uint8 [n, k]."""
    scales: Array
    """float32 [n, k / 32]."""
    zeros: Array | None
    """float32 [n, k / 32]; None where all are the middle."""
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        """n and k."""
        n, k = self.integers.shape
        return n, k

    @property
    def bytes(self) -> int:
        """Of the integers, with scales of 16 bits as in the file."""
        heads = self.scales.size * 2 * (1 if self.zeros is None else 2)
        return self.integers.size * self.bits // 8 + heads

    def numbers(self, rows: slice = slice(None)) -> Array:
        """float32 [n, k], or some rows of it."""
        integers, scales = self.integers[rows], self.scales[rows]
        middle = np.float32(1 << (self.bits - 1)) if self.zeros is None else self.zeros[rows][..., None]
        blocks = integers.reshape(*scales.shape, BLOCK).astype(np.float32) - middle
        found: Array = (blocks * scales[..., None]).reshape(integers.shape)
        return found

    def rows(self, order: Array) -> Blocks:
        """With its rows in another order."""
        zeros = None if self.zeros is None else self.zeros[order]
        return Blocks(self.integers[order], self.scales[order], zeros, self.bits)


@dataclass(frozen=True)
class Layer:
    """One layer."""

    query: Blocks
    key: Blocks
    value: Blocks
    output: Blocks
    gate: Blocks
    up: Blocks
    down: Blocks
    attention_norm: Array
    feed_forward_norm: Array


@dataclass(frozen=True)
class Decoder:
    """A decoder of the llama architecture whose head is its embedding."""

    layers: tuple[Layer, ...]
    embedding: Blocks
    norm: Array
    heads: int
    key_heads: int
    base: float
    """Of the rotary angles."""
    epsilon: float

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.embedding.shape[1]

    @property
    def head_size(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads

    @property
    def bytes(self) -> int:
        """Of all matrices: what a token reads."""
        return self.embedding.bytes + sum(
            each.bytes for layer in self.layers for each in vars(layer).values() if isinstance(each, Blocks)
        )


def read(path: Path) -> Decoder:
    """The decoder in a GGUF file.

    Raises:
        Unavailable: the file is none, is cut off, holds another architecture, or blocks of other kinds.
    """
    import gguf

    with _readable(path):
        reader = gguf.GGUFReader(path)
        known = {
            key: field.contents() for key, field in reader.fields.items() if key.startswith(("general.", "llama."))
        }
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        if known.get("general.architecture") != "llama":
            raise Unavailable(f"{path.name} holds a {known.get('general.architecture')} model, not a llama one")
        heads, key_heads = known["llama.attention.head_count"], known["llama.attention.head_count_kv"]

        def matrix(name: str) -> Blocks:
            return _blocks(tensors[name].tensor_type.name, tensors[name].data)

        def vector(name: str) -> Array:
            return np.array(tensors[name].data, np.float32)

        def turned(blocks: Blocks, count: int) -> Blocks:
            """The file has pairs of rotary numbers side by side; here they are half a head apart."""
            order = np.arange(blocks.shape[0]).reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)
            return blocks.rows(order)

        layers = [
            Layer(
                query=turned(matrix(f"blk.{i}.attn_q.weight"), heads),
                key=turned(matrix(f"blk.{i}.attn_k.weight"), key_heads),
                value=matrix(f"blk.{i}.attn_v.weight"),
                output=matrix(f"blk.{i}.attn_output.weight"),
                gate=matrix(f"blk.{i}.ffn_gate.weight"),
                up=matrix(f"blk.{i}.ffn_up.weight"),
                down=matrix(f"blk.{i}.ffn_down.weight"),
                attention_norm=vector(f"blk.{i}.attn_norm.weight"),
                feed_forward_norm=vector(f"blk.{i}.ffn_norm.weight"),
            )
            for i in range(known["llama.block_count"])
        ]
        return Decoder(
            tuple(layers),
            matrix("token_embd.weight"),
            vector("output_norm.weight"),
            heads,
            key_heads,
            known["llama.rope.freq_base"],
            known["llama.attention.layer_norm_rms_epsilon"],
        )


def requantised(path: Path, to: Path) -> None:
    """The same file with its blocks of 4 bits as Q4_0, which is the faster format of llama.cpp.

    Raises:
        Unavailable: as `read`.
    """
    import gguf

    if to.exists():
        return
    with _readable(path):
        reader = gguf.GGUFReader(path)
        partial = to.with_suffix(".partial")
        writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
                continue
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, inner)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
        small = gguf.GGMLQuantizationType.Q4_0
        for tensor in reader.tensors:
            if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1:
                numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, small), raw_dtype=small)
            else:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(to)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What a reader raises about a file that is cut off or lies about its lengths, as one error."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        raise Unavailable(f"{path.name} is no readable GGUF file: {type(error).__name__}: {error}") from error


def _blocks(kind: str, data: Array) -> Blocks:
    """Rows of blocks as they lie in a file."""
    sizes = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
    if kind not in sizes:
        raise Unavailable(f"blocks of the kind {kind} are not read here")
    raw = np.array(data).view(np.uint8).reshape(len(data), -1, sizes[kind])
    scales = raw[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    if kind == "Q8_0":
        integers = (raw[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
        return Blocks(integers.reshape(len(data), -1), scales, None, 8)
    nibbles = raw[..., -_HALF:]
    integers = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).reshape(len(data), -1)
    if kind == "Q4_0":
        return Blocks(integers, scales, None, 4)
    least = raw[..., 2:4].copy().view(np.float16)[..., 0].astype(np.float32)
    zeros = np.divide(-least, scales, out=np.zeros_like(scales), where=scales != 0)
    return Blocks(integers, scales, zeros, 4)
