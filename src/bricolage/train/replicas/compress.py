"""Gradients that are averaged in fewer bytes: the largest elements alone, or factors of low rank. What is left out is not lost: it
is added to the next step's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.replica_spec import Method

if TYPE_CHECKING:
    import torch

FIRST_DENSITY = 0.25
"""Of Deep Gradient Compression's warm-up."""
CRITICAL = 0.5
"""Relative change of a gradient's norm from which on Accordion compresses weakly."""
WEAKER = 4
"""Times as dense."""


class Collective(Protocol):
    """What workers do together, with the bytes that each sends."""

    size: int

    def mean(self, tensor: torch.Tensor) -> None:
        """The mean over workers, in place."""
        ...

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all workers, which are of one shape."""
        ...


class TopK:
    """Deep Gradient Compression: momentum is applied to what has not been sent yet (u ← m u + g, v ← v + u), the largest elements
    of |v| of each tensor are sent, and u and v begin again there."""

    def __init__(self, flat: Flat, method: Method, momentum: float, peers: Collective) -> None:
        import torch

        self._flat, self._method, self._momentum, self._peers = flat, method, momentum, peers
        self._u, self._v = torch.zeros_like(flat.weights), torch.zeros_like(flat.weights)

    def density(self, epoch: float) -> float:
        """Of a moment of the warm-up, in equal factors by epochs."""
        last, count = self._method.density, self._method.warm_up
        if last >= FIRST_DENSITY or epoch >= count:
            return last
        return float(FIRST_DENSITY * (last / FIRST_DENSITY) ** (math.floor(epoch) / count))

    def __call__(self, epoch: float, weak: Sequence[bool]) -> torch.Tensor:
        """The mean gradient over workers, by what they send; momentum included."""
        import torch

        gradient = self._flat.gradient
        if self._method.clip_norm is not None:
            most = self._method.clip_norm * self._peers.size**-0.5
            gradient = gradient * min(1.0, most / max(float(gradient.norm()), 1e-12))
        self._u.mul_(self._momentum).add_(gradient)
        self._v.add_(self._u)
        density = self.density(epoch)
        places, begin = [], 0
        for piece, weakly in zip(self._flat.parts(self._v), weak, strict=True):
            count = max(1, math.ceil(min(1.0, density * (WEAKER if weakly else 1)) * len(piece)))
            places.append(torch.topk(piece.abs(), count, sorted=False).indices + begin)
            begin += len(piece)
        chosen = torch.cat(places)
        values = self._v[chosen]
        self._u[chosen] = 0.0
        self._v[chosen] = 0.0
        total = torch.zeros_like(self._v)
        for index, value in zip(self._peers.gather(chosen.to(torch.int32)), self._peers.gather(values), strict=True):
            total.index_add_(0, index.long(), value)
        return total / self._peers.size


class PowerSGD:
    """M = gradient + error as a matrix for each parameter: P = M Q, averaged and orthogonalised, Q = Mᵀ P, averaged; the gradient
    is taken as P Qᵀ, and the error is what that lacks of M. Vectors, and matrices that would not get smaller, go as they are."""

    def __init__(self, flat: Flat, method: Method, peers: Collective, seed: int) -> None:
        import torch

        self._flat, self._method, self._peers = flat, method, peers
        self._error = torch.zeros_like(flat.weights)
        generator = torch.Generator().manual_seed(seed)
        self._factors: list[torch.Tensor | None] = []
        for parameter in flat.parameters:
            rows = parameter.shape[0] if parameter.ndim > 1 else 1
            columns = parameter.numel() // rows
            small = method.rank * (rows + columns) < rows * columns and rows > 1
            factor = torch.randn(columns, min(method.rank, rows, columns), generator=generator).to(parameter.dtype)
            self._factors.append(factor if small else None)

    def __call__(self, _: float, weak: Sequence[bool]) -> torch.Tensor:
        """The mean gradient over workers, as far as factors of low rank say."""
        import torch

        whole = self._flat.gradient + self._error
        mean_gradient = torch.empty_like(whole)
        places = [place for place, factor in enumerate(self._factors) if factor is not None]
        pieces, out = self._flat.parts(whole), self._flat.parts(mean_gradient)
        matrices = {place: pieces[place].view(self._flat.parameters[place].shape[0], -1) for place in places}
        rank = {place: None if weak[place] else 1 for place in places}
        right = {place: self._factor(place)[:, : rank[place]] for place in places}
        left = self._average_tensors([matrices[place] @ right[place] for place in places])
        left = [torch.linalg.qr(left_factor.nan_to_num()).Q for left_factor in left]  # of a model that diverged, too
        others = [pieces[place] for place in range(len(pieces)) if place not in matrices]
        means = self._average_tensors(
            [matrices[place].t() @ left_factor for place, left_factor in zip(places, left, strict=True)] + others
        )
        for place, left_factor, factor in zip(places, left, means, strict=False):
            torch.mm(left_factor, factor.t(), out=out[place].view(left_factor.shape[0], -1))
            self._factor(place)[:, : rank[place]] = factor
        rest = [place for place in range(len(pieces)) if place not in matrices]
        for place, mean in zip(rest, means[len(places) :], strict=True):
            out[place].copy_(mean)
            pieces[place].copy_(mean)  # nothing of it was left out
        torch.sub(whole, mean_gradient, out=self._error)
        return mean_gradient

    def _factor(self, place: int) -> torch.Tensor:
        factor = self._factors[place]
        assert factor is not None
        return factor

    def _average_tensors(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Their means over workers, in one message."""
        import torch

        if not tensors:
            return []
        together = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._peers.mean(together)
        parts = together.split([tensor.numel() for tensor in tensors])
        return [part.view(original.shape) for part, original in zip(parts, tensors, strict=True)]


