"""Bytes of memory that a decoder's weights take: where they are packed, compiled, run by other backends, and raced.

Figures were taken from processes with SmolLM2-135M in Q4_1 (docs/log). A file that is mapped counts: each token reads its pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bricolage.device.memory import available_bytes
from bricolage.errors import ModelBeyondMemory
from bricolage.frontends.decoders.decoder_description import DecoderDescription, Matrix, matrix_shape
from bricolage.graph.quantised_blocks import QuantisedBlocks

_COPIES = 4
"""Of the weights, in a process that compiles: as they are read, in the graph's file, packed, and packed as one block."""
_READ = 3
"""Of them, in a process that hands them to another backend: as they are read, in the graph, and in the graph's file."""
_COPIES_OF_A_PROGRAM: Mapping[str, float] = {"openvino": 3.5}
"""Of the weights in each program of a backend that keeps blocks. Other ones unpack them to float32."""
_COPIES_OF_A_FILE = 2
"""Of an untouched file, in a session of ONNX Runtime: its weights as they are read, and packed."""
_FLOAT, _REFERENCE = 4, 12
"""Bytes of a number in float32, and in the reference, which has a matrix in float32 and in float64."""


def count_packed_bytes(decoder: DecoderDescription) -> int:
    """Of the one packing that all programs of our engine share, which is mapped."""
    return sum(_pack(matrix) for matrix in _multiplied(decoder))


def count_compiling_bytes(decoder: DecoderDescription) -> int:
    """Of a process that compiles a program of our engine."""
    return _COPIES * sum(_widen(matrix) for matrix in decoder.matrices())


def count_program_bytes(decoder: DecoderDescription, backend: str) -> int:
    """Of a program of another backend: each has a copy of the weights."""
    copies = _COPIES_OF_A_PROGRAM.get(backend)
    if copies is not None:
        return int(copies * sum(matrix.nbytes for matrix in _multiplied(decoder)))
    return sum(_FLOAT * n * k for n, k in map(matrix_shape, _multiplied(decoder)))


def count_private_bytes(decoder: DecoderDescription, backend: str, programs: int) -> int:
    """Of a process that has compiled a number of programs of another backend."""
    return _READ * decoder.nbytes + programs * count_program_bytes(decoder, backend)


def count_reference_bytes(decoder: DecoderDescription) -> int:
    """Of a process that computes the reference."""
    return decoder.nbytes + _REFERENCE * max(n * k for n, k in map(matrix_shape, decoder.matrices()))


def count_race_bytes(decoder: DecoderDescription, others: Collection[str], file_bytes: int = 0) -> int:
    """Of a race of our engine with `others` and an untouched file of `file_bytes`: the reference, and then our engine with one
    of the others at a time, if there is no room for more."""
    rivals = [*(count_program_bytes(decoder, name) for name in others), _COPIES_OF_A_FILE * file_bytes]
    pair = count_packed_bytes(decoder) + max(rivals)
    return max(count_reference_bytes(decoder), decoder.nbytes + max(count_compiling_bytes(decoder), pair))


def require_memory(wanted: int, purpose: str = "") -> None:
    """
    Raises:
        ModelBeyondMemory: less is free.
    """
    present = available_bytes()
    if wanted > present:
        raise ModelBeyondMemory(wanted=f"{wanted / 1e9:.3g} GB{purpose}", present=f"{present / 1e9:.3g} GB")


def _multiplied(decoder: DecoderDescription) -> list[Matrix]:
    """Matrices that rows are multiplied by: rows of an embedding with a head next to it are read from the file."""
    return list(decoder.matrices())[decoder.head is not None :]


def _pack(matrix: Matrix) -> int:
    """Bytes of a matrix in a packing: integers with scales and minima in halves, where a file has them so, or float32."""
    return matrix.packed_bytes if isinstance(matrix, QuantisedBlocks) else _widen(matrix)


def _widen(matrix: Matrix) -> int:
    """Bytes of blocks, or of numbers in float32."""
    n, k = matrix_shape(matrix)
    return matrix.nbytes if isinstance(matrix, QuantisedBlocks) else _FLOAT * n * k
