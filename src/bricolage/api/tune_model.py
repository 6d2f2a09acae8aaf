"""What `bricolage tune` asks for: kernels searched for a model as the words of a command say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bricolage.api.tune import tune
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.driver.joint_tuning import parse_order
from bricolage.driver.model_tuning import Tuned
from bricolage.tune.tuning_options import TuningOptions


@dataclass(frozen=True)
class TuneRequest:
    """How kernels are searched, in the words of a command. Whether there is such a technique, `tune_kernels` says.

    Raises:
        BadOption: there is no such order.
    """

    order: str = "joint"
    technique: str = "bandit"
    resume: bool = False
    """Whether the search of before goes on; without it, its best configurations are measured again."""
    trials: int | None = None
    """Choices after which a search ends, even if the budget allows more."""

    def __post_init__(self) -> None:
        parse_order(self.order)


def tune_kernels(
    source: Path,
    options: Options,
    request: TuneRequest,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Searches for better kernels of a model on this machine, as `api.tune.tune` does; the seed is that of the options.

    Raises:
        BadOption: there is no such technique, or the budget is too short for a search.
        NoBackend: nothing near the fastest can be tuned.
        and as `optimize`.
    """
    tuning = TuningOptions(technique=request.technique, resume=request.resume, seed=options.seed, trials=request.trials)
    return tune(source, options, tuning=tuning, order=parse_order(request.order), inputs=inputs, progress=progress)
