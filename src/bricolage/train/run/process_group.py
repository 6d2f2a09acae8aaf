"""Processes that work on one training job together, each of which ends with an answer (`rank`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bricolage.base.codec import DecodeError, decode, encode
from bricolage.errors import TrainingWorkerFailed
from bricolage.measure.group import JOIN_S, ProcessGroup
from bricolage.measure.launch import EntryPoint
from bricolage.train.run.rank import ENTRY, Rank
from bricolage.train.step.imports import search_path

J = TypeVar("J")
A = TypeVar("A")


def open_group(entry: EntryPoint, size: int, threads: int) -> ProcessGroup:
    """Processes that import what a spec names as this one does, ready for commands.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not get ready.
    """
    return ProcessGroup(entry, size, threads, {"PYTHONPATH": search_path()})


def run_group(
    work: Callable[[J, Rank], A],
    jobs: Sequence[J],
    answer: type[A],
    threads: int,
    seconds: float,
    keep: Callable[[Path], object] | None = None,
    wait_s: float = JOIN_S,
) -> list[A]:
    """Runs a process for each job. Several meet first.

    Args:
        work: what each does with its job; a function of a module.
        jobs: dataclasses of one type, by rank.
        answer: the dataclass that `work` returns.
        threads: of each.
        seconds: after which they are ended, once they have met.
        wait_s: for which one waits for another.
        keep: given the folder of the group when all have answered, before it is deleted.

    Raises:
        TrainingWorkerFailed: one of them fails, ends otherwise, or does not end.
    """
    places = {"work": _place(work), "kind": _place(type(jobs[0]))}
    with open_group(ENTRY, len(jobs), threads) as group:
        if len(jobs) > 1:
            group.join(wait_s)
        given = [{**places, "job": encode(job), "folder": str(group.folder)} for job in jobs]
        replies = group.ask_each("work", seconds, given)
        try:
            answers = [decode(answer, facts["answer"], "answer") for facts in replies]
        except DecodeError as error:
            raise TrainingWorkerFailed(reason=str(error)) from error
        if keep is not None:
            keep(group.folder)
        return answers


def _place(one: Callable[..., object]) -> str:
    return f"{one.__module__}:{one.__qualname__}"
