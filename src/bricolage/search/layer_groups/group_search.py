"""Partitions of a network into groups of layers: that of Optimus, those that it is compared with, and the best one.

Every search takes the same model of costs. A plan is a row of groups, each of which reads nothing of a later one.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bricolage.search.layer_groups.group_traffic import TrafficModel
from bricolage.search.layer_groups.layer_network import LayerNetwork
from bricolage.work.bits import members


@dataclass(frozen=True)
class LayerPlan:
    """Groups in an order in which they can run, each the numbers of its layers."""

    groups: tuple[tuple[int, ...], ...]
    cost: float
    memory_words: float
    proven: bool = False
    """Whether no partition into groups costs less."""
    priced: int = 0
    """Groups that were priced."""


def unfused(model: TrafficModel) -> LayerPlan:
    """Every layer alone."""
    return _plan(model, [1 << number for number in range(len(model.network.layers))])


def along_an_order(model: TrafficModel) -> LayerPlan:
    """The best groups of neighbours in one breadth-first order: what Efficient-S is in the experiments of Optimus."""
    order = _breadth_first(model.network)
    return _best_row(model, order, lambda _: True)


def linear_chains(model: TrafficModel) -> LayerPlan:
    """The same of groups that are chains without branches: what DNNVM is in the experiments of Optimus."""
    network = model.network
    single = [
        len(network.users[number]) <= 1 and len(network.sources[number]) <= 1 for number in range(len(network.layers))
    ]
    return _best_row(model, _breadth_first(network), lambda group: all(single[number] for number in group))


def hafs(model: TrafficModel, limit_s: float = math.inf) -> LayerPlan | None:
    """The dynamic programme of Optimus; None where it takes longer than `limit_s` seconds.

    A group grows by a successor that no other successor leads to, or ends, and all its successors begin what follows. Growth
    ends where a group does not fit.
    """
    network, deadline = model.network, time.monotonic() + limit_s
    solved: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
    whole = (1 << len(network.layers)) - 1

    def best(done: int, group: int) -> tuple[float, tuple[int, ...]]:
        solution = solved.get((done, group))
        if solution is not None:
            return solution
        if time.monotonic() > deadline:
            raise TimeoutError
        mine = model.of(group, members(group)).cost if group else 0.0
        result: tuple[float, tuple[int, ...]] = (math.inf, ())
        if mine < math.inf:
            if done | group == whole:
                result = (mine, (group,))
            else:
                for number in _ready(network, done | group):
                    result = min(result, best(done, group | 1 << number), key=lambda solution: solution[0])
                if group:
                    cost, groups = best(done | group, 0)
                    if cost + mine < result[0]:
                        result = (cost + mine, (group, *groups))
        solved[done, group] = result
        return result

    previous = sys.getrecursionlimit()
    sys.setrecursionlimit(max(previous, 20 * len(network.layers) + 1000))
    try:
        _, groups = best(0, 0)
    except TimeoutError:
        return None
    finally:
        sys.setrecursionlimit(previous)
    return replace(_plan(model, groups), priced=len(solved))


def least(model: TrafficModel, limit_s: float = math.inf) -> LayerPlan:
    """The best partition, by branch and bound over what is done before each group: a set of layers that holds what these read.

    A group is looked at where what comes before it, the bound of its own layers and the least of what is left are below the best
    plan so far, which the other searches give first. Where `limit_s` seconds end first, the best plan so far.
    """
    deadline = time.monotonic() + limit_s
    plans = [unfused(model), linear_chains(model), along_an_order(model), hafs(model, limit_s / 4)]
    first = min((number for number in plans if number is not None), key=lambda plan: plan.cost)
    return _Partition(model, first.cost, deadline).best() or first


class _Partition:
    """One run of `least`."""

    def __init__(self, model: TrafficModel, limit: float, deadline: float) -> None:
        self._model, self._network, self._deadline = model, model.network, deadline
        self._limit = limit * (1 + 1e-12)
        self._least = _leasts(model)
        count = len(self._network.layers)
        self._whole = (1 << count) - 1
        self._cost: dict[int, float] = {0: 0.0}
        """Of the best groups found for what is done."""
        self._came: dict[int, int] = {}
        """What was done before the last of them."""
        self._waiting: list[dict[int, None]] = [{} for _ in range(count + 1)]
        self._waiting[0][0] = None
        self._priced = 0
        self._ended = False

    def best(self) -> LayerPlan | None:
        """None where time ended before any plan as good as the limit was found."""
        for waiting in self._waiting:
            for done in waiting:
                if not self._ended and self._cost[done] + self._rest(done) < self._limit:
                    self._grow(done)
            waiting.clear()
        if self._whole not in self._cost:
            return None
        groups, at = [], self._whole
        while at:
            groups.append(at ^ self._came[at])
            at = self._came[at]
        return replace(_plan(self._model, groups[::-1]), proven=not self._ended, priced=self._priced)

    def _rest(self, done: int) -> float:
        """No way to do the rest costs less: each of its layers, and what the next layers with weights read of what is done."""
        network, after = self._network, self._whole ^ done
        read = {
            source for number in members(after) if network.layers[number].weighted for source in network.sources[number]
        }
        words = sum(self._output(number) for number in read if done >> number & 1)
        return _left(self._least, after) + self._model.levels.memory_cost * words

    def _output(self, number: int) -> int:
        """The words of a layer's output that a reader reads at least: a window with a stride may pass some by."""
        network = self._network
        layer = network.layers[number]
        sizes = [network.layers[user].size * network.layers[user].stride for user in network.users[number]]
        return network.batch * layer.channels * min(layer.size, *sizes) ** 2

    def _grow(self, done: int) -> None:
        """Looks at all groups that begin here, each a layer more than one before."""
        begin = self._cost[done]
        passed = self._rest(done) - _left(self._least, self._whole ^ done)  # what is done is read again in any case
        seen: set[int] = set()
        todo = [0]
        while todo:
            group = todo.pop()
            for number in _ready(self._network, done | group):
                grown = group | 1 << number
                if grown in seen:
                    continue
                seen.add(grown)
                after = done | grown
                mine = members(grown)
                bound = begin + self._model.bound(mine)
                single = grown.bit_count() == 1  # alone it may move less than its part of a group
                if not single and bound + passed + _left(self._least, self._whole ^ after) >= self._limit:
                    continue
                todo.append(grown)
                if single or bound < self._cost.get(after, math.inf):
                    self._take(done, after, begin + self._model.of(grown, mine).cost)
            if time.monotonic() > self._deadline:
                self._ended = True
                return

    def _take(self, done: int, after: int, total: float) -> None:
        self._priced += 1
        if total < self._cost.get(after, math.inf) and total + self._rest(after) < self._limit:
            self._cost[after] = total
            self._came[after] = done
            self._waiting[after.bit_count()][after] = None
            if after == self._whole:
                self._limit = total


