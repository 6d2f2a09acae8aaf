"""Linear layers, matrix products and tables of embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import TABLE, Call, Joined, Operand, align_tensor, only
from bricolage.train.fuse.operators.general import by_lane

if TYPE_CHECKING:
    import torch


@TABLE.rule("aten::linear")
def linear(call: Call) -> Joined | None:
    """[lanes, ..., F] by weights [lanes, O, F]: one batched product (`baddbmm`). An input that all lanes share is multiplied by all
    their weights at once: one product of width lanes · O."""
    import torch

    x, weight, bias = call.args
    lanes = call.lanes
    if not isinstance(weight, Operand) or not weight.stacked or (bias is not None and not bias.stacked):
        return _shared_weights(call) if not weight.stacked else None
    outputs = weight.shape[0]

    def multiply_batched(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        rows = value.reshape(lanes, -1, x.shape[-1])
        product = torch.bmm(rows, w.mT) if b is None else torch.baddbmm(b.unsqueeze(1), rows, w.mT)
        return product.view(lanes, *x.shape[:-1], outputs)

    def at_once(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        product = torch.nn.functional.linear(
            value, w.reshape(lanes * outputs, -1), None if b is None else b.reshape(-1)
        )
        return product.view(*x.shape[:-1], lanes, outputs).movedim(-2, 0)

    def multiply_expanded(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        return multiply_batched(value.expand(lanes, *value.shape), w, b)

    if x.stacked:
        return Joined({"batched product": multiply_batched, "loop": by_lane(call)})
    return Joined({"one product": at_once, "batched product": multiply_expanded})


def _shared_weights(call: Call) -> Joined | None:
    """Weights that no lane has of its own (constants): the operator itself."""
    x, _, bias = call.args
    if bias is not None and bias.stacked:
        return None
    return only("unchanged", call.target) if x.rank else None


@TABLE.rule("aten::matmul", "aten::bmm", "aten::mm")
def matmul(call: Call) -> Joined | None:
    """Batched products, with the lanes as the outermost batch."""
    import torch

    a, b = call.operands
    if a.rank < 2 or b.rank < 2:
        return None
    rank = max(a.rank, b.rank)
    return only("batched product", lambda x, y: torch.matmul(align_tensor(x, a, rank), align_tensor(y, b, rank)))


@TABLE.rule("aten::addmm")
def addmm(call: Call) -> Joined | None:
    """The same with something added."""
    import torch

    c, a, b = call.operands
    if call.args[3:] not in ((), (1, 1)) or any(value != 1 for value in call.keywords.values()):
        return None
    return only(
        "batched product",
        lambda z, x, y: align_tensor(z, c, 2) + torch.matmul(align_tensor(x, a, 2), align_tensor(y, b, 2)),
    )


@TABLE.rule("aten::embedding")
def embedding(call: Call) -> Joined | None:
    """One table [lanes · V, E], indices shifted by lane · V. Rows of `padding_idx` get no gradient in any lane (HFTA's fused layer
    indexes the dimension of lanes there)."""
    import torch

    weight, index = call.operands
    padding, by_frequency, sparse = call.args[2], call.args[3], call.args[4]
    if not weight.stacked or by_frequency or sparse:
        return None  # sparse gradients were refused before
    rows, width = weight.shape
    starts = torch.arange(call.lanes).mul_(rows)

    def one_table(table: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        shift = starts.to(numbers.device).view(-1, *[1] * index.rank)
        embeddings = torch.nn.functional.embedding(numbers + shift, table.reshape(-1, width))
        if padding >= 0:
            embeddings = torch.where((numbers == padding).unsqueeze(-1), embeddings.detach(), embeddings)
        return embeddings

    return Joined({"one table": one_table, "loop": by_lane(call)})
