"""What a decoder of the llama family is, whatever file it came from: sizes, weights by role, and its tokenizer.

A layer computes, with h the hidden state of a token and n(x) = x / sqrt(mean x² + epsilon) · weight:

    a = output · attention(rotate(query_norm(query · n(h) + query_bias)), rotate(key_norm(key · n(h) + key_bias)), ...)
    h = h + attention_post_norm(a)
    h = h + feed_forward_post_norm(down · (activation(gate · n(h)) · (up · n(h))))

Norms and biases that a model does not have are None and left out. Weights of norms are those that multiply: Gemma's 1 + weight is
folded in. Rows of query and key weights are in Hugging Face's order: a rotation turns the numbers i and i + head_size / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from bricolage.errors import NotALanguageModel
from bricolage.graph.quantised_blocks import QuantisedBlocks

Matrix = QuantisedBlocks | np.ndarray
"""[outputs, inputs]: integers in blocks, or float32, float16 or bfloat16."""
Activation = Literal["silu", "gelu_tanh"]
TokenizerModel = Literal["gpt2", "llama"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens, as GGUF numbers them."""


@dataclass(frozen=True, eq=False)
class RotaryEmbedding:
    """Angles of positions: the numbers i and i + head_size / 2 of a head turn by position · frequencies[i]."""

    base: float
    frequencies: np.ndarray = field(repr=False)
    """float64 [head_size / 2], in radians a position: base^(-2i / head_size), scaled where the model says so."""


def default_frequencies(base: float, head_size: int) -> np.ndarray:
    """float64 [head_size / 2]: base^(-2i / head_size)."""
    return np.asarray(base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size))


@dataclass(frozen=True, eq=False)
class LayerDescription:
    """Weights of one layer."""

    query: Matrix = field(repr=False)
    """[heads · head_size, width]."""
    key: Matrix = field(repr=False)
    """[key_heads · head_size, width]."""
    value: Matrix = field(repr=False)
    """[key_heads · head_size, width]."""
    output: Matrix = field(repr=False)
    """[width, heads · head_size]."""
    gate: Matrix = field(repr=False)
    """[feed_forward, width]."""
    up: Matrix = field(repr=False)
    """[feed_forward, width]."""
    down: Matrix = field(repr=False)
    """[width, feed_forward]."""
    attention_norm: np.ndarray = field(repr=False)
    """float32 [width], as the other norms of a layer's input."""
    feed_forward_norm: np.ndarray = field(repr=False)
    rope: RotaryEmbedding
    query_bias: np.ndarray | None = field(default=None, repr=False)
    """float32, one for each row of the matrix; so are the next two."""
    key_bias: np.ndarray | None = field(default=None, repr=False)
    value_bias: np.ndarray | None = field(default=None, repr=False)
    query_norm: np.ndarray | None = field(default=None, repr=False)
    """float32 [head_size], over the numbers of each head."""
    key_norm: np.ndarray | None = field(default=None, repr=False)
    attention_post_norm: np.ndarray | None = field(default=None, repr=False)
    feed_forward_post_norm: np.ndarray | None = field(default=None, repr=False)
    sliding_window: int | None = None
    """A token sees itself and the `sliding_window` - 1 tokens before it; None for all before it."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Its seven matrices."""
        return self.query, self.key, self.value, self.output, self.gate, self.up, self.down