def _leasts(model: TrafficModel) -> list[float]:
    return [model.least(number) for number in range(len(model.network.layers))]


def _left(least: Sequence[float], group: int) -> float:
    return sum(least[number] for number in members(group))


def partition_cost(model: TrafficModel, groups: Sequence[int]) -> LayerPlan:
    """A given division into sets of layers, in an order in which they can run, at the model's price."""
    return _plan(model, groups)


SEARCHES: Mapping[str, Callable[[TrafficModel, float], LayerPlan | None]] = {
    "unfused": lambda model, _: unfused(model),
    "chains": lambda model, _: linear_chains(model),
    "order": lambda model, _: along_an_order(model),
    "hafs": hafs,
    "least": least,
}


def _ready(network: LayerNetwork, done: int) -> list[int]:
    """Layers whose sources are all done, and that are not."""
    return [
        number for number in range(len(network.layers)) if not done >> number & 1 and not network.before[number] & ~done
    ]


def _breadth_first(network: LayerNetwork) -> list[int]:
    missing = [len(set(sources)) for sources in network.sources]
    order = [number for number, count in enumerate(missing) if not count]
    for number in order:
        for user in network.users[number]:
            missing[user] -= 1
            if not missing[user]:
                order.append(user)
    return order


def _best_row(model: TrafficModel, order: Sequence[int], allowed: Callable[[Sequence[int]], bool]) -> LayerPlan:
    count = len(order)
    limit, least_of = unfused(model).cost * (1 + 1e-12), _leasts(model)
    left = [_left(least_of, sum(1 << number for number in order[begin:])) for begin in range(count + 1)]
    best: list[tuple[float, int]] = [(0.0, 0), *[(math.inf, 0)] * count]
    priced = 0
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            mine = sorted(order[begin:end])
            if len(mine) > 1 and (not allowed(mine) or best[begin][0] + model.bound(mine) + left[end] >= limit):
                break
            priced += 1
            total = best[begin][0] + model.of(sum(1 << number for number in mine), mine).cost
            best[end] = min(best[end], (total, begin))
    groups, end = [], count
    while end:
        begin = best[end][1]
        groups.append(sum(1 << number for number in order[begin:end]))
        end = begin
    return replace(_plan(model, groups[::-1]), priced=priced)


def _plan(model: TrafficModel, groups: Sequence[int]) -> LayerPlan:
    numbers = [members(group) for group in groups]
    costs = [model.of(group, mine) for group, mine in zip(groups, numbers, strict=True)]
    return LayerPlan(
        tuple(tuple(mine) for mine in numbers),
        sum(number.cost for number in costs),
        sum(number.memory_words for number in costs),
    )
