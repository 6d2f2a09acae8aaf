"""A language model's matrices in blocks of 4 or 8 bits, layer by layer.

With a text, GPTQ rounds a layer by what reaches it through the layers that are rounded already, so that it makes up for their
errors too; only one layer's sums of products are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    matrix_numbers,
    matrix_shape,
)
from bricolage.frontends.decoders.gguf_contents import EMBEDDING, HEAD, MATRIX_NAMES
from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.quantization.gguf_grids import BITS, SIZE, GgufFormat, choose_grid, round_matrix
from bricolage.quantization.outcome import OperatorOutcome
from bricolage.verify.decoder_reference import Factor, compute_layer, embed_tokens

_FACTORS: dict[str, Factor] = {
    "query": "attention",
    "key": "attention",
    "value": "attention",
    "output": "output",
    "gate": "feed_forward",
    "up": "feed_forward",
    "down": "down",
}
"""What each matrix is multiplied with."""
_LARGEST_HESSIAN = 1 << 14
"""Columns of a matrix beyond which GPTQ's k³ steps take minutes."""


@dataclass(frozen=True)
class BlockPlan:
    """How matrices are rounded."""

    form: GgufFormat
    """Of the layers' matrices."""
    ends: GgufFormat = "q8_0"
    """Of the embedding and the head: each token is one row of the first, and every logit a row of the second."""
    searched: bool = True
    """Whether scales are searched, or follow from ranges."""
    keep_float: frozenset[str] = frozenset()
    """Names of tensors, or roles such as `ffn_down`."""


def round_decoder(
    decoder: DecoderDescription,
    plan: BlockPlan,
    windows: Sequence[Sequence[int]] = (),
    show: Callable[[int], None] = lambda _: None,
) -> tuple[DecoderDescription, tuple[OperatorOutcome, ...]]:
    """The decoder with its matrices in blocks, and what became of each.

    Args:
        decoder: with floats. It is not changed.
        plan: how.
        windows: texts of calibration as tokens, for GPTQ; without them each weight is rounded to the nearest.
        show: is told how many layers are done.
    """
    rounding = _Rounding(plan)
    embedding = rounding.round(EMBEDDING, "token_embd", decoder.embedding, plan.ends)
    head = None if decoder.head is None else rounding.round(HEAD, "output", decoder.head, plan.ends)
    hidden = [embed_tokens(replace(decoder, embedding=embedding), window, np.float32) for window in windows]
    layers: list[LayerDescription] = []
    for number, layer in enumerate(decoder.layers):
        hessians = _sum_products(decoder, layer, hidden)
        matrices = {
            role: rounding.round(
                f"blk.{number}.{name}.weight", name, getattr(layer, role), plan.form, hessians.get(_FACTORS[role])
            )
            for role, name in MATRIX_NAMES.items()
        }
        layers.append(replace(layer, **matrices))  # type: ignore[arg-type]
        if number + 1 < len(decoder.layers):
            hidden = [compute_layer(decoder, layers[-1], rows) for rows in hidden]
        show(number + 1)
    return replace(decoder, embedding=embedding, head=head, layers=tuple(layers)), tuple(rounding.outcomes)


def list_matrix_names(decoder: DecoderDescription) -> dict[str, str]:
    """Names of tensors with their roles."""
    names = {EMBEDDING: "token_embd"} | ({} if decoder.head is None else {HEAD: "output"})
    return names | {
        f"blk.{number}.{name}.weight": name for number in range(len(decoder.layers)) for name in MATRIX_NAMES.values()
    }


def _sum_products(
    decoder: DecoderDescription, layer: LayerDescription, hidden: Sequence[np.ndarray]
) -> dict[Factor, np.ndarray]:
    """Sums of xᵀx of the factors of a layer; nothing without texts, nor of factors that are too wide."""
    sums: dict[Factor, np.ndarray] = {}

    def add(factor: Factor, rows: np.ndarray) -> None:
        if rows.shape[1] <= _LARGEST_HESSIAN:
            sums[factor] = sums.get(factor, 0.0) + rows.T @ rows

    for rows in hidden:
        compute_layer(decoder, layer, rows, add)
    return {factor: total for factor, total in sums.items() if np.isfinite(total).all()}


class _Rounding:
    """Rounds matrices and remembers what became of them."""

    def __init__(self, plan: BlockPlan) -> None:
        self._plan = plan
        self.outcomes: list[OperatorOutcome] = []

    def round(
        self, name: str, role: str, matrix: Matrix, form: GgufFormat, hessian: np.ndarray | None = None
    ) -> Matrix:
        """A matrix in blocks; itself where it stays float."""
        kept = self._plan.keep_float
        reason, columns = "", matrix_shape(matrix)[1]
        if name in kept or role in kept or name.removesuffix(".weight") in kept:
            reason = "it was asked for"
        elif columns % SIZE:
            reason = f"its {columns} columns are no whole number of blocks of {SIZE}"
        if not reason:
            grid = choose_grid(form, searched=self._plan.searched)
            floats = matrix if not isinstance(matrix, QuantisedBlocks) else matrix_numbers(matrix)
            try:
                blocks = round_matrix(floats, form, grid, hessian)
            except ValueError as error:
                reason = str(error)
            else:
                error_norm = _weight_error(floats, blocks)
                self.outcomes.append(OperatorOutcome(name, form.upper(), True, "", None, error_norm, BITS[form]))
                return blocks
        self.outcomes.append(OperatorOutcome(name, role, False, reason))
        return matrix


def _weight_error(floats: np.ndarray, blocks: QuantisedBlocks) -> float:
    """Relative norm of what rounding takes."""
    numbers = np.asarray(floats, np.float32)
    norm = float(np.linalg.norm(numbers))
    return float(np.linalg.norm(blocks.numbers() - numbers)) / norm if norm else 0.0