@dataclass(frozen=True)
class TokenizerDescription:
    """Tokens and how text becomes them."""

    model: TokenizerModel
    """`gpt2`: a letter of a token is a byte, and pairs are merged by `merges`; `llama`: tokens are characters with U+2581 for a
    space, or single bytes as <0x0A>, and neighbours are merged by `scores`."""
    pre: str = ""
    """Name of the expressions that cut a text in front of merging, as GGUF has it."""
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """By number."""
    merges: tuple[str, ...] = field(default=(), repr=False)
    """Pairs with a space between, the first to be merged first."""
    scores: np.ndarray | None = field(default=None, repr=False)
    """float32 [tokens]."""
    types: np.ndarray | None = field(default=None, repr=False)
    """int32 [tokens]: `NORMAL` to `BYTE`; None where all are normal."""
    begin: int | None = None
    """Token that texts begin with."""
    end: int | None = None
    """Token that a text's training examples end with."""
    unknown: int | None = None
    padding: int | None = None
    ends: frozenset[int] = frozenset()
    """Tokens at which generation stops: `end`, ends of turns, and those of generation_config.json."""
    add_begin: bool = False
    """Whether `begin` is put in front of a text."""
    add_end: bool = False
    add_space_prefix: bool = False
    """Whether a text of a `llama` tokenizer gets a space in front."""
    chat_template: str | None = field(default=None, repr=False)
    """In Jinja's language."""
    json: str | None = field(default=None, repr=False)
    """Text of a tokenizer.json, which then says how texts are cut and merged."""


@dataclass(frozen=True)
class SourceFile:
    """A file as it was before it was read. To write to it, cut it or replace it changes one of these."""

    path: Path
    size: int
    inode: int
    modified_ns: int
    changed_ns: int

    @staticmethod
    def of(path: Path) -> SourceFile:
        """The file as it is now.

        Raises:
            OSError: it cannot be looked at.
        """
        facts = path.stat()
        return SourceFile(path.absolute(), facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)


@dataclass(frozen=True, eq=False)
class DecoderDescription:
    """A decoder: sizes that fit each other, weights, and a tokenizer whose tokens are rows of the embedding."""

    architecture: str
    """As GGUF names it: `llama`, `qwen2`, `qwen3`, `gemma2` or `gemma3`."""
    layers: tuple[LayerDescription, ...] = field(repr=False)
    embedding: Matrix = field(repr=False)
    """[vocabulary, width]."""
    norm: np.ndarray = field(repr=False)
    """float32 [width], in front of the head."""
    heads: int
    key_heads: int
    """Heads of keys and values; each serves heads / key_heads heads of queries, in order."""
    head_size: int
    context_length: int
    """Positions that the model was trained with."""
    epsilon: float
    """Of all norms."""
    tokenizer: TokenizerDescription
    head: Matrix | None = field(default=None, repr=False)
    """[vocabulary, width]; None where it is the embedding."""
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    """What rows of the embedding are multiplied by."""
    attention_scale: float | None = None
    """What products of queries and keys are multiplied by; None for head_size^-0.5."""
    attention_softcap: float | None = None
    """c: scaled products s become c · tanh(s / c)."""
    logit_softcap: float | None = None
    sources: tuple[SourceFile, ...] = field(default=(), init=False)
    """Files that its weights and sizes are read from; none where it was made otherwise, and none of a copy with changes."""

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return matrix_shape(self.embedding)[0]

    @property
    def width(self) -> int:
        """Numbers of a token's hidden state."""
        return matrix_shape(self.embedding)[1]

    @property
    def feed_forward(self) -> int:
        """Numbers within a layer's feed-forward network."""
        return matrix_shape(self.layers[0].gate)[0]

    @property
    def query_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return self.head_size**-0.5 if self.attention_scale is None else self.attention_scale

    def matrices(self) -> Iterator[Matrix]:
        """All of them, the head's once."""
        yield self.embedding
        if self.head is not None:
            yield self.head
        for layer in self.layers:
            yield from layer.matrices

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.nbytes for matrix in self.matrices())


def matrix_shape(matrix: Matrix) -> tuple[int, int]:
    """Outputs and inputs."""
    if isinstance(matrix, QuantisedBlocks):
        return matrix.n, matrix.k
    rows, columns = matrix.shape
    return rows, columns


def matrix_numbers(matrix: Matrix) -> np.ndarray:
    """float32 [outputs, inputs]."""
    return matrix.numbers() if isinstance(matrix, QuantisedBlocks) else np.asarray(matrix, np.float32)


def matrix_rows(matrix: Matrix, rows: np.ndarray) -> Matrix:
    """Some rows of it, in their order."""
    return matrix.take_rows(rows) if isinstance(matrix, QuantisedBlocks) else np.asarray(matrix[rows])


