"""Methods that keep replicas synchronised: what each worker does, step by step; one class for each kind of method.

A synchroniser is called before a step, and after its gradient is there. `finish` leaves the weights that training ends with on
the first worker."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from bricolage.train.replicas.compress import Accordion, make_compressor, next_batch
from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.peers import CENTRE, DONE, GRADIENT, WEIGHTS, Helper, Peers, buffer_for
from bricolage.train.replicas.replica_spec import Method
from bricolage.train.step.spec import Optimiser
from bricolage.train.step.step import make_optimiser

if TYPE_CHECKING:
    import torch


class Synchroniser:
    """Replicas that are not synchronised: a local optimiser on the flat weights."""

    def __init__(self, flat: Flat, method: Method, optimiser: Optimiser, peers: Peers, seed: int) -> None:
        import torch

        self.flat, self.method, self.peers = flat, method, peers
        self.module: torch.nn.Module = flat.module
        """What the forward phase calls."""
        self.weight = 1.0 / peers.size
        """This replica's part in the sum of gossip."""
        self.batch: int | None = None
        """Samples of the next step, where the method says."""
        self.random = random.Random(seed * 1_000_003 + peers.rank)
        self.steps = 0
        self.lr = self.epoch = 0.0
        self.parameter = torch.nn.Parameter(flat.weights)
        self.optimiser = self.local(optimiser)

    def local(self, optimiser: Optimiser) -> torch.optim.Optimizer:
        """The optimiser of this process."""
        return make_optimiser(optimiser, [self.parameter])

    def begin(self, lr: float, epoch: float) -> None:
        """Before the forward phase. `epoch`: samples of all workers, this step's included, by those that there are."""
        self.lr, self.epoch = lr, epoch
        self.prepare()

    def step(self) -> None:
        """After the backward phase."""
        self.exchange()
        self.steps += 1

    def prepare(self) -> None:
        """What a method does before the forward phase."""

    def exchange(self) -> None:
        """Brings the gradient, or the weights, together."""
        raise NotImplementedError

    def finish(self) -> None:
        """The end."""

    def update(self, gradient: torch.Tensor | None = None) -> None:
        """Applies a gradient, by default this worker's own."""
        self.peers.spend("update")
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr
        self.parameter.grad = self.flat.gradient if gradient is None else gradient
        self.optimiser.step()


class AllReduce(Synchroniser):
    """Gradients are averaged, whole or compressed; all replicas are equal."""

    def __init__(self, flat: Flat, method: Method, optimiser: Optimiser, peers: Peers, seed: int) -> None:
        super().__init__(flat, method, optimiser, peers, seed)
        self._compressor = make_compressor(flat, method, optimiser.momentum, peers, seed)
        self._accordion = Accordion(flat, method.accordion) if method.accordion else None
        self._whole = [method.compression == "powersgd"] * len(flat.sizes)
        plain = self._compressor is None and method.similarity is None
        self._bucketed = method.wait_free and plain and peers.size > 1
        if self._bucketed:
            self.module = peers.parallel(flat.module)

    def local(self, optimiser: Optimiser) -> torch.optim.Optimizer:
        """Without momentum where the compressor corrects for it."""
        from dataclasses import replace

        return super().local(replace(optimiser, momentum=0.0) if self.method.compression == "topk" else optimiser)

    def exchange(self) -> None:
        """See `Synchroniser`."""
        flat = self.flat
        if self._compressor is not None:
            weak = self._accordion.weak if self._accordion is not None else self._whole
            self.peers.spend("compression")
            gradient = self._compressor(self.epoch, weak)
            if self._accordion is not None:
                self._accordion.seen(self.epoch, self.lr, gradient)
            self.update(gradient)
            return
        if self._bucketed:
            self.peers.complete_buckets(flat.gradient)
        elif self.method.similarity is not None:
            self._compare(self.method.similarity)
        else:
            self.peers.mean(flat.gradient)
        self.update()

    def _compare(self, target: float) -> None:
        import torch

        half = self.flat.gradient.clone()
        self.peers.mean_of_half(half)
        self.peers.mean(self.flat.gradient)
        other = 2.0 * self.flat.gradient - half
        cosine = torch.nn.functional.cosine_similarity(half, other, dim=0).reshape(1)
        self.peers.agree(cosine)  # rounding may differ
        assert self.batch is not None
        self.batch = next_batch(self.batch, float(cosine), target)


