"""Everything a user can set, as frozen dataclasses."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_args

from bricolage.base.cgroups import processor_limit
from bricolage.base.core_clusters import count_fast_cores
from bricolage.base.efforts import PROFILES, Effort, EffortProfile
from bricolage.base.option_words import (
    HIGHEST_CORE,
    constant_word,
    parse_accuracy,
    parse_constants,
    parse_cores,
    parse_milliseconds,
    parse_seconds,
    parse_shapes,
    sizes_of,
)
from bricolage.errors import BadOption, UnknownPrecision

_LOG = logging.getLogger(__name__)
MOST_THREADS = 1024
"""That a user may ask for."""
MOST_THREADS_A_CORE = 8
"""More than that is refused: nothing is gained, and a decision would take hours."""
_LARGEST = 2**40
"""Size of a dimension, and megabytes: beyond any machine."""

Precision = Literal["highest", "high", "medium", "low"]
Objective = Literal["latency", "throughput"]
Pattern = Literal["steady", "sparse"]
"""Call after call; or single calls after pauses."""
Weights = Literal["int4", "int8"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
EFFORTS: tuple[Effort, ...] = get_args(Effort)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
WEIGHTS: tuple[Weights, ...] = get_args(Weights)

BOUNDS: Mapping[Precision, float] = {"highest": 1e-6, "high": 1e-4, "medium": 2e-2, "low": 1e-1}
"""Accepted relative error ‖y - y64‖ / ‖y64‖ per precision word; what rounding in float32 does is accepted in any case (see
`bricolage.verify.bound`). Integers take part at `low` alone."""
FAR = BOUNDS["medium"]
"""A larger relative error is none of floats, however short: somewhere the answer is wrong."""


ISAS: tuple[str, ...] = ("avx512", "avx2")
"""Instruction sets of x86-64 that backends can be kept to."""
ISA_VARIABLE = "BRICOLAGE_ISA"
"""Environment variable with the instruction set that backends are kept to where no option says it. How far each backend
can be kept to it: benchmarks/README.md."""


def available_cores() -> int:
    """Cores that this process may use: of its affinity mask as many as its control groups give it time for, rounded down. One
    thread more than that would stop all of them for the rest of each period."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    limit = processor_limit()
    return cores if limit is None else max(1, min(cores, int(limit)))