def build_checked_decoder(path: Path, build: Callable[[], DecoderDescription]) -> DecoderDescription:
    """The description that `build` makes of a file which nothing is believed of.

    Raises:
        NotALanguageModel: a number in it is out of range, or its sizes do not fit together.
    """
    try:
        with np.errstate(all="ignore"):  # numbers of a hostile file are whatever they are
            decoder = build()
    except OverflowError as error:
        raise NotALanguageModel(path=path, reason=f"a number in it is out of range: {error}") from error
    if (misfit := find_misfit(decoder)) is not None:
        raise NotALanguageModel(path=path, reason=misfit)
    return decoder


def find_misfit(decoder: DecoderDescription) -> str | None:
    """What does not fit together in it, as a sentence; None where everything does."""
    heads, key_heads, size, width = decoder.heads, decoder.key_heads, decoder.head_size, decoder.width
    if not decoder.layers:
        return "it has no layers"
    if min(heads, key_heads, size, width, decoder.vocabulary, decoder.context_length) < 1:
        return f"{heads} heads of {size} for a width of {width} and {decoder.context_length} positions"
    if heads % key_heads or size % 2:
        return f"{heads} heads of {size} numbers share {key_heads} heads of keys"
    if not (math.isfinite(decoder.epsilon) and decoder.epsilon > 0):
        return f"norms add {decoder.epsilon}"
    inner, groups = heads * size, key_heads * size
    wanted = {"query": (inner, width), "key": (groups, width), "value": (groups, width), "output": (width, inner)}
    for number, layer in enumerate(decoder.layers):
        feed = decoder.feed_forward
        shapes = {**wanted, "gate": (feed, width), "up": (feed, width), "down": (width, feed)}
        for (role, shape), matrix in zip(shapes.items(), layer.matrices, strict=True):
            if matrix_shape(matrix) != shape:
                return f"layer {number} has {matrix_shape(matrix)} weights for {role}, not {shape}"
        vectors: tuple[tuple[str, np.ndarray | None, int], ...] = (
            ("attention_norm", layer.attention_norm, width),
            ("feed_forward_norm", layer.feed_forward_norm, width),
            ("attention_post_norm", layer.attention_post_norm, width),
            ("feed_forward_post_norm", layer.feed_forward_post_norm, width),
            ("query_norm", layer.query_norm, size),
            ("key_norm", layer.key_norm, size),
            ("query_bias", layer.query_bias, inner),
            ("key_bias", layer.key_bias, groups),
            ("value_bias", layer.value_bias, groups),
            ("rope", layer.rope.frequencies, size // 2),
        )
        for role, vector, length in vectors:
            if vector is not None and vector.shape != (length,):
                return f"layer {number} has {vector.shape} numbers for {role}, not ({length},)"
        if not np.isfinite(layer.rope.frequencies).all():
            return f"layer {number} has rotary frequencies that are no numbers"
        if layer.sliding_window is not None and layer.sliding_window < 1:
            return f"layer {number} sees {layer.sliding_window} tokens"
    if decoder.norm.shape != (width,):
        return f"the last norm has {decoder.norm.shape} numbers, not ({width},)"
    if decoder.head is not None and matrix_shape(decoder.head) != (decoder.vocabulary, width):
        return f"the head has {matrix_shape(decoder.head)} weights, not {(decoder.vocabulary, width)}"
    return _find_tokenizer_misfit(decoder.tokenizer, decoder.vocabulary)


def _find_tokenizer_misfit(tokenizer: TokenizerDescription, vocabulary: int) -> str | None:
    count = len(tokenizer.tokens)
    if count > vocabulary:
        return f"the tokenizer has {count} tokens, and the embedding {vocabulary} rows"
    for name, array in (("scores", tokenizer.scores), ("types", tokenizer.types)):
        if array is not None and array.shape != (count,):
            return f"the tokenizer has {array.size} {name} for {count} tokens"
    special = (tokenizer.begin, tokenizer.end, tokenizer.unknown, tokenizer.padding, *sorted(tokenizer.ends))
    for token in special:
        if token is not None and not 0 <= token < vocabulary:
            return f"token {token} is named, and there are {vocabulary}"
    return None
