"""Files that describe a sweep: one training step, the data, and the lanes, each with hyper-parameters of its own.

    step = "digits.toml"                 # a training step's file, or a table [step]
    data = "digits.py:data"              # data() -> ((inputs, targets), held-out (inputs, targets) or None)
    epochs = 20                          # or steps = 500

    [common]                             # of every lane, unless it says otherwise
    momentum = 0.9

    [grid]                               # one lane for each combination
    lr = [0.01, 0.1]
    weight_decay = [0.0, 1e-4]

    [[lane]]                             # further lanes, one by one
    name = "slow"
    lr = 0.001

What a lane leaves out is as the training step has it. Without `data`, step t of a lane trains on `batch(batch_size, order · 2^20
+ t)` of the training step; such a sweep counts in steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from bricolage.base.codec import DecodeError, Length, Matching, Within, decode, encode
from bricolage.errors import BadTrainingSpec
from bricolage.train.step.spec import Argument, Entry, Optimiser, Seed, StepOrFile, StepSpec, read_as, read_step

MOST_LANES = 4096

Rate = Annotated[float, Within(0.0, 0.999)]
Count = Annotated[int, Within(1, 10**9)]
Name = Annotated[str, Matching(r"[^\n/\\\x00]{1,120}", "name of a lane (no slashes, at most 120 characters)")]
Beta = Annotated[float, Within(0.0, 1.0)]


@dataclass(frozen=True)
class HyperParameters:
    """What one lane may have of its own. None: as the training step has it."""

    name: Name | None = None
    kind: Literal["sgd", "adam", "adamw"] | None = None
    lr: Annotated[float, Within(0.0, 1e6)] | None = None
    momentum: Annotated[float, Within(0.0, 1.0)] | None = None
    nesterov: bool | None = None
    betas: tuple[Beta, Beta] | None = None
    eps: Annotated[float, Within(0.0, 1.0)] | None = None
    weight_decay: Annotated[float, Within(0.0, 1e3)] | None = None
    seed: Seed | None = None
    """Of the weights at the start and of dropout."""
    order: Seed | None = None
    """Seed of the order of the data; the lane's seed by default."""
    label_smoothing: Rate | None = None
    """Of the loss "cross_entropy"."""
    dropout: Rate | None = None
    """Rate of every dropout layer, of those in attention and between recurrent layers as well."""
    clip_norm: Annotated[float, Within(1e-12, 1e12)] | None = None
    """Largest norm of a lane's gradient; longer ones are scaled to it (Pascanu et al., 2013)."""
    loss_scale: Annotated[float, Within(2.0**-24, 2.0**40)] | None = None
    """First scale of the loss, as `torch.amp.GradScaler` has it: a step whose gradients overflow is left out and halves it, 2000
    good ones double it."""
    epochs: Count | None = None
    steps: Count | None = None
    patience: Count | None = None
    """Epochs without a smaller loss on the held-out data after which a lane stops."""
    batch_size: Annotated[int, Within(1, 1 << 20)] | None = None
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    """Of the module, in addition to those of the training step."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps cannot both be given")


@dataclass(frozen=True)
class Lane:
    """One model of a sweep, with everything that its training rests on."""

    name: str
    optimiser: Optimiser
    seed: int
    order: int
    batch_size: int
    arguments: Mapping[str, Argument]
    label_smoothing: float | None = None
    dropout: float | None = None
    clip_norm: float | None = None
    loss_scale: float | None = None
    epochs: int | None = None
    steps: int | None = None
    """Exactly one of both is given."""
    patience: int | None = None


@dataclass(frozen=True)
class Sweep:
    """A training step, its data, and the lanes."""

    step: StepSpec
    lanes: tuple[Lane, ...]
    data: str | None = None


Value = bool | int | float | str | tuple[float, ...] | Mapping[str, Argument]


@dataclass(frozen=True)
class _File:
    step: StepOrFile
    data: Entry | None = None
    epochs: Count | None = None
    steps: Count | None = None
    common: HyperParameters = HyperParameters()
    grid: Mapping[str, Annotated[tuple[Value, ...], Length(1, MOST_LANES)]] = field(default_factory=dict)
    lane: tuple[HyperParameters, ...] = ()
    folder: str = "."


def read_sweep(path: Path) -> Sweep:
    """The sweep that a file describes.

    Raises:
        MissingFile: there is no such file, or none of the training step that it names.
        BadTrainingSpec: one of them cannot be read, or describes no sweep.
    """
    sweep_file = read_as(_File, path)
    step = read_step(sweep_file.step, path)
    try:
        return Sweep(step, _lanes(sweep_file, step), sweep_file.data)
    except (DecodeError, ValueError) as error:
        raise BadTrainingSpec(path=path, reason=str(error)) from error


def make_lanes(
    step: StepSpec, settings: Sequence[HyperParameters], epochs: int | None = None, steps: int | None = None
) -> tuple[Lane, ...]:
    """Lanes from what each has of its own; `epochs` or `steps` hold where it says neither.

    Raises:
        ValueError: a lane has neither, or two have one name; or an optimiser has what it cannot have.
    """
    given_values = [_encode_given(setting) for setting in settings]
    keys = sorted(
        {key for lane_values in given_values for key in lane_values} - {"name", "epochs", "steps", "patience"}
    )
    differing = [
        key for key in keys if any(lane_values.get(key) != given_values[0].get(key) for lane_values in given_values)
    ]
    lanes = []
    for number, hyperparameters in enumerate(settings):
        label = " ".join(
            f"{key}={_word(given_values[number][key])}" for key in differing if key in given_values[number]
        )
        name = hyperparameters.name or label[:110] or f"lane {number}"
        lanes.append(_lane(name, hyperparameters, step, epochs, steps))
    names = [lane.name for lane in lanes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if any(setting.name in twice for setting in settings if setting.name):
        raise ValueError(f"two lanes are named '{twice[0]}'")
    if twice:
        lanes = [replace(lane, name=f"{number}: {lane.name}") for number, lane in enumerate(lanes)]
    return tuple(lanes)


def _lanes(found: _File, step: StepSpec) -> tuple[Lane, ...]:
    if found.epochs is not None and found.steps is not None:
        raise ValueError("epochs and steps cannot both be given")
    common = _encode_given(found.common)
    settings: list[HyperParameters] = []
    if found.grid:
        if math.prod(map(len, found.grid.values())) > MOST_LANES:
            raise ValueError(f"its grid has more than {MOST_LANES} lanes")
        settings += [
            merge_settings(common, dict(zip(found.grid, map(encode, values), strict=True)), "it.grid")
            for values in itertools.product(*found.grid.values())
        ]
    for number, hyperparameters in enumerate(found.lane):
        settings.append(merge_settings(common, _encode_given(hyperparameters), f"it.lane[{number}]"))
    if not settings:
        raise ValueError("it has no lanes: give [grid] or [[lane]]")
    lanes = make_lanes(step, settings, found.epochs, found.steps)
    if found.data is None:
        bad = [lane.name for lane in lanes if lane.epochs is not None or lane.patience is not None]
        if bad:
            raise ValueError(f"lane '{bad[0]}' counts in epochs, and there is no data: give data, or steps")
    return lanes


def _encode_given(one: HyperParameters) -> dict[str, Any]:
    """What it says, as TOML would."""
    return {key: value for key, value in encode(one).items() if value is not None and value != {}}


def merge_settings(common: dict[str, Any], own: dict[str, Any], where: str) -> HyperParameters:
    """What all lanes have, with what one has of its own, both as TOML has it; `where` is what an error calls it.

    Raises:
        DecodeError: together they are no hyper-parameters.
    """
    base = dict(common)
    if "epochs" in own or "steps" in own:
        base.pop("epochs", None)
        base.pop("steps", None)
    if "arguments" in own and "arguments" in base and isinstance(own["arguments"], dict):
        own = {**own, "arguments": {**base["arguments"], **own["arguments"]}}
    return decode(HyperParameters, {**base, **own}, where)


def _word(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={_word(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else str(value).replace("/", "_").replace("\\", "_")


def _lane(name: str, one: HyperParameters, step: StepSpec, epochs: int | None, steps: int | None) -> Lane:
    taken = {key: value for key in (f.name for f in fields(Optimiser)) if (value := getattr(one, key)) is not None}
    base = step.optimiser
    if one.kind is not None and one.kind != base.kind:  # what only the other kind has does not carry over
        base = replace(Optimiser(lr=base.lr, weight_decay=base.weight_decay), kind=one.kind)
    optimiser = replace(base, **taken)
    of_other = {"momentum", "nesterov"} if optimiser.kind != "sgd" else {"betas", "eps"}
    wrong = sorted(of_other & set(taken))
    if wrong:
        raise ValueError(f"lane '{name}' has {wrong[0]}, which {optimiser.kind} does not have")
    if one.epochs is None and one.steps is None and epochs is None and steps is None:
        raise ValueError(f"lane '{name}' does not say how long it trains: give epochs or steps")
    if one.label_smoothing is not None and step.loss != "cross_entropy":
        raise ValueError(f"lane '{name}' has label_smoothing, which only the loss \"cross_entropy\" has")
    has_length = one.epochs is not None or one.steps is not None
    seed = step.seed if one.seed is None else one.seed
    return Lane(
        name=name,
        optimiser=optimiser,
        seed=seed,
        order=seed if one.order is None else one.order,
        batch_size=one.batch_size or step.batch_size,
        arguments={**step.arguments, **one.arguments},
        label_smoothing=one.label_smoothing,
        dropout=one.dropout,
        clip_norm=one.clip_norm,
        loss_scale=one.loss_scale,
        epochs=one.epochs if has_length else epochs,
        steps=one.steps if has_length else steps,
        patience=one.patience,
    )
