"""Changes of how a training step is run. None of them changes what the step learns by more than rounding.

A change is a field of `Variant`. The field carries all that is known of it: its words and their values, what it does, what it
excludes and what it needs. Parsing, printing, the command line's help and the table of docs/design/training.md derive from the
fields.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from bricolage.base.codec import Within
from bricolage.errors import BadVariant

if TYPE_CHECKING:
    from bricolage.train.step.spec import StepSpec

MOST_SAMPLES = 1 << 20
"""In one batch."""


@dataclass(frozen=True)
class VariantField:
    """What a field of `Variant` carries in addition to its type and default."""

    meaning: str
    """A row of the table in the docs."""
    key: str = ""
    """Of `key=VALUE`; empty where only flags set the field."""
    metavar: str = ""
    read: Callable[[str], object] = str
    """From VALUE to the field's value. Raises ValueError."""
    flags: Mapping[str, object] = field(default_factory=dict)
    """Words without a value, and what the field is then."""
    only_with: tuple[str, ...] | None = None
    """The fields that may change at the same time; None: all."""
    needs: tuple[str, ...] = ()
    """Fields of which at least one has to change at the same time."""
    changes_operators: bool = True
    """Whether one process runs other operators because of it."""

    def written(self, value: object) -> str:
        """The word that `parse_variant` reads back as `value`."""
        for flag, meant in self.flags.items():
            if value == meant:
                return flag
        text = "+".join(value) if isinstance(value, tuple) else str(value).removesuffix(".0")
        return f"{self.key}={text}"

    @property
    def forms(self) -> tuple[str, ...]:
        """Ways to write it: ("recompute", "recompute=A+B")."""
        return (*self.flags, *([f"{self.key}={self.metavar}"] if self.key else []))


def _change(default: object, meaning: str, key: str = "", **more: Any) -> Any:
    return field(default=default, metadata={"change": VariantField(meaning, key, **more)})


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("+"))


