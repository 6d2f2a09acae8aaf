"""Values of options from the words of a command line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bricolage.errors import BadOption

HIGHEST_CORE = 65_535
_LONGEST_CONSTANT = 1 << 16
"""Letters of a value on a command line and in a plan."""
SearchMethod: TypeAlias = Literal["backtrack", "saturate", "random-keys", "learned-keys"]
"""Ways to look for the cheapest of many equal graphs (see `bricolage.rewrite.search`)."""


_BYTE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_bytes(word: str, option: str = "--memory") -> int:
    """Bytes that an option says.

    Raises:
        BadOption: no size, or none that there can be.
    """
    unit = word.strip().lstrip("0123456789.eE+-")
    try:
        value = float(word.strip()[: len(word.strip()) - len(unit)]) * _BYTE_UNITS[unit.strip().lower()]
        if not 0 < value < 2**62:
            raise ValueError
    except (ValueError, KeyError):
        raise BadOption(option=option, value=word, advice="Write a size with a unit: 2GB, 300MB") from None
    return int(value)


def sizes_of(given: int | Sequence[int]) -> tuple[int, ...]:
    """Of one dimension; a single one may stand alone."""
    return tuple(given) if isinstance(given, Sequence) else (given,)


def is_number(word: str) -> bool:
    """Whether a word of a command line or of a user's table is written as a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def parse_shapes(words: tuple[str, ...] | list[str]) -> dict[str, tuple[int, ...]]:
    """`["batch=1,8", "sequence=128"]` → sizes per symbolic dimension.

    Raises:
        BadOption: a word is not NAME=SIZE[,SIZE...].
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for word in words:
        name, equals, sizes = word.partition("=")
        try:
            if not (name and equals):
                raise ValueError
            shapes[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            raise BadOption(option="--shape", value=word, advice="Write NAME=SIZE or NAME=SIZE,SIZE") from None
    return shapes


def parse_constants(words: Sequence[str]) -> dict[str, str | None]:
    """`["sr=16000", "mode"]` → the word of each input's value; None where the value is that of the inputs given.

    Raises:
        BadOption: a word without a name, or a name twice.
    """
    constants: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise BadOption(option="--constant", value=word, advice="Write NAME=VALUE, or NAME for that of --input")
        if name in constants:
            raise BadOption(option="--constant", value=word, advice=f"'{name}' is given twice: an input has one value")
        constants[name] = value if equals else None
    return constants


def constant_word(name: str, value: object) -> str | None:
    """The value of a constant input, a number, truth value, list of them or array, as the command line has it; words and None
    stay.

    Raises:
        BadOption: it is none of these, or longer than 65,536 letters.
    """
    if hasattr(value, "tolist"):  # arrays of numpy and torch, whose own words are shortened
        value = value.tolist()
    if value is None or isinstance(value, str):
        return value
    try:
        word = json.dumps(value if isinstance(value, bool | int | list | tuple) else float(value), default=float)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        advice = "Give a number, a truth value, a list of them or an array"
        raise BadOption(option="constant", value=f"{name}={value}", advice=advice) from None
    if len(word) > _LONGEST_CONSTANT:
        advice = f"Give it among the inputs, and its name alone here: constants={{'{name}': None}}"
        raise BadOption(option="constant", value=f"{name}={word[:20]}...", advice=advice)
    return word


def parse_cores(text: str) -> tuple[int, ...]:
    """`"0-3"` or `"0,2"` → numbers of logical processors, ascending.

    Raises:
        BadOption: not such a list.
    """
    cores: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            if int(last if dash else first) > HIGHEST_CORE:
                raise ValueError
            cores.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        raise BadOption(option="--cores", value=text, advice="Write for example 0-3 or 0,2") from None
    return tuple(sorted(cores))


def parse_seconds(text: str) -> float:
    """`"90"`, `"90s"`, `"2m"` or `"1h"` → seconds.

    Raises:
        BadOption: not a time.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        return float(number) * unit
    except ValueError:
        raise BadOption(option="--budget", value=text, advice="Write for example 60s, 5m or 1h") from None


def parse_milliseconds(text: str, option: str = "--latency-limit") -> float:
    """`"50ms"`, `"0.2s"` or `"50"` → milliseconds.

    Raises:
        BadOption: not a time.
    """
    advice = "Write for example 50ms or 0.2s"
    number, factor = (
        (text[:-1], 1e3) if text.endswith("s") and not text.endswith("ms") else (text.removesuffix("ms"), 1.0)
    )
    try:
        return float(number) * factor
    except ValueError:
        raise BadOption(option=option, value=text, advice=advice) from None


@dataclass(frozen=True)
class AccuracyWord:
    """What `--accuracy` says."""

    measure: str
    """relative, sqnr, cosine or top1; "function" for one of the user's."""
    limit: float | None
    """None: the precision's."""
    at_least: bool
    """Whether more is better."""
    path: str = ""
    function: str = ""


_ACCURACY_ADVICE = "Write relative, sqnr=DB, cosine=X, top1=SHARE, or FILE.py:FUNCTION>=X (or <=X)"
_RANGES = {"sqnr": (-300.0, 300.0), "cosine": (-1.0, 1.0), "top1": (0.0, 1.0)}
_METRIC = re.compile(r"(?P<path>.+\.py):(?P<function>[A-Za-z_]\w*)(?P<sign>>=|<=|=)(?P<limit>[^=<>]+)")


def parse_accuracy(word: str) -> AccuracyWord:
    """`"relative"`, `"top1=0.99"` or `"metric.py:score>=0.98"` → a measure and its limit.

    Raises:
        BadOption: neither a measure with a limit in its range nor a function with one.
    """
    if word == "relative":
        return AccuracyWord("relative", None, at_least=False)
    try:
        if metric_match := _METRIC.fullmatch(word):
            limit, at_least = float(metric_match["limit"]), metric_match["sign"] != "<="
            parsed = AccuracyWord("function", limit, at_least, metric_match["path"], metric_match["function"])
            low, high = -math.inf, math.inf
        else:
            name, _, number = word.partition("=")
            low, high = _RANGES[name]
            parsed = AccuracyWord(name, float(number), at_least=True)
        if parsed.limit is None or not low <= parsed.limit <= high or not math.isfinite(parsed.limit):
            raise ValueError
    except (KeyError, ValueError):
        raise BadOption(option="--accuracy", value=word, advice=_ACCURACY_ADVICE) from None
    return parsed