def _fast_cores() -> int:
    """Cores of the fast clusters, of those that this process may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return count_fast_cores(os.sched_getaffinity(0))


def default_isa() -> str:
    """The instruction set of `$BRICOLAGE_ISA`, to which every backend is kept where nothing else is asked for; empty for all."""
    return os.environ.get(ISA_VARIABLE, "")


def declare_option(
    default: Any = MISSING,
    *,
    flag: str,
    help: str,
    metavar: str | None = None,
    parse: Callable[[Any], Any] | None = None,
    factory: Any = MISSING,
    decides: bool = True,
) -> Any:
    """A field of a class of options and all that derives from it: its flag on the command line with `metavar`, `help` and `parse`
    (from the words given to the field's value), and of `Options` its row in the reference, and its part in the key of a decision
    where it `decides` anything."""
    metadata = {"flag": flag, "help": help, "metavar": metavar, "parse": parse, "decides": decides}
    given = {"default": default} if factory is MISSING else {"default_factory": factory}
    return field(**given, metadata=metadata)


_UNITS = {"budget_s": "s", "latency_limit_ms": "ms"}
"""With which the values of some fields stand on a command line."""


@dataclass(frozen=True)
class Options:
    """Options of `optimize`. Every field is validated when the object is made. The command line, the key of a decision,
    the provenance in a plan and the reference page derive from these fields.

    Raises:
        UnknownPrecision, BadOption: a value is out of range.
    """

    precision: Precision = declare_option(
        "highest",
        flag="--precision",
        metavar="WORD",
        help="highest (error up to 1e-6), high (1e-4), medium (2e-2) or low (1e-1).",
    )
    tolerance: float | None = declare_option(
        None,
        flag="--tolerance",
        metavar="NUMBER",
        help="Accept exactly this relative error; overrides --precision.",
    )
    accuracy: str = declare_option(
        "relative",
        flag="--accuracy",
        metavar="METRIC",
        help="What answers to samples held back must reach as well: sqnr=DB, cosine=X, top1=SHARE, or FILE.py:FUNCTION>=X.",
    )
    weights: Weights | None = declare_option(
        None,
        flag="--weights",
        metavar="WORD",
        help="Also try the model's weights in blocks of int4 or int8, accepted as --precision low says.",
    )
    objective: Objective = declare_option(
        "latency",
        flag="--objective",
        metavar="WORD",
        help="latency (one call as fast as possible) or throughput (as many requests a second as possible).",
    )
    pattern: Pattern = declare_option(
        "steady",
        flag="--pattern",
        metavar="WORD",
        help="Which calls decide: steady (call after call) or sparse (single calls after pauses). Both are timed.",
    )
    latency_limit_ms: float | None = declare_option(
        None,
        flag="--latency-limit",
        metavar="TIME",
        help="For throughput: limit of the 99th percentile of latency: 50ms, 0.2s.",
        parse=lambda word: parse_milliseconds(word),
    )
    effort: Effort = declare_option("quick", flag="--effort", metavar="WORD", help="instant, quick or full.")
    budget_s: float | None = declare_option(
        None,
        flag="--budget",
        metavar="TIME",
        help="Time to measure and search: 60s, 5m, 1h. Default: set by --effort.",
        parse=lambda word: parse_seconds(word),
    )
    threads: int = declare_option(
        flag="--threads",
        metavar="N",
        help="Number of threads; default: all cores, of unequal ones the fast ones.",
        factory=lambda: min(available_cores(), _fast_cores(), MOST_THREADS),
    )
    shared: bool = declare_option(
        False,
        flag="--shared/--not-shared",
        help="Other processes want the cores, too: threads that would spin while they wait step back.",
    )
    backends: tuple[str, ...] | None = declare_option(
        None,
        flag="--backend",
        metavar="NAME",
        help="Allow only this backend. Repeatable.",
        parse=lambda names: tuple(dict.fromkeys(names)),
    )
    shapes: Mapping[str, tuple[int, ...]] = declare_option(
        flag="--shape",
        metavar="NAME=SIZES",
        help="Sizes of a symbolic dimension: batch=1,8. Several make shape buckets, paired by position. Repeatable.",
        parse=lambda words: parse_shapes(words),
        factory=dict,
    )
    constants: Mapping[str, str | None] = declare_option(
        flag="--constant",
        metavar="NAME[=VALUE]",
        help="An input that never changes: sr=16000. Without a value: that of --input. Repeatable.",
        parse=lambda words: parse_constants(words),
        factory=dict,
    )
    rewrite: bool = declare_option(True, flag="--rewrite/--no-rewrite", help="Include rewritten variants of the graph.")
    predict: bool = declare_option(
        True,
        flag="--predict/--no-predict",
        help="Skip candidates that the learned cost model rules out.",
    )
    seed: int = declare_option(0, flag="--seed", metavar="N", help="Seed of generated inputs and of the refinement.")
    isa: str = declare_option(
        flag="--isa",
        metavar="NAME",
        help="Keep every backend to an instruction set: avx512 or avx2. Default: all, or $BRICOLAGE_ISA.",
        factory=default_isa,
    )
    cores: tuple[int, ...] | None = declare_option(
        None,
        flag="--cores",
        metavar="LIST",
        help="Run on these logical processors only: 0-3 or 0,2. A group of cores is a device of its own.",
        parse=lambda word: parse_cores(word),
    )
    ray: str | None = declare_option(
        None,
        flag="--ray",
        metavar="ADDRESS",
        help="Compile and measure on a Ray cluster, too: auto, HOST:6379, or local for processes of this machine.",
        decides=False,
    )
    memory_limit_mb: int | None = declare_option(
        None,
        flag="--memory-limit",
        metavar="MB",
        help="Memory limit of one worker process; default: 80 % of the free memory.",
        decides=False,
    )

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UnknownPrecision(name=self.precision)
        parse_accuracy(self.accuracy)
        if self.weights not in (None, *WEIGHTS):
            raise BadOption(option="weights", value=self.weights, advice="Use int4 or int8, or leave it out")
        if self.effort not in EFFORTS:
            raise BadOption(option="effort", value=self.effort, advice="Use instant, quick or full")
        if self.objective not in OBJECTIVES:
            raise BadOption(option="objective", value=self.objective, advice="Use latency or throughput")
        if self.pattern not in PATTERNS:
            raise BadOption(option="pattern", value=self.pattern, advice="Use steady or sparse")
        if self.latency_limit_ms is not None and not 0 < self.latency_limit_ms < float("inf"):
            advice = "Give a positive time, for example 50ms"
            raise BadOption(option="latency limit", value=self.latency_limit_ms, advice=advice)
        if self.latency_limit_ms is not None and self.objective != "throughput":
            advice = "It goes with --objective throughput; alone, latency is as low as it can be"
            raise BadOption(option="latency limit", value=f"{self.latency_limit_ms:g}ms", advice=advice)
        if self.tolerance is not None and not 0.0 < self.tolerance < 1.0:
            raise BadOption(option="tolerance", value=self.tolerance, advice="Give a number between 0 and 1")
        if self.budget_s is not None and not 0 < self.budget_s < float("inf"):
            raise BadOption(option="budget", value=self.budget_s, advice="Give a positive time, for example 60s")
        if self.cores is not None and (not self.cores or not 0 <= min(self.cores) <= max(self.cores) <= HIGHEST_CORE):
            raise BadOption(option="cores", value=self.cores, advice="Give numbers of processors, for example 0-3")
        if self.backends == ():
            raise BadOption(option="backend", value="nothing", advice="Name one, or leave it out for all")
        if self.cores is not None:
            object.__setattr__(self, "cores", tuple(sorted(set(self.cores))))
        if self.cores is not None and self.threads > len(self.cores):
            object.__setattr__(self, "threads", len(self.cores))
        if not 1 <= self.threads <= MOST_THREADS:
            raise BadOption(option="threads", value=self.threads, advice=f"Give a number from 1 to {MOST_THREADS}")
        if abs(self.seed) >= 2**64:
            raise BadOption(option="seed", value=self.seed, advice="Give a number of less than 64 bits")
        if self.isa not in ("", *ISAS):
            raise BadOption(option="isa", value=self.isa, advice=f"Use {' or '.join(ISAS)}, or leave it out")
        if self.ray is not None and not self.ray.strip():
            raise BadOption(option="ray", value=self.ray, advice="Give an address: auto, HOST:6379 or local")
        if self.memory_limit_mb is not None and not 64 <= self.memory_limit_mb <= _LARGEST:
            raise BadOption(option="memory limit", value=self.memory_limit_mb, advice="Give at least 64 MB")
        object.__setattr__(
            self, "constants", {name: constant_word(name, word) for name, word in self.constants.items()}
        )
        object.__setattr__(self, "shapes", {name: sizes_of(sizes) for name, sizes in self.shapes.items()})
        for name, sizes in self.shapes.items():
            if not sizes or not 1 <= min(sizes) <= max(sizes) <= _LARGEST:
                raise BadOption(
                    option="shape",
                    value=f"{name}={','.join(map(str, sizes))}",
                    advice="Give positive sizes: name=1,128",
                )

    def check_here(self) -> None:
        """What only the machine can say: options of a plan may be another one's.

        Raises:
            BadOption: there are too many threads for the cores.
        """
        cores = available_cores()
        if self.threads > MOST_THREADS_A_CORE * cores:
            advice = f"Here are {cores} cores; threads beyond that wait for each other. Give {cores} or fewer"
            raise BadOption(option="threads", value=self.threads, advice=advice)
        if self.threads > cores:
            _LOG.warning(
                "%d threads on %d cores wait for each other: expect slow and scattered times", self.threads, cores
            )

    def deciding(self) -> dict[str, Any]:
        """The fields on which a decision rests, by name: a new field is among them unless it says otherwise."""
        return {
            option.name: getattr(self, option.name) for option in fields(self) if option.metadata.get("decides", True)
        }

    def flags(self) -> list[str]:
        """The words of a command line that give these options: all that are not the default ones."""
        default, words = Options(), list[str]()
        for option in fields(self):
            value, flag = getattr(self, option.name), option.metadata["flag"]
            if value == getattr(default, option.name):
                continue
            if isinstance(value, bool):
                words.append(flag.partition("/")[0 if value else 2])
            elif option.name == "constants":
                for name, word in value.items():
                    words += [flag, name if word is None else f"{name}={word}"]
            elif isinstance(value, Mapping):
                for name, sizes in value.items():
                    words += [flag, f"{name}={','.join(map(str, sizes))}"]
            elif option.name == "cores":
                words += [flag, ",".join(map(str, value))]
            else:
                unit = _UNITS.get(option.name, "")
                for word in value if isinstance(value, tuple) else (value,):
                    words += [flag, f"{str(word).removesuffix('.0')}{unit}" if unit else str(word)]
        return words

    @property
    def profile(self) -> EffortProfile:
        """What the effort word means."""
        return PROFILES[self.effort]

    @property
    def bound(self) -> float:
        """Relative error that is always accepted; given in numbers, it is all that is."""
        return self.tolerance if self.tolerance is not None else BOUNDS[self.precision]
