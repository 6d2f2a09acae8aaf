"""Files that describe a search: a sweep without lanes, and ranges that trials draw from.

step = "digits.toml"             # a training step's file, or a table [step]
data = "digits.py:data"          # with held-out data, whose loss is what is searched for
epochs = 20
trials = 32
together = 8                     # asked for at once, and trained as one as far as they can be
sampler = "tpe"                  # or random
pruner = "hyperband"             # or asha, none

[common]                         # of every trial
momentum = 0.9

[search]
lr = { low = 1e-3, high = 1.0, log = true }
weight_decay = { choices = [0.0, 1e-4] }

[arguments]                      # of the module, likewise
width = { low = 8, high = 32, whole = true, log = true }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from bricolage.base.codec import Within, encode
from bricolage.errors import BadTrainingSpec
from bricolage.train.fuse.sweep import Count, HyperParameters, Lane, make_lanes, merge_settings
from bricolage.train.step.spec import Argument, Entry, StepOrFile, StepSpec, read_as, read_step

_FIXED = ("name", "arguments", "epochs", "steps", "patience")
SEARCHED = tuple(parameter.name for parameter in fields(HyperParameters) if parameter.name not in _FIXED)


@dataclass(frozen=True)
class Range:
    """What one hyper-parameter is drawn from: numbers from `low` to `high`, or one of `choices`."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Evenly by its logarithm."""
    whole: bool = False
    """Whole numbers."""
    choices: tuple[Argument, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.choices) == (self.low is not None or self.high is not None):
            raise ValueError("a range has low and high, or choices")
        if not self.choices:
            if self.low is None or self.high is None or not self.low < self.high:
                raise ValueError("low is not below high")
            if self.log and self.low <= 0:
                raise ValueError("log needs a low above zero")
            if self.whole and (self.low != int(self.low) or self.high != int(self.high)):
                raise ValueError("whole numbers have whole bounds")


@dataclass(frozen=True)
class Search:
    """What is searched, and how."""

    step: StepSpec
    data: str
    common: HyperParameters
    ranges: Mapping[str, Range]
    """By hyper-parameter; those of the module as "arguments.NAME"."""
    epochs: int
    trials: int = 32
    together: int = 8
    sampler: Literal["random", "tpe"] = "tpe"
    pruner: Literal["none", "asha", "hyperband"] = "hyperband"

    def lanes(self, drawn: Mapping[str, Mapping[str, Argument]]) -> tuple[Lane, ...]:
        """Lanes by name, with what was drawn for each.

        Raises ValueError where an optimiser has no such parameter.
        """
        settings = []
        base = {key: value for key, value in encode(self.common).items() if value is not None and value != {}}
        for name, values in drawn.items():
            overrides: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
            arguments = {key.partition(".")[2]: value for key, value in values.items() if "." in key}
            settings.append(merge_settings(base, {**overrides, "arguments": arguments, "name": name}, "a trial"))
        return make_lanes(self.step, settings, self.epochs)


@dataclass(frozen=True)
class _File:
    step: StepOrFile
    data: Entry
    epochs: Count
    search: Mapping[str, Range] = field(default_factory=dict)
    arguments: Mapping[str, Range] = field(default_factory=dict)
    common: HyperParameters = field(default_factory=HyperParameters)
    trials: Annotated[int, Within(1, 10**5)] = 32
    together: Annotated[int, Within(1, 4096)] = 8
    sampler: Literal["random", "tpe"] = "tpe"
    pruner: Literal["none", "asha", "hyperband"] = "hyperband"
    folder: str = "."


def read_search(path: Path) -> Search:
    """The search that a file describes.

    Raises:
        MissingFile: there is no such file, or none of the training step that it names.
        BadTrainingSpec: one of them cannot be read, or describes no search.
    """
    search_file = read_as(_File, path)
    step = read_step(search_file.step, path)
    ranges = {
        **search_file.search,
        **{f"arguments.{name}": search_range for name, search_range in search_file.arguments.items()},
    }
    for name in search_file.search:
        if name not in SEARCHED:
            parameter_names = ", ".join(SEARCHED)
            raise BadTrainingSpec(
                path=path,
                reason=f"it.search has no '{name}': there are {parameter_names}; the module's go under [arguments]",
            )
    if not ranges:
        raise BadTrainingSpec(path=path, reason="it.search and it.arguments are empty")
    return Search(
        step,
        search_file.data,
        common=search_file.common,
        ranges=ranges,
        epochs=search_file.epochs,
        trials=search_file.trials,
        together=search_file.together,
        sampler=search_file.sampler,
        pruner=search_file.pruner,
    )