@dataclass(frozen=True)
class Variant:
    """One way to run a training step. The default of every field is what the step's file says.

    Raises:
        BadVariant: a value is out of range, or two changes exclude or need each other.
    """

    batch_size: Annotated[int, Within(1, MOST_SAMPLES)] | None = _change(
        None, "samples in a step", "batch", metavar="N", read=int
    )
    amp: bool = _change(
        False, "mixed precision: `torch.autocast` to bfloat16 in the forward phase", flags={"amp": True}
    )
    optimiser: Literal["", "foreach", "fused"] = _change(
        "",
        "the update by `torch.optim`'s operators over all parameters at once, or in one operator",
        flags={"foreach": "foreach", "fused": "fused"},
    )
    recompute: tuple[str, ...] = _change(
        (),
        "modules whose activations are computed again in the backward phase (Chen et al., 2016): all repeated blocks, or A and B",
        "recompute",
        metavar="A+B",
        read=_names,
        flags={"recompute": ("all",)},
    )
    micro_batches: Annotated[int, Within(1, 1 << 16)] = _change(
        1, "the batch in N parts, one after another; their gradients are added", "micro", metavar="N", read=int
    )
    freeze: tuple[str, ...] = _change((), "modules that are not trained", "freeze", metavar="A+B", read=_names)
    channels_last: bool = _change(
        False, "images and convolutions with channels innermost in memory", flags={"channels-last": True}
    )
    threads: Annotated[int, Within(1, 4096)] | None = _change(
        None, "cores of each worker", "threads", metavar="N", read=int, changes_operators=False
    )
    workers: Annotated[int, Within(1, 4096)] = _change(
        1,
        "N processes, each with the batch of the file; all-reduce averages their gradients in buckets during the backward phase "
        '(Li et al., "PyTorch Distributed", 2020)',
        "workers",
        metavar="N",
        read=int,
        changes_operators=False,
    )
    bucket_mb: Annotated[float, Within(1e-6, 1e6)] = _change(
        25.0,
        "size of these buckets, 25 by default; the first has 1 MiB at most, as in PyTorch",
        "bucket",
        metavar="MIB",
        read=float,
        needs=("workers",),
        changes_operators=False,
    )
    models: Annotated[int, Within(1, 4096)] = _change(
        1,
        'N models, as in a sweep of learning rates, [trained as one](#fused-sweeps) (Wang et al., "HFTA", MLSys 2021)',
        "fuse",
        metavar="N",
        read=int,
        only_with=("batch_size", "threads"),
    )
    stages: Annotated[int, Within(1, 4096)] = _change(
        1,
        "the module in N stages, each on its own device; micro-batches (`micro=M`, M ≥ N) pass through them in the 1F1B order",
        "stages",
        metavar="N",
        read=int,
        only_with=("batch_size", "threads", "micro_batches", "optimiser", "gbytes"),
        changes_operators=False,
    )
    gbytes: Annotated[float, Within(1e-9, 1e9)] | None = _change(
        None,
        "bandwidth between workers or stages, 10⁹ bytes a second in each direction, instead of the measured one; "
        "required for more workers or stages than cores",
        "bandwidth",
        metavar="GB/S",
        read=float,
        needs=("workers", "stages"),
        changes_operators=False,
    )

    def __post_init__(self) -> None:
        changed = self._changed()
        for name, value in changed.items():
            within = _RANGES.get(name)
            if within is not None and (problem := within.problem(value)) is not None:
                raise BadVariant(variant=self.name, reason=f"{value} {problem}")
        for name in changed:
            change = CHANGES[name]
            if change.needs and not changed.keys() & set(change.needs):
                needed = " or ".join(CHANGES[need].forms[-1] for need in change.needs)
                raise BadVariant(variant=self.name, reason=f"'{change.key}' needs {needed}")
            if change.only_with is not None and (wrong := changed.keys() - {name, *change.only_with}):
                other = min(CHANGES[excluded].written(changed[excluded]) for excluded in wrong)
                raise BadVariant(
                    variant=self.name, reason=f"'{other}' cannot be predicted together with '{change.key}'"
                )
        if self.stages > 1 and self.micro_batches < self.stages:
            raise BadVariant(
                variant=self.name,
                reason=f"{self.stages} stages need at least as many micro-batches: micro={self.stages}",
            )

    def _changed(self) -> dict[str, Any]:
        values = {spec_field.name: (getattr(self, spec_field.name), spec_field.default) for spec_field in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def name(self) -> str:
        """The words that `parse_variant` reads back; "as it is" where nothing changes."""
        return ",".join(CHANGES[name].written(value) for name, value in self._changed().items()) or "as it is"

    def of_one_process(self) -> Variant:
        """The variant whose operators are those that one process of this one runs, if it is not divided into stages."""
        same: dict[str, Any] = {
            spec_field.name: spec_field.default
            for spec_field in fields(self)
            if not CHANGES[spec_field.name].changes_operators
        }
        return replace(self, **same)


CHANGES: Mapping[str, VariantField] = {spec_field.name: spec_field.metadata["change"] for spec_field in fields(Variant)}
"""Field of `Variant` → what it carries."""


def _ranges() -> Iterator[tuple[str, Within]]:
    for name, hint in typing.get_type_hints(Variant, include_extras=True).items():
        for part in (hint, *typing.get_args(hint)):
            for within in getattr(part, "__metadata__", ()):
                yield name, within


_RANGES: Mapping[str, Within] = dict(_ranges())


def parse_variant(text: str) -> Variant:
    """A variant from words separated by commas: "amp,batch=64".

    Raises:
        BadVariant: a word is unknown, two words set the same field, a value is out of range, or changes exclude or need each other.
    """
    settings: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, value = _parse_word(text, word)
        if name in settings:
            raise BadVariant(variant=text, reason=f"'{word}' is given twice or contradicts another word")
        settings[name] = value
    return Variant(**settings)


def _parse_word(text: str, word: str) -> tuple[str, object]:
    key, equals, value = word.partition("=")
    for name, change in CHANGES.items():
        if not equals and key in change.flags:
            return name, change.flags[key]
        if equals and value and key == change.key:
            try:
                return name, change.read(value)
            except ValueError as error:
                raise BadVariant(variant=text, reason=f"{value!r} is no value of '{key}'") from error
    raise BadVariant(variant=text, reason=f"'{word}' is not known")


def forms() -> str:
    """All ways to write a change, for the help of the command line: "batch=N, amp, ..."."""
    return ", ".join(form for change in CHANGES.values() for form in change.forms)


def default_variants(spec: StepSpec) -> tuple[Variant, ...]:
    """The variants that are predicted where the user names none."""
    return (
        Variant(amp=True),
        Variant(optimiser="fused"),
        *([Variant(batch_size=2 * spec.batch_size)] if 2 * spec.batch_size <= MOST_SAMPLES else []),
        Variant(recompute=("all",)),
        *([Variant(micro_batches=2)] if spec.batch_size % 2 == 0 else []),
        Variant(workers=2),
    )
