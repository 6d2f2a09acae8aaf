"""A server: it holds a part of the weights, or of their centre, and answers workers as the method says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bricolage.train.replicas.peers import CENTRE, DONE, Peers, buffer_for
from bricolage.train.replicas.replica_spec import Method
from bricolage.train.step.spec import Optimiser
from bricolage.train.step.step import make_optimiser

if TYPE_CHECKING:
    import torch


@dataclass
class ServerRecord:
    """What a server saw."""

    updates: int = 0
    ahead: int = 0
    """Steps by which a worker went on beyond the slowest, at most."""
    staleness: list[int] = field(default_factory=list)
    """For each gradient: updates of others between reading the weights and applying it."""


class ParameterServer:
    """Serves one part of the weights until all workers are done."""

    def __init__(
        self, weights: torch.Tensor, method: Method, optimiser: Optimiser, peers: Peers, share: float = 1.0
    ) -> None:
        """`share`: of all weights, those that it holds."""
        import torch

        self.weights, self._share = weights.clone(), share
        self._method, self._peers = method, peers
        self._parameter = torch.nn.Parameter(self.weights)
        self._optimiser = make_optimiser(optimiser, [self._parameter])
        self._alpha = method.pull(peers.size)
        self._clocks = dict.fromkeys(range(peers.size), 0.0)
        self._read = dict.fromkeys(range(peers.size), 0)
        """By worker, the number of updates before it last read the weights."""
        self._waiting: dict[int, float] = {}
        """Workers that have had no answer yet, and their clocks."""
        self._gathered: dict[int, torch.Tensor] = {}
        self.seen = ServerRecord()

    def serve(self) -> ServerRecord:
        """Until all are done; the first worker is given the weights at the end."""
        buffer = buffer_for(self.weights)
        done = 0
        while done < self._peers.size:
            sender, kind, clock, lr, vector = self._peers.listen(buffer)
            if kind == DONE:
                done += 1
                self._clocks[sender] = math.inf
            elif kind == CENTRE:
                self._peers.answer(sender, self.weights)
                self.weights.add_(vector - self.weights, alpha=self._alpha)
                self.seen.updates += 1
            else:
                self._gradient(sender, clock, lr, vector)
            self._answer()
        self._peers.answer(0, self.weights)
        self._peers.settle()
        return self.seen

    def _gradient(self, sender: int, clock: float, lr: float, gradient: torch.Tensor) -> None:
        import torch

        self._clocks[sender] = clock
        self._waiting[sender] = clock
        if self._method.kind != "bsp":
            self.seen.staleness.append(self.seen.updates - self._read[sender])
            self._update(gradient, lr)
            return
        self._gathered[sender] = gradient.clone()
        if len(self._gathered) == self._peers.size:
            together = torch.stack([self._gathered[worker] for worker in sorted(self._gathered)])
            self._gathered.clear()
            self._update(together.mean(0), lr)

    def _update(self, gradient: torch.Tensor, lr: float) -> None:
        self._peers.spend("update", self._share)
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        self._parameter.grad = gradient
        self._optimiser.step()
        self.seen.updates += 1

    def _answer(self) -> None:
        """Gives weights to those that may go on."""
        slowest = min(self._clocks.values())
        for worker, clock in list(self._waiting.items()):
            held = {"bsp": worker in self._gathered, "ssp": slowest < clock - self._method.staleness}
            if held.get(self._method.kind, False):
                continue
            del self._waiting[worker]
            if math.isfinite(slowest):
                self.seen.ahead = max(self.seen.ahead, int(clock - slowest))
            self._read[worker] = self.seen.updates
            self._peers.answer(worker, self.weights)
