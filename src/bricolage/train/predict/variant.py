"""Changes of how a training step is run, that do not change what it learns beyond rounding (or say so): what a prediction is
asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from bricolage.codec import Within
from bricolage.errors import BadVariant
from bricolage.train.spec import StepSpec


@dataclass(frozen=True)
class Variant:
    """One way to run a training step. Every field's default is "as the spec has it"."""

    batch_size: Annotated[int, Within(1, 1 << 20)] | None = None
    amp: bool = False
    """Mixed precision: `torch.autocast` to bfloat16 in the forward phase."""
    optimiser: Literal["", "foreach", "fused"] = ""
    """How `torch.optim` computes the update: all parameters in one call of each operator, or in one operator."""
    recompute: tuple[str, ...] = ()
    """Modules, by their paths, whose activations are computed again in the backward phase (Chen et al., 2016); "all": each of the
    blocks that repeat."""
    micro_batches: Annotated[int, Within(1, 1 << 16)] = 1
    """Parts of the batch, one after another, whose gradients add up."""
    freeze: tuple[str, ...] = ()
    """Modules, by their paths, that are not trained."""
    channels_last: bool = False
    """Images and convolutions with channels innermost in memory."""
    threads: Annotated[int, Within(1, 4096)] | None = None
    """Of each worker."""
    workers: Annotated[int, Within(1, 4096)] = 1
    """Processes with the batch of the spec each, whose gradients are averaged by all-reduce in buckets while the backward phase
    goes on (Li et al., "PyTorch Distributed", 2020)."""
    bucket_mb: Annotated[float, Within(1e-6, 1e6)] = 25.0
    """Of gradients, MiB; the first one has 1 at most, as PyTorch has it."""
    models: Annotated[int, Within(1, 4096)] = 1
    """Models of the step that are trained as one, each with the batch of the spec (Wang et al., "HFTA", MLSys 2021)."""
    stages: Annotated[int, Within(1, 4096)] = 1
    """Devices that have a part of the module each, through which the micro-batches go (1F1B; see `pipeline`)."""
    gbytes: Annotated[float, Within(1e-9, 1e9)] | None = None
    """Another bandwidth of the links between workers or stages, 10⁹ bytes a second in each direction; by default what is measured
    here."""

    @property
    def name(self) -> str:
        """As it is written on the command line; "as it is" where nothing changes."""
        words = [
            write(getattr(self, name)) for name, (_, write) in _WORDS.items() if getattr(self, name) != _DEFAULTS[name]
        ]
        return ",".join(words) or "as it is"


def _strings(key: str) -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    return (lambda text: tuple(text.split("+"))), (
        lambda value: key if value == ("all",) else f"{key}={'+'.join(value)}"
    )


def _number(key: str, kind: type) -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    return kind, (lambda value: f"{key}={value:g}")


def _flag(key: str, value: Any) -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    return (lambda _: value), (lambda value: key if value is True else str(value))


_WORDS: Mapping[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "batch_size": _number("batch", int),
    "amp": _flag("amp", True),
    "optimiser": _flag("", ""),
    "recompute": _strings("recompute"),
    "micro_batches": _number("micro", int),
    "freeze": _strings("freeze"),
    "channels_last": _flag("channels-last", True),
    "threads": _number("threads", int),
    "workers": _number("workers", int),
    "bucket_mb": _number("bucket", float),
    "models": _number("fuse", int),
    "stages": _number("stages", int),
    "gbytes": _number("bandwidth", float),
}
_DEFAULTS = {one.name: one.default for one in fields(Variant)}
_KEYS = {
    "batch": "batch_size",
    "micro": "micro_batches",
    "bucket": "bucket_mb",
    "bandwidth": "gbytes",
    "recompute": "recompute",
    "freeze": "freeze",
    "threads": "threads",
    "workers": "workers",
    "fuse": "models",
    "stages": "stages",
}
_FLAGS: Mapping[str, tuple[str, Any]] = {
    "amp": ("amp", True),
    "channels-last": ("channels_last", True),
    "foreach": ("optimiser", "foreach"),
    "fused": ("optimiser", "fused"),
    "recompute": ("recompute", ("all",)),
}


_BESIDE = {
    "models": {"batch_size", "threads"},
    "stages": {"batch_size", "threads", "micro_batches", "optimiser", "gbytes"},
}
"""What can be asked about together with these."""


def parse_variant(text: str) -> Variant:
    """A variant from words with commas between them: "amp,batch=64".

    Raises:
        BadVariant: a word is not known, stands twice, or has a value that it cannot have.
    """
    found: dict[str, Any] = {}
    for word in filter(None, (one.strip() for one in text.split(","))):
        key, equals, value = word.partition("=")
        if not equals and key in _FLAGS:
            name, taken = _FLAGS[key]
        elif equals and value and key in _KEYS:
            name = _KEYS[key]
            try:
                taken = _WORDS[name][0](value)
            except ValueError as error:
                raise BadVariant(variant=text, reason=f"{value!r} is no value of '{key}'") from error
        else:
            raise BadVariant(variant=text, reason=f"'{word}' is not known")
        if name in found:
            raise BadVariant(variant=text, reason=f"'{key}' stands beside another that says the same")
        found[name] = taken
    _check(text, found)
    return Variant(**found)


def _check(text: str, found: Mapping[str, Any]) -> None:
    for name in ("batch_size", "micro_batches", "threads", "workers", "bucket_mb", "gbytes", "models", "stages"):
        if name in found and not found[name] > 0:
            raise BadVariant(variant=text, reason=f"{found[name]:g} is not positive")
    workers, stages = found.get("workers", 1), found.get("stages", 1)
    if (workers == 1 and "bucket_mb" in found) or (workers == stages == 1 and "gbytes" in found):
        raise BadVariant(variant=text, reason="bucket needs several workers, and bandwidth several workers or stages")
    for name, word in (("models", "fuse"), ("stages", "stages")):
        if found.get(name, 1) > 1 and (wrong := sorted(set(found) - {name} - _BESIDE[name])):
            other = _WORDS[wrong[0]][1](found[wrong[0]])
            raise BadVariant(variant=text, reason=f"'{other}' cannot be predicted together with '{word}'")
    if stages > 1 and found.get("micro_batches", 1) < max(2, stages):
        raise BadVariant(variant=text, reason=f"{stages} stages need micro=... with {stages} parts or more")


def usual(spec: StepSpec) -> tuple[Variant, ...]:
    """What is asked about where the user names nothing."""
    double = Variant(batch_size=2 * spec.batch_size)
    return (
        Variant(amp=True),
        Variant(optimiser="fused"),
        double,
        Variant(recompute=("all",)),
        *([Variant(micro_batches=2)] if spec.batch_size % 2 == 0 else []),
        Variant(workers=2),
    )
