"""The C library around compiled regions: its header, its tables, and what opens weights and runs them (`c/library.h`).

A region that this process compiles for itself and a model that is exported are the same library with other tables, so that there is
one way to run them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.native.c import read_header
from bricolage.native.ir.tensors import STORED_BYTES

TYPE_NUMBERS = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}
"""ONNX's numbers of element types."""
_PUBLIC, _MACRO = re.compile(r"\bmodel_"), re.compile(r"\bMODEL_")


@dataclass(frozen=True)
class LibraryTensor:
    """An input or an output."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """That it takes."""
        return math.prod(self.shape) * STORED_BYTES[self.dtype]


@dataclass(frozen=True)
class Value:
    """An end of a region: an input or an output of the model, by its number among all of them, or a tensor between regions, by its
    offset in bytes."""

    at: int
    between: bool = False


@dataclass(frozen=True)
class RegionUse:
    """A region of a bucket."""

    program: str
    """C name of its `struct program`."""
    weights: int
    """Bytes from the start of all weights."""
    values: tuple[Value, ...]
    """Its inputs, then its outputs."""


@dataclass(frozen=True)
class LibraryBucket:
    """What the library computes for one binding of the open dimensions."""

    sizes: tuple[int, ...]
    inputs: tuple[LibraryTensor, ...]
    outputs: tuple[LibraryTensor, ...]
    uses: tuple[RegionUse, ...]
    between: int = 0
    """Bytes of the tensors between regions."""


@dataclass(frozen=True)
class InstructionSet:
    """The library for one set of instructions."""

    name: str
    file: str
    """Of its weights."""
    runs: str
    """C of whether the processor has it."""
    weights: np.ndarray
    """Bytes, without the header."""
    buckets: tuple[LibraryBucket, ...]
    embedded: bool = False
    """Whether the weights are in the library."""

    @property
    def symbol(self) -> str:
        """Of weights in the library: sets with the same file have the same."""
        return f"embedded_{_word(self.file)}"


def public_header(name: str) -> str:
    """The header of a library, for its users: every name of it begins with that of the model."""
    return _named(read_header("model"), name)


def internal_header(name: str) -> str:
    """What the parts of a library know of each other."""
    return _named("\n\n".join(read_header(part) for part in ("program", "tables")), name)


def shared_source(name: str) -> str:
    """C that all models have in common; it follows both headers."""
    return _named(read_header("library"), name)


def provider_source(name: str) -> str:
    """C of an execution provider of ONNX Runtime; it follows the public header and the macros of `c/onnxruntime_provider.h`."""
    return _named(read_header("onnxruntime_provider"), name)


def model_source(name: str, dimensions: Sequence[str], sets: Sequence[InstructionSet]) -> str:
    """C of the tables and the public functions of a model; it follows both headers and the programs of all regions. All sets have
    the same buckets and ends."""
    buckets = sets[0].buckets
    values = max(len(use.values) for each in sets for bucket in each.buckets for use in bucket.uses)
    lines = [
        _table("const char *const", "dimension_names", [quote(dimension) for dimension in dimensions]),
        _table("const int64_t", "bucket_sizes", [str(size) for bucket in buckets for size in bucket.sizes]),
    ]
    for number, bucket in enumerate(buckets):
        for side, tensors in (("inputs", bucket.inputs), ("outputs", bucket.outputs)):
            lines += _tensors(f"{side}_{number}", tensors)
    for each in sets:
        for number, bucket in enumerate(each.buckets):
            lines += _uses(f"{each.name}_{number}", bucket)
        lines += [
            f"static const struct bucket buckets_{_word(each.name)}[] = {{",
            *(
                f"  {{inputs_{number}, outputs_{number}, {len(bucket.uses)}, uses_{_word(each.name)}_{number},"
                f" {bucket.between}u}},"
                for number, bucket in enumerate(each.buckets)
            ),
            "};",
        ]
    lines += dict.fromkeys(f"extern const char {each.symbol}[];" for each in sets if each.embedded)
    lines += [f"static int runs_{_word(each.name)}(void) {{ return {each.runs}; }}" for each in sets]
    counts = (len(sets), len(buckets), len(dimensions), len(buckets[0].inputs), len(buckets[0].outputs), max(1, values))
    lines += [
        _table("const struct set", "sets", [_set(each) for each in sets]),
        f"static const struct library library = {{{', '.join(map(str, counts))}, sets, bucket_sizes, dimension_names}};",
    ]
    return _named("\n".join([*lines, read_header("wrappers")]), name)


def _set(each: InstructionSet) -> str:
    """A row of the table of instruction sets."""
    word = _word(each.name)
    digest = ", ".join(str(byte) for byte in hashlib.sha256(np.ascontiguousarray(each.weights).data).digest())
    embedded = each.symbol if each.embedded else "NULL"
    return (
        f"{{{quote(each.name)}, {quote(each.file)}, runs_{word}, {each.weights.nbytes}u, {{{digest}}}, {embedded},"
        f" buckets_{word}}}"
    )


def _tensors(name: str, tensors: Sequence[LibraryTensor]) -> list[str]:
    lines = [
        f"static const int64_t {name}_shape_{number}[] = {{{', '.join(map(str, tensor.shape)) or '0'}}};"
        for number, tensor in enumerate(tensors)
    ]
    rows = [
        f"{{{quote(tensor.name)}, {TYPE_NUMBERS[tensor.dtype]}, {len(tensor.shape)}, {name}_shape_{number}, {tensor.bytes}u}}"
        for number, tensor in enumerate(tensors)
    ]
    return [*lines, _table("const model_tensor", name, rows)]


def _uses(name: str, bucket: LibraryBucket) -> list[str]:
    word = _word(name)
    lines = [
        _table(
            "const struct value",
            f"values_{word}_{i}",
            [f"{{{int(value.between)}, {value.at}u}}" for value in use.values],
        )
        for i, use in enumerate(bucket.uses)
    ]
    rows = [
        f"{{&{use.program}, {use.weights}u, {len(use.values)}, values_{word}_{i}}}" for i, use in enumerate(bucket.uses)
    ]
    return [*lines, _table("const struct use", f"uses_{word}", rows)]


def _table(kind: str, name: str, rows: Sequence[str]) -> str:
    """An array, of one element where it would be empty, which C does not have."""
    return f"static {kind} {name}[{max(1, len(rows))}] = {{{', '.join(rows) or '0'}}};"


def _word(name: str) -> str:
    """A part of a C identifier."""
    return re.sub(r"\W", "_", name)


def quote(text: str) -> str:
    """A C string: names come from the model's file, and may be anything."""
    plain = frozenset(range(32, 127)) - frozenset(b'"\\?')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def _named(text: str, name: str) -> str:
    """Names of the template's model as those of a model of this name."""
    return _MACRO.sub(f"{name.upper()}_", _PUBLIC.sub(f"{name}_", text))