class LocalSGD(Synchroniser):
    """Each updates by itself, and weights are averaged every `period` steps; at once, or from the first decay of lr on."""

    _first_lr: float | None = None

    def exchange(self) -> None:
        """See `Synchroniser`."""
        self._first_lr = self.lr if self._first_lr is None else self._first_lr
        waiting = self.method.kind == "postlocal" and self.lr >= self._first_lr
        if waiting or self.method.period == 1:
            self.peers.mean(self.flat.gradient)
            self.update()
            return
        self.update()
        if (self.steps + 1) % self.method.period == 0:
            self.peers.mean(self.flat.weights)

    def finish(self) -> None:
        """See `Synchroniser`."""
        self.peers.mean(self.flat.weights)


class ServerSynchroniser(Synchroniser):
    """Servers hold the weights that training ends with, or their centre."""

    def __init__(self, flat: Flat, method: Method, optimiser: Optimiser, peers: Peers, seed: int) -> None:
        super().__init__(flat, method, optimiser, peers, seed)
        self._shards = flat.shards(method.servers)

    def finish(self) -> None:
        """See `Synchroniser`."""
        for shard, (begin, end) in enumerate(self._shards):
            self.peers.tell(self.peers.size + shard, DONE, self.flat.weights[begin:end])
        if self.peers.rank == 0:
            for shard, (begin, end) in enumerate(self._shards):
                self.peers.hear(self.peers.size + shard, self.flat.weights[begin:end])
        self.peers.settle()


class Pushing(ServerSynchroniser):
    """Gradients go to servers, which update and give weights back: BSP, ASP, SSP."""

    def __init__(self, flat: Flat, method: Method, optimiser: Optimiser, peers: Peers, seed: int) -> None:
        super().__init__(flat, method, optimiser, peers, seed)
        self._missing: list[int] = []
        if method.wait_free:
            ends = [end for _, end in self._shards]
            at = 0
            counts = [0] * len(ends)
            for parameter, size in zip(flat.parameters, flat.sizes, strict=True):
                at += size
                shard = next(number for number, end in enumerate(ends) if at <= end)
                counts[shard] += 1
                parameter.register_post_accumulate_grad_hook(self._ready(shard))
            self._counts = counts

    def _ready(self, shard: int) -> Callable[[torch.Tensor], None]:
        def act(_: torch.Tensor) -> None:
            self._missing[shard] -= 1
            if self._missing[shard] == 0:
                self._push(shard)

        return act

    def prepare(self) -> None:
        """Shards leave when their gradients are complete."""
        self._missing = list(self._counts) if self.method.wait_free else []

    def _push(self, shard: int) -> None:
        begin, end = self._shards[shard]
        to = self.peers.size + shard
        self.peers.tell(to, GRADIENT, self.flat.gradient[begin:end], self.steps + 1, self.lr)

    def exchange(self) -> None:
        """See `Synchroniser`."""
        for shard in range(len(self._shards)):
            if not self.method.wait_free or self._missing[shard] > 0:  # a parameter that took no part has no gradient
                self._push(shard)
        for shard, (begin, end) in enumerate(self._shards):
            self.peers.hear(self.peers.size + shard, self.flat.weights[begin:end])


class Elastic(ServerSynchroniser):
    """EASGD: each updates by itself; every `period` steps it and the centre move towards each other."""

    def __init__(self, flat: Flat, method: Method, optimiser: Optimiser, peers: Peers, seed: int) -> None:
        super().__init__(flat, method, optimiser, peers, seed)
        self._alpha = method.pull(peers.size)
        self._centre = flat.weights.clone()

    def exchange(self) -> None:
        """See `Synchroniser`."""
        weights = self.flat.weights
        if self.steps % self.method.period == 0:
            for shard, (begin, end) in enumerate(self._shards):
                self.peers.tell(self.peers.size + shard, CENTRE, weights[begin:end], self.steps)
            for shard, (begin, end) in enumerate(self._shards):
                self.peers.hear(self.peers.size + shard, self._centre[begin:end])
            weights.add_(self._centre - weights, alpha=self._alpha)
        self.update()


