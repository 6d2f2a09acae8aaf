"""Blocks of GGUF files as `QuantisedBlocks`: the same integers in another order, and scales that float32 holds as they are.

| type | integers here | block | weight |
|---|---|---:|---|
| Q4_0, Q4_1 | 4 bits | 32 | d · (q - 8), d · q + m |
| Q5_0, Q5_1 | 8 bits, of which 5 are used | 32 | d · (q - 16), d · q + m |
| Q8_0 | 8 bits | 32 | d · q |
| Q4_K, Q5_K | 4 bits, 8 bits | 32 | d · scale · q - dmin · least |
| Q6_K | 8 bits, of which 6 are used | 16 | d · scale · (q - 32) |

Blocks with a minimum have the zero point -minimum / scale, which float32 rounds. The layouts are those of ggml's reference
(https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from bricolage.frontends.decoders.decoder_description import Matrix
from bricolage.frontends.decoders.gguf_file import BlockFormat
from bricolage.graph.quantised_blocks import QuantisedBlocks

_FLOATS: Mapping[str, np.dtype] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
}


_UNPACKED: Mapping[str, int] = {
    "Q4_0": 16 + 4,
    "Q4_1": 16 + 8,
    "Q5_0": 32 + 4,
    "Q5_1": 32 + 8,
    "Q8_0": 32 + 4,
    "Q4_K": 8 * (16 + 8),
    "Q5_K": 8 * (32 + 8),
    "Q6_K": 16 * (16 + 4),
}
"""Bytes of a block's integers, scales and zero points here."""


_SHARED_PARTS: Mapping[str, int] = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 34, "Q5_1": 36, "Q8_0": 34}
"""Bytes of a block where its scale and minimum stay halves, as they are in the file: our engine's packing."""


def count_mapped_bytes(form: BlockFormat, size: int) -> int:
    """Bytes of memory that `size` bytes of a file take at least, packed for our engine: none for floats, which stay where they are
    mapped until they are packed."""
    return size // form.size * _SHARED_PARTS.get(form.name, _UNPACKED.get(form.name, 0))


def count_unpacked_bytes(form: BlockFormat, size: int) -> int:
    """Bytes of memory that `size` bytes of a file take: none for floats, which stay where they are mapped."""
    return size // form.size * _UNPACKED.get(form.name, 0)


class StoredBlocks(QuantisedBlocks):
    """Blocks of a mapped file, which are decoded when their integers or scales are first asked for: what has compiled code never
    asks for those of layers, and for a few rows of the embedding at a time."""

    def __init__(self, form: BlockFormat, rows: np.ndarray) -> None:
        """`rows`: uint8 [rows, bytes of a row]."""
        blocks = rows.shape[1] // form.size
        bits, block = (4 if form.name.startswith("Q4") else 8), (16 if form.name == "Q6_K" else 32)
        self.__dict__.update(bits=bits, block=block, k=blocks * form.count, _form=form, _rows=rows)

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.__dict__["_rows"])

    @property
    def nbytes(self) -> int:
        """Bytes of integers, scales and zero points, once they are decoded."""
        return count_unpacked_bytes(self.__dict__["_form"], self.__dict__["_rows"].nbytes)

    @property
    def packed_bytes(self) -> int:
        """Bytes in our engine's packing."""
        return count_mapped_bytes(self.__dict__["_form"], self.__dict__["_rows"].nbytes)

    @cached_property
    def packed(self) -> np.ndarray:
        """As `QuantisedBlocks`."""
        return self._decoded.packed

    @cached_property
    def scales(self) -> np.ndarray:
        """As `QuantisedBlocks`."""
        return self._decoded.scales

    @cached_property
    def zeros(self) -> np.ndarray | None:
        """As `QuantisedBlocks`."""
        return self._decoded.zeros

    def take_rows(self, rows: np.ndarray) -> StoredBlocks:
        """Some rows, in their order; they are decoded without the others."""
        return StoredBlocks(self.__dict__["_form"], self.__dict__["_rows"][rows])

    @cached_property
    def _decoded(self) -> QuantisedBlocks:
        form, rows = self.__dict__["_form"], self.__dict__["_rows"]
        with np.errstate(all="ignore"):  # numbers of a hostile file are whatever they are
            return _DECODERS[form.name](rows.reshape(len(rows), -1, form.size))


