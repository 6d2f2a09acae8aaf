"""A language model in floats that answers as one in blocks does, for methods that round weights:
`python -m benchmarks.decode.float_model MODEL.gguf FLOATS.gguf [--seed 0]`.

Where only a file in blocks can be had, its numbers lie on the grid of their blocks, and rounding them again would tell nothing. So
columns of each matrix are multiplied by factors from 0.7 to 1.4, and what computes these columns is divided by them: norms, rows of
values (one factor for all heads that share a head of values) and rows of up. Matrices are written in float16, the rest in float32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    matrix_numbers,
)
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.frontends.decoders.gguf_contents import copy_gguf_keys, list_gguf_tensors
from bricolage.frontends.decoders.gguf_file import GgufFile
from bricolage.frontends.decoders.gguf_writer import encode_value, write_gguf_file

_MOSTLY_F16 = 1
"""GGUF's number of what most tensors of the file are."""


def scale_columns(decoder: DecoderDescription, generator: np.random.Generator) -> DecoderDescription:
    """A decoder with the same answers, whose matrices are float16 and on no grid of blocks."""
    layers = tuple(_scale_layer(decoder, layer, generator) for layer in decoder.layers)
    head = None if decoder.head is None else _halves(matrix_numbers(decoder.head))
    return replace(decoder, layers=layers, head=head, embedding=_halves(matrix_numbers(decoder.embedding)))


def _scale_layer(
    decoder: DecoderDescription, layer: LayerDescription, generator: np.random.Generator
) -> LayerDescription:
    def draw(count: int) -> np.ndarray:
        return generator.uniform(0.7, 1.4, count).astype(np.float32)

    attention, inputs, hidden = draw(decoder.width), draw(decoder.width), draw(decoder.feed_forward)
    values = draw(decoder.key_heads * decoder.head_size)
    shared = values.reshape(decoder.key_heads, decoder.head_size).repeat(decoder.heads // decoder.key_heads, axis=0)
    return replace(
        layer,
        query=_halves(_floats(layer.query) * attention),
        key=_halves(_floats(layer.key) * attention),
        value=_halves(_floats(layer.value) * attention / values[:, None]),
        value_bias=None if layer.value_bias is None else layer.value_bias / values,
        output=_halves(_floats(layer.output) * shared.ravel()),
        gate=_halves(_floats(layer.gate) * inputs),
        up=_halves(_floats(layer.up) * inputs / hidden[:, None]),
        down=_halves(_floats(layer.down) * hidden),
        attention_norm=layer.attention_norm / attention,
        feed_forward_norm=layer.feed_forward_norm / inputs,
    )


def _floats(matrix: Matrix) -> np.ndarray:
    return np.asarray(matrix_numbers(matrix), np.float32)


def _halves(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(numbers, np.float16)


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode.float_model", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("floats", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    decoder = scale_columns(read_decoder(given.model), np.random.default_rng(given.seed))
    values, factors = copy_gguf_keys(GgufFile(given.model))
    values["general.file_type"] = encode_value(_MOSTLY_F16)
    write_gguf_file(given.floats, values, [*list_gguf_tensors(decoder), *factors])
    print(f"wrote {given.floats}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
