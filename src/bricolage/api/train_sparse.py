"""A sparse network whose rows are divided between processes: planned, kept as a folder, run and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from bricolage.base.codec import DecodeError, decode
from bricolage.errors import BadOption
from bricolage.train.sparse.sparse_plan import (
    HEADER,
    SparseOptions,
    SparsePlan,
    plan_sparse_network,
    read_sparse_plan,
)
from bricolage.train.sparse.sparse_runs import SparseOutcome, list_modes, run_sparse_plan
from bricolage.train.sparse.weighted_layers import Activation, read_sparse_network


def is_sparse_plan(paths: Sequence[Path]) -> bool:
    """Whether this is the folder of a plan."""
    return len(paths) == 1 and (paths[0] / HEADER).is_file()


def open_sparse(folder: Path, processes: int | None = None) -> SparsePlan:
    """The plan in a folder.

    Args:
        folder: the plan's.
        processes: that it has to be for; None: any number.

    Raises:
        MissingFile, BadSparseNetwork: there is none, or it is damaged.
        BadOption: it is for another number of processes.
    """
    plan = read_sparse_plan(folder)
    if processes not in (None, plan.processes):
        advice = f"The plan is for {plan.processes}; make another from its model or matrices"
        raise BadOption(option="--processes", value=processes, advice=advice)
    return plan


def make_sparse_options(**values: object) -> SparseOptions:
    """Options of a plan, by the names of `SparseOptions`.

    Raises:
        BadOption: one of them is out of range.
    """
    try:
        return decode(SparseOptions, values, "")
    except DecodeError as error:
        name = str(error).lstrip(".").split(" ")[0].rstrip(":")
        raise BadOption(option=f"--{name}", value=values.get(name), advice=f"{error}".lstrip(".")) from error


def plan_sparse(
    paths: Sequence[Path], options: SparseOptions, *, activation: str = "relu", repeat: int = 1
) -> SparsePlan:
    """Reads a network and divides its rows.

    Args:
        paths: one ONNX or `.pt2` model, or a matrix [rows, inputs] for each layer.
        options: how rows are divided.
        activation: behind each matrix: relu, tanh, sigmoid or none; a model has its own.
        repeat: how often the layers follow one another.

    Raises:
        MissingFile, NotAModel, BadSparseNetwork: the network cannot be used.
        MissingLibrary: mtkahypar is not installed, and the method is `hypergraph`.
        BadOption: there are more processes than rows, or there is no such activation.
    """
    if activation not in get_args(Activation):
        raise BadOption(
            option="--activation", value=activation, advice=f"Give one of: {', '.join(get_args(Activation))}"
        )
    layers = read_sparse_network(paths, activation=cast(Activation, activation), repeat=repeat)
    return plan_sparse_network(layers, options)


def run_sparse(
    plan: SparsePlan, folder: Path | None = None, *, samples: int = 16, threads: int | None = None
) -> SparseOutcome:
    """Runs a plan on as many processes as it is for, with an exchange before each layer, and with fewer where it has them.

    Args:
        plan: the network and its division.
        folder: where the plan lies; None: nowhere.
        samples: that go through at once.
        threads: of each process; by default cores divided by processes.

    Raises:
        MissingLibrary, TrainingWorkerFailed, WrongExchange: as `run_sparse_plan`.
    """
    return run_sparse_plan(plan, folder, list_modes(plan), samples=samples, threads=threads)