class Neighbours(Synchroniser):
    """AD-PSGD on a bipartite graph: even workers ask a random odd one, while they compute a gradient, to average weights half and
    half; odd ones answer at any time. The gradient is applied to the average."""

    def __init__(self, flat: Flat, method: Method, optimiser: Optimiser, peers: Peers, seed: int) -> None:
        super().__init__(flat, method, optimiser, peers, seed)
        import torch

        # What neighbours read and write, apart from the weights that the gradient is being computed at.
        self._shared = flat.weights.clone()
        self.parameter = torch.nn.Parameter(self._shared)
        self.optimiser = make_optimiser(optimiser, [self.parameter])
        self._lock = threading.Lock()
        self._active = peers.rank % 2 == 0
        self._passive = list(range(1, peers.size, 2))
        self._helper: Helper | None = None if self._active else peers.start_helper(self._respond)

    def prepare(self) -> None:
        """See `Synchroniser`."""
        with self._lock:
            self.flat.weights.copy_(self._shared)
        if self._active:
            self._helper = self.peers.start_helper(self._average)

    def _average(self) -> None:
        import torch

        other = self.random.choice(self._passive)
        theirs = torch.empty_like(self._shared)
        self.peers.tell(other, WEIGHTS, self._shared)
        self.peers.hear(other, theirs)
        self._shared.add_(theirs).mul_(0.5)

    def _respond(self) -> None:
        buffer = buffer_for(self._shared)
        left = len(range(0, self.peers.size, 2))
        while left:
            sender, kind, _, _, theirs = self.peers.listen(buffer)
            if kind == DONE:
                left -= 1
                continue
            with self._lock:
                self.peers.answer(sender, self._shared)
                self._shared.add_(theirs).mul_(0.5)

    def exchange(self) -> None:
        """See `Synchroniser`."""
        if self._active:
            self._join()
        with self._lock:
            self.update()

    def _join(self) -> None:
        assert self._helper is not None
        self._helper.join()

    def finish(self) -> None:
        """The mean of all."""
        if self._active:
            for other in self._passive:
                self.peers.tell(other, DONE, self._shared)
        else:
            self._join()
        self.peers.settle()
        self.flat.weights.copy_(self._shared)
        self.peers.mean(self.flat.weights)


class Gossip(Synchroniser):
    """GoSGD: after a step a worker sends, now and then, its weights and half of its part in the sum to a random other one, who adds
    them to its own in proportion. Parts add up to one at all times."""

    def __init__(self, flat: Flat, method: Method, optimiser: Optimiser, peers: Peers, seed: int) -> None:
        super().__init__(flat, method, optimiser, peers, seed)
        self._lock = threading.Lock()
        self._arrived: list[tuple[float, torch.Tensor]] = []
        self._others = [peer for peer in range(peers.size) if peer != peers.rank]
        self._helper = peers.start_helper(self._receive)

    def _receive(self) -> None:
        buffer = buffer_for(self.flat.weights)
        left = len(self._others)
        while left:
            _, kind, weight, _, theirs = self.peers.listen(buffer)
            if kind == DONE:
                left -= 1
                continue
            with self._lock:
                self._arrived.append((weight, theirs.clone()))

    def prepare(self) -> None:
        """See `Synchroniser`."""
        self._add_arrived()

    def _add_arrived(self) -> None:
        self._helper.check()
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for weight, theirs in arrived:
            total = self.weight + weight
            self.flat.weights.mul_(self.weight / total).add_(theirs, alpha=weight / total)
            self.weight = total

    def exchange(self) -> None:
        """See `Synchroniser`."""
        self.update()
        if self._others and self.random.random() < self.method.probability:
            self.weight /= 2.0
            self.peers.tell(self.random.choice(self._others), WEIGHTS, self.flat.weights, self.weight)

    def finish(self) -> None:
        """The sum of all in their parts."""
        for other in self._others:
            self.peers.tell(other, DONE, self.flat.weights)
        self._helper.join()
        self._add_arrived()
        self.peers.settle()
        self.flat.weights.mul_(self.weight * self.peers.size)
        self.peers.mean(self.flat.weights)


SYNCHRONISERS: dict[str, type[Synchroniser]] = {
    "allreduce": AllReduce,
    "bsp": Pushing,
    "asp": Pushing,
    "ssp": Pushing,
    "easgd": Elastic,
    "adpsgd": Neighbours,
    "gosgd": Gossip,
    "local": LocalSGD,
    "postlocal": LocalSGD,
}