def decode_blocks(form: BlockFormat, rows: np.ndarray) -> Matrix:
    """A matrix from the bytes of its rows, uint8 [rows, bytes of a row]. Floats stay views, and blocks are decoded at their first
    use."""
    if form.name == "BF16":
        import ml_dtypes  # at its first use: importing it takes longer than reading most files

        return np.asarray(rows.view(ml_dtypes.bfloat16))
    return rows.view(_FLOATS[form.name]) if form.name in _FLOATS else StoredBlocks(form, rows)


def choose_format(matrix: Matrix) -> str:
    """The name of the type that holds a matrix as it is: Q4_0, Q4_1 or Q8_0 for blocks of 32, or its floats.

    Raises:
        ValueError: no type does.
    """
    if not isinstance(matrix, QuantisedBlocks):
        return {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[matrix.dtype.name]
    name = {(4, True): "Q4_0", (4, False): "Q4_1", (8, True): "Q8_0"}.get((matrix.bits, matrix.zeros is None))
    if name is None or matrix.block != 32 or matrix.k % 32:
        raise ValueError(f"{matrix.bits} bits in blocks of {matrix.block}")
    return name


def encode_blocks(matrix: Matrix) -> bytes:
    """A matrix in the layout of `choose_format`: what `decode_blocks` reads. Scales and minima are rounded to float16."""
    if not isinstance(matrix, QuantisedBlocks):
        return np.ascontiguousarray(matrix).tobytes()
    name, (n, blocks) = choose_format(matrix), matrix.scales.shape
    integers = matrix.integers().reshape(n, blocks, 32)
    parts = [matrix.scales.astype("<f2")[..., None].view(np.uint8)]
    if matrix.zeros is not None:
        parts.append((-matrix.zeros * matrix.scales).astype("<f2")[..., None].view(np.uint8))
    if name == "Q8_0":
        parts.append(integers ^ np.uint8(128))
    else:
        parts.append(integers[..., :16] | integers[..., 16:] << 4)
    return np.concatenate(parts, axis=-1).tobytes()


def _halves(raw: np.ndarray, at: int) -> np.ndarray:
    """float32 [rows, blocks] from the float16 at a byte of each block."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _pack_fours(low_first: np.ndarray) -> np.ndarray:
    """uint8 [rows, k / 2], neighbours in one byte. `low_first` [rows, blocks, bytes]: low halves of a block's bytes are the first
    half of its numbers, high halves the second."""
    pairs = np.ascontiguousarray(low_first).view("<u2")
    packed = np.empty((*pairs.shape[:2], 2, pairs.shape[2]), np.uint8)
    packed[:, :, 0] = (pairs & 0x0F) | (pairs >> 4 & 0xF0)
    packed[:, :, 1] = (pairs >> 4 & 0x0F) | (pairs >> 8 & 0xF0)
    return packed.reshape(len(low_first), -1)


def _join_halves(low_first: np.ndarray) -> np.ndarray:
    """uint8 [rows, blocks, numbers], one to a byte, of such bytes."""
    return np.concatenate([low_first & 15, low_first >> 4], axis=-1)


def _with_minimum(packed: np.ndarray, scales: np.ndarray, minima: np.ndarray, bits: int) -> QuantisedBlocks:
    """Blocks of 32 whose weights are scale · q + minimum."""
    rows, blocks = scales.shape
    zeros = np.divide(-minima, scales, out=np.zeros_like(scales), where=scales != 0)
    flat = (scales == 0) & (minima != 0)
    if flat.any():  # all weights of a block are its minimum: 1 · (0 - zero point)
        each = packed.reshape(rows, blocks, -1).copy()
        each[flat] = 0
        packed, scales, zeros = each.reshape(rows, -1), np.where(flat, 1, scales), np.where(flat, -minima, zeros)
    return QuantisedBlocks(packed, scales.astype(np.float32), zeros.astype(np.float32), bits, 32, blocks * 32)


def _q4_0(raw: np.ndarray) -> QuantisedBlocks:
    return QuantisedBlocks(_pack_fours(raw[..., 2:]), _halves(raw, 0), None, 4, 32, raw.shape[1] * 32)


def _q4_1(raw: np.ndarray) -> QuantisedBlocks:
    return _with_minimum(_pack_fours(raw[..., 4:]), _halves(raw, 0), _halves(raw, 2), 4)


def _fives(low_first: np.ndarray, fifth_bits: np.ndarray) -> np.ndarray:
    """uint8 [rows, blocks, 32] of low halves, and uint8 [rows, blocks, 4] of one bit for each number."""
    return np.asarray(_join_halves(low_first) | np.unpackbits(fifth_bits, axis=-1, bitorder="little") << 4)


def _q5_0(raw: np.ndarray) -> QuantisedBlocks:
    numbers = _fives(raw[..., 6:], raw[..., 2:6]) + np.uint8(128 - 16)
    return QuantisedBlocks(numbers.reshape(len(raw), -1), _halves(raw, 0), None, 8, 32, raw.shape[1] * 32)


def _q5_1(raw: np.ndarray) -> QuantisedBlocks:
    numbers = _fives(raw[..., 8:], raw[..., 4:8])
    return _with_minimum(numbers.reshape(len(raw), -1), _halves(raw, 0), _halves(raw, 2), 8)


def _q8_0(raw: np.ndarray) -> QuantisedBlocks:
    numbers = (raw[..., 2:] ^ np.uint8(128)).reshape(len(raw), -1)  # with a sign + 128
    return QuantisedBlocks(numbers, _halves(raw, 0), None, 8, 32, raw.shape[1] * 32)


def _scales_of_k(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minima, float32 [rows, 8 · super-blocks]: eight of 6 bits each in 12 bytes, times the super-block's two floats."""
    twelve = raw[..., 4:16]
    first, second, third = twelve[..., :4], twelve[..., 4:8], twelve[..., 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    rows = len(raw)
    scaled = _halves(raw, 0)[..., None] * scales.astype(np.float32)
    least = -_halves(raw, 2)[..., None] * minima.astype(np.float32)
    return scaled.reshape(rows, -1), least.reshape(rows, -1)


def _q4_k(raw: np.ndarray) -> QuantisedBlocks:
    rows, count = raw.shape[:2]
    # 32 bytes are two blocks: low halves the first, high halves the second.
    numbers = _join_halves(raw[..., 16:].reshape(rows, count * 4, 32)).reshape(rows, -1)
    return _with_minimum(numbers[:, ::2] | numbers[:, 1::2] << 4, *_scales_of_k(raw), 4)


def _q5_k(raw: np.ndarray) -> QuantisedBlocks:
    rows, count = raw.shape[:2]
    low = _join_halves(raw[..., 48:].reshape(rows, count, 4, 32)).reshape(rows, count, 8, 32)
    high = raw[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # bit b of 32 bytes: block b
    return _with_minimum((low | high << 4).reshape(rows, -1), *_scales_of_k(raw), 8)


def _q6_k(raw: np.ndarray) -> QuantisedBlocks:
    rows, count = raw.shape[:2]
    # Of 128 numbers, four runs of 32: low halves of 64 bytes, then their high halves; two more bits of 32 bytes.
    low = raw[..., :128].reshape(rows, count, 2, 1, 2, 32) >> np.array([0, 4], np.uint8)[:, None, None] & 15
    high = raw[..., 128:192].reshape(rows, count, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    numbers = (low.reshape(rows, count, 2, 4, 32) | high << 4) + np.uint8(128 - 32)
    scales = _halves(raw, 208)[..., None] * raw[..., 192:208].view(np.int8).astype(np.float32)
    return QuantisedBlocks(
        numbers.reshape(rows, -1), np.ascontiguousarray(scales.reshape(rows, -1)), None, 8, 16, count * 256
    )


_DECODERS: Mapping[str, Callable[[np.ndarray], QuantisedBlocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
