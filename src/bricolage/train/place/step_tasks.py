"""The operators of a training step as what is placed: pieces that run in one go, and which of them share weights.

Operators that follow one another in one module and phase are a piece: between them moves nothing that is worth a device. Of the
update all operators that write one parameter and its state are a piece. Pieces that touch a parameter or its state are of one
colour, so that weights never move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bricolage.train.place.joined_sets import JoinedSets
from bricolage.work.training_step import StepGraph
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor

_STATE = frozenset({"weights", "optimiser state"})
_KEPT = frozenset({"weights", "optimiser state", "gradients", "activations"})
_COUNT_BYTES = 8
"""Of an optimiser's count of steps at most."""


@dataclass(frozen=True)
class StepTasks:
    """Pieces of a step in the order in which they run; all but `graph` by piece."""

    graph: WorkGraph
    """Its tensors are storages that one piece writes and others read."""
    operators: tuple[tuple[int, ...], ...]
    """Numbers of the step's operators."""
    colours: tuple[int, ...]
    """Pieces of one colour touch the same weights; -1 is no colour."""
    backward: tuple[bool, ...]
    """Whether it is of the backward phase or the update."""
    kept_bytes: tuple[int, ...]
    """Weights, state and gradients, each with the first piece that touches it, and activations that are kept for the backward
    phase."""


def tasks_of_step(step: StepGraph) -> StepTasks:
    """The pieces of a step."""
    touched = _touched_storages(step)
    pieces = _pieces(step, touched)
    piece_of = {operator: number for number, piece in enumerate(pieces) for operator in piece}
    names: list[str] = []
    seen: Counter[str] = Counter()
    for piece in pieces:
        name = f"{step.layers[piece[0]] or 'root'} {step.phases[piece[0]]}"
        seen[name] += 1
        names.append(f"{name} {seen[name]}")
    colours = JoinedSets(len(pieces))
    first_of: dict[int, int] = {}
    state: set[int] = set()
    kept = [0] * len(pieces)
    for number, piece in enumerate(pieces):
        for storage in sorted({storage for operator in piece for storage in touched[operator]}):
            first = first_of.setdefault(storage, number)
            if first == number and step.storages[storage].kind in _KEPT:
                kept[number] += step.storages[storage].bytes
            if step.storages[storage].kind in _STATE:
                colours.join(first, number)
                state.add(number)
    graph = WorkGraph(
        tuple(
            WorkOperator(
                name,
                sum(step.work.operators[operator].flops for operator in piece),
                sum(step.work.operators[operator].bytes for operator in piece),
                step.work.operators[piece[0]].op_type,
            )
            for name, piece in zip(names, pieces, strict=True)
        ),
        _tensors(step, piece_of),
    )
    return StepTasks(
        graph,
        tuple(map(tuple, pieces)),
        tuple(colours.representative(number) if number in state else -1 for number in range(len(pieces))),
        tuple(step.phases[piece[0]] in ("backward", "update") for piece in pieces),
        tuple(kept),
    )


def _touched_storages(step: StepGraph) -> list[set[int]]:
    """By operator the numbers of the storages that it reads or makes."""
    touched: list[set[int]] = [set() for _ in step.phases]
    for tensor in step.work.tensors:
        storage = int(tensor.name[1:].partition(".")[0])
        for operator in (tensor.producer, *tensor.consumers):
            if operator != GRAPH_INPUT:
                touched[operator].add(storage)
    for number, storage_facts in enumerate(step.storages):
        if storage_facts.born >= 0:
            touched[storage_facts.born].add(number)
    return touched


def _pieces(step: StepGraph, touched: Sequence[set[int]]) -> list[list[int]]:
    """Operators of one go; those of the update last, by parameter."""
    writers = {tensor.producer for tensor in step.work.tensors} | {storage.born for storage in step.storages}
    runs: list[list[int]] = []
    for operator, (phase, layer) in enumerate(zip(step.phases, step.layers, strict=True)):
        if phase == "update":
            continue
        goes_on = bool(runs) and runs[-1][-1] == operator - 1 and step.phases[runs[-1][0]] == phase
        # What gathers a gradient is of no module, and writes nothing: it goes with what made the gradient.
        if goes_on and (step.layers[runs[-1][0]] == layer or (not layer and operator not in writers)):
            runs[-1].append(operator)
        else:
            runs.append([operator])
    return [*runs, *_update_pieces(step, touched)]


def _update_pieces(step: StepGraph, touched: Sequence[set[int]]) -> list[list[int]]:
    """By parameter the operators that write it and its state."""
    update = [operator for operator, phase in enumerate(step.phases) if phase == "update"]
    joined = JoinedSets(len(step.phases))
    touching: dict[int, list[int]] = {}
    for operator in update:
        for storage in touched[operator]:
            if step.storages[storage].kind in _KEPT:
                touching.setdefault(storage, []).append(operator)
    for together in touching.values():
        for operator in together:
            joined.join(together[0], operator)
    for tensor in step.work.tensors:
        if tensor.producer != GRAPH_INPUT and step.phases[tensor.producer] == "update":
            for reader in tensor.consumers:
                joined.join(tensor.producer, reader)
    last = {joined.representative(operator): operator for operator in update}
    counting = set(last)
    for operator in update:
        if any(
            step.storages[storage].kind != "optimiser state" or step.storages[storage].bytes > _COUNT_BYTES
            for storage in touched[operator]
        ):
            counting.discard(joined.representative(operator))
    following = dict(pairwise(update))
    # A count of steps meets no tensor of the parameter that it counts for; what runs after its last use does.
    for operator in [last[number] for number in sorted(counting)]:
        if operator in following:
            joined.join(operator, following[operator])
    of_parameter: dict[int, list[int]] = {}
    for operator in update:
        of_parameter.setdefault(joined.representative(operator), []).append(operator)
    return list(of_parameter.values())


def _tensors(step: StepGraph, piece_of: dict[int, int]) -> tuple[WorkTensor, ...]:
    tensors = []
    for tensor in step.work.tensors:
        if tensor.producer == GRAPH_INPUT:
            continue
        source = piece_of[tensor.producer]
        readers = tuple(sorted({piece_of[reader] for reader in tensor.consumers} - {source}))
        if readers:
            tensors.append(WorkTensor(tensor.name, source, readers, tensor.bytes))
    return tuple(tensors)
