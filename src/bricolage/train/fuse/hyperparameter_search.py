"""Searches hyper-parameters with Optuna. Trials are asked for several at a time and trained as one as far as they can be; a pruner
gives up those that are behind, which then cost the others nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from bricolage.base.codec import DecodeError
from bricolage.base.progress import Progress, Silent
from bricolage.base.torch_library import load_torch
from bricolage.errors import BadTrainingCode, BadTrainingSpec, MissingLibrary
from bricolage.train.fuse.alone import LaneResult
from bricolage.train.fuse.fuse import FusedSweep, How, train_sweep
from bricolage.train.fuse.search_spec import Range, Search
from bricolage.train.fuse.sweep import Lane, Sweep
from bricolage.train.step.data import read_data
from bricolage.train.step.spec import Argument

if TYPE_CHECKING:
    import optuna
    import torch
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True)
class Trial:
    """One combination, and what became of it."""

    name: str
    drawn: Mapping[str, Argument]
    steps: int
    stopped: str
    """ "finished", "given up", "early" or "not finite"."""
    loss: float | None
    """On held-out data, when it ended."""
    accuracy: float | None
    how: str
    """How the trials of its group were trained: "serial", "fused" ..."""


@dataclass(frozen=True)
class Searched:
    """All trials, in the order in which they were asked for, and the name of the best."""

    trials: tuple[Trial, ...]
    best: str | None
    """None where no loss was finite."""
    seconds: float
    samples: int
    """That were trained on."""


@dataclass
class SearchedModels:
    """A report, and the state of the best trial's module."""

    report: Searched
    state: dict[str, torch.Tensor] | None

    def save(self, file: IO[bytes]) -> None:
        """Writes the best state, for `torch.load` and `Module.load_state_dict`."""
        load_torch().save(self.state, file)


def tune(
    search: Search,
    how: How = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    memory_limit: int | None = None,
) -> SearchedModels:
    """Runs all trials.

    Args:
        search: what is searched.
        how: as `train_sweep` has it; processes are not used while a pruner watches.
        threads: cores to use; all by default.
        progress: told about trials.
        memory_limit: as `train_sweep` has it.

    Raises:
        MissingLibrary: PyTorch or Optuna is not installed.
        BadTrainingCode: a function that the training step names is not there, fails, or returns something else than it should; or
            there is no held-out data.
        BadTrainingSpec: what was drawn is no training: momentum with Adam, say.
    """
    load_torch()
    study = _study(search)
    shown = progress if progress is not None else Silent()
    if read_data(search.step, search.data).held_out is None:
        raise BadTrainingCode(
            place=search.data, reason="it holds nothing out, and the loss on that is what is searched for"
        )
    shown.start("trials", search.trials)
    began = time.perf_counter()
    trial_log = _Found()
    while len(trial_log.trials) < search.trials:
        asked = {
            f"trial {len(trial_log.trials) + number}": study.ask(_distributions(search.ranges))
            for number in range(min(search.together, search.trials - len(trial_log.trials)))
        }
        try:
            lanes = search.lanes({name: trial.params for name, trial in asked.items()})
        except (DecodeError, ValueError) as error:
            raise BadTrainingSpec(path=search.step.folder, reason=str(error)) from error
        judge = None if search.pruner == "none" else _Judge(asked)
        done = train_sweep(Sweep(search.step, lanes, search.data), how, threads, memory_limit=memory_limit, judge=judge)
        for lane, result in zip(lanes, done.report.lanes, strict=True):
            _tell(study, asked[lane.name], result.stopped, result.held_out_loss)
            trial_log.add(lane, result, asked[lane.name].params, done)
        shown.advance(len(asked))
    shown.finish()
    report = Searched(tuple(trial_log.trials), trial_log.best, time.perf_counter() - began, trial_log.samples)
    return SearchedModels(report, trial_log.state)


@dataclass
class _Found:
    """Trials that have ended, and the best of them."""

    trials: list[Trial] = field(default_factory=list)
    best: str | None = None
    loss: float = math.inf
    state: dict[str, torch.Tensor] | None = None
    samples: int = 0

    def add(self, lane: Lane, result: LaneResult, drawn: Mapping[str, Argument], sweep: FusedSweep) -> None:
        """A trial that ended as one of a sweep."""
        how = next(group.how for group in sweep.report.groups if lane.name in group.lanes)
        value = result.held_out_loss
        self.trials.append(Trial(lane.name, dict(drawn), result.steps, result.stopped, value, result.accuracy, how))
        self.samples += result.steps * lane.batch_size
        if result.stopped in ("finished", "early") and value is not None and value < self.loss:
            self.best, self.loss, self.state = lane.name, value, sweep.states[lane.name]


class _Judge:
    """Gives trials up as the pruner says."""

    def __init__(self, asked: Mapping[str, optuna.Trial]) -> None:
        self._asked = asked
        self._told: dict[tuple[str, int], bool] = {}

    def __call__(self, name: str, epochs: int, loss: float) -> bool:
        """Ways of training that race each other ask the same again: they are told the same."""
        key = name, epochs
        if key not in self._told:
            trial = self._asked[name]
            trial.report(loss, epochs)
            self._told[key] = bool(trial.should_prune())
        return self._told[key]


def _tell(study: optuna.Study, trial: optuna.Trial, stopped: str, value: float | None) -> None:
    from optuna.trial import TrialState

    if stopped == "given up":
        study.tell(trial, state=TrialState.PRUNED)
    elif value is None or not math.isfinite(value):
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, value)


def _study(search: Search) -> optuna.Study:
    try:
        import optuna
    except ImportError as error:
        raise MissingLibrary(name="Optuna", purpose="to search", reason=error, extra="train") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = search.step.seed % 2**32
    samplers: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        # Those asked for together must not all go to the same place.
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
    }
    pruners: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "none": optuna.pruners.NopPruner,
        "asha": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(1, search.epochs, 3),
    }
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(
            direction="minimize", sampler=samplers[search.sampler](), pruner=pruners[search.pruner]()
        )


def _distributions(ranges: Mapping[str, Range]) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    distributions: dict[str, BaseDistribution] = {}
    for name, search_range in ranges.items():
        if search_range.choices:
            distributions[name] = CategoricalDistribution(search_range.choices)
        elif search_range.low is not None and search_range.high is not None:
            kind = (
                IntDistribution(int(search_range.low), int(search_range.high), log=search_range.log)
                if search_range.whole
                else None
            )
            distributions[name] = kind or FloatDistribution(search_range.low, search_range.high, log=search_range.log)
    return distributions
