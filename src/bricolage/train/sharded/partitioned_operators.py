"""Substitutions that partition an operator and reduce what it gives, where DTensor's propagation has none that has a layout here.

A row of a table is on one device: each looks up the rows that it has, zeros for others, and the sum of all is the answer. The
gradient of the table needs no sum: each device adds up the rows that it has. Unity has these as a linear layer of one-hot rows that
is partitioned along its inner dimension, with a reduction behind it (Unger et al., OSDI 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bricolage.search.sharding.layouts import PARTIAL, REPLICATED, Layout, split_along

if TYPE_CHECKING:
    import torch

Pair = tuple[tuple[Layout, ...], tuple[Layout, ...]]
LOOKUP: Pair = ((split_along(0), REPLICATED), (PARTIAL,))
ROW_SUMS: Pair = ((REPLICATED, REPLICATED), (split_along(0),))
PARTITIONED: dict[str, Pair] = {"aten::embedding": LOOKUP, "aten::embedding_dense_backward": ROW_SUMS}
"""By operator the layouts of what it reads and writes."""


def partitioned_pair(name: str, rows: int, args: Sequence[object], workers: int) -> Pair | None:
    """The layouts of an operator's substitution; None where it has none, or devices do not divide the table evenly.

    Args:
        name: of the operator.
        rows: of the table.
        args: of the call; gradients that are scaled by how often a row is read have no substitution.
        workers: devices.
    """
    scaled = len(args) > 4 and bool(args[4]) if name == "aten::embedding_dense_backward" else False
    return PARTITIONED.get(name) if rows % workers == 0 and not scaled else None


def run_partitioned(name: str, rank: int, workers: int) -> Callable[..., torch.Tensor]:
    """What a device runs in the place of an operator, on its parts."""
    import torch

    def inside(indices: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        local_rows = indices - rank * rows
        return local_rows.clamp(0, rows - 1), ((local_rows >= 0) & (local_rows < rows)).unsqueeze(-1)

    def lookup(table: torch.Tensor, indices: torch.Tensor, *_more: object) -> torch.Tensor:
        local_rows, held = inside(indices, table.shape[0])
        rows_here: torch.Tensor = torch.ops.aten.embedding.default(table, local_rows)
        return rows_here * held

    def row_sums(
        gradient: torch.Tensor, indices: torch.Tensor, count: int, padding: int, *_more: object
    ) -> torch.Tensor:
        rows = count // workers
        local_rows, held = inside(indices, rows)
        held = held & (indices != padding).unsqueeze(-1)
        sums: torch.Tensor = torch.ops.aten.embedding_dense_backward.default(
            gradient * held, local_rows, rows, -1, False
        )
        return sums

    functions: dict[str, Callable[..., torch.Tensor]] = {
        "aten::embedding": lookup,
        "aten::embedding_dense_backward": row_sums,
    }
    return functions[name]