def make_compressor(
    flat: Flat, method: Method, momentum: float, peers: Collective, seed: int
) -> Callable[[float, Sequence[bool]], torch.Tensor] | None:
    """What makes the mean gradient of few bytes, from epochs and which tensors are compressed weakly; None where a method sends
    whole gradients."""
    if method.compression == "topk":
        return TopK(flat, method, momentum, peers)
    return PowerSGD(flat, method, peers, seed) if method.compression == "powersgd" else None


class Accordion:
    """Says which tensors are compressed weakly: all at first and after lr has fallen; then those whose accumulated gradient norm
    changed by half or more from one interval to the next."""

    def __init__(self, flat: Flat, interval_epochs: int) -> None:
        self._flat, self._interval = flat, interval_epochs
        self._summed = flat.gradient.clone().zero_()
        self._norms: list[float] | None = None
        self._next = float(interval_epochs)
        self._lr: float | None = None
        self.weak = [True] * len(flat.sizes)

    def seen(self, epoch: float, lr: float, gradient: torch.Tensor) -> None:
        """The mean gradient of a step, the same on all workers."""
        fallen = self._lr is not None and lr < self._lr
        self._lr = lr
        self._summed.add_(gradient)
        if epoch < self._next and not fallen:
            return
        norms = [float(part.norm()) for part in self._flat.parts(self._summed)]
        before = self._norms
        if before is None or fallen:
            self.weak = [True] * len(norms)
        else:
            self.weak = [abs(a - b) >= CRITICAL * max(a, 1e-30) for a, b in zip(before, norms, strict=True)]
        self._norms = norms
        self._summed.zero_()
        self._next = math.floor(epoch) + self._interval


def next_batch(batch: int, cosine: float, target: float) -> int:
    """SimiGrad's next batch of a worker: a tenth more while gradients are less alike than wanted, a tenth less while they are
    more."""
    if cosine < target:
        return max(batch + 1, math.floor(1.1 * batch))
    if cosine > target:
        return max(1, min(batch - 1, math.floor(0.9 * batch)))
    return batch
