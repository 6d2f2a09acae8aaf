"""Options: what is refused, what a decision rests on, and the words of a command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bricolage.base.codec import decode, encode
from bricolage.base.efforts import PROFILES
from bricolage.base.option_words import parse_cores, parse_milliseconds, parse_seconds, parse_shapes
from bricolage.base.options import BOUNDS, EFFORTS, ISAS, PRECISIONS, WEIGHTS, Options
from bricolage.cli.arguments import decision_options
from bricolage.errors import BadOption, UnknownPrecision

words = st.text("abcdefghijklmnopqrstuvwxyz_0123456789.-", min_size=1, max_size=8)
distinct = st.lists(st.integers(0, 255), min_size=1, max_size=6, unique=True).map(lambda found: tuple(sorted(found)))
options = st.builds(
    Options,
    precision=st.sampled_from(PRECISIONS),
    tolerance=st.none() | st.floats(1e-9, 0.999),
    accuracy=st.sampled_from(
        ["relative", "sqnr=20", "cosine=0.99", "top1=1", "a b/metric.py:score>=0.5", "m.py:f<=-1e-3"]
    ),
    weights=st.sampled_from([None, *WEIGHTS]),
    objective=st.just("throughput"),
    latency_limit_ms=st.none() | st.floats(1e-3, 1e9),
    effort=st.sampled_from(EFFORTS),
    budget_s=st.none() | st.floats(1e-3, 1e9),
    threads=st.integers(1, 512),
    backends=st.none() | st.lists(words, min_size=1, max_size=4, unique=True).map(tuple),
    shapes=st.dictionaries(words, st.lists(st.integers(1, 4096), min_size=1, max_size=3).map(tuple), max_size=3),
    rewrite=st.booleans(),
    predict=st.booleans(),
    seed=st.integers(-(2**31), 2**63),
    isa=st.sampled_from(["", *ISAS]),
    cores=st.none() | distinct,
    memory_limit_mb=st.none() | st.integers(64, 1 << 20),
)
"""Those that a command line can give."""


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"effort": "slow"},
        {"tolerance": 0.0},
        {"tolerance": 1.0},
        {"tolerance": math.nan},
        {"budget_s": 0.0},
        {"budget_s": -1.0},
        {"budget_s": math.nan},
        {"budget_s": math.inf},
        {"threads": 0},
        {"threads": -2},
        {"threads": 1025},
        {"seed": 2**64},
        {"seed": -(10**30)},
        {"cores": (0, 10**9)},
        {"memory_limit_mb": 10**15},
        {"shapes": {"batch": (2**50,)}},
        {"isa": "sse4"},
        {"objective": "speed"},
        {"latency_limit_ms": 5.0},
        {"isa": "AVX2"},
        {"cores": ()},
        {"cores": (0, -1)},
        {"memory_limit_mb": 63},
        {"shapes": {"batch": ()}},
        {"shapes": {"batch": (1, 0)}},
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as found:
        Options(**wrong)
    (name,) = wrong
    option = name.removesuffix("_s").removesuffix("_mb").removesuffix("_ms").replace("_", " ")
    assert str(found.value.facts["option"]) in (option, "shape")


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_a_latency_limit_is_a_positive_time(limit: float) -> None:
    with pytest.raises(BadOption, match="latency limit"):
        Options(objective="throughput", latency_limit_ms=limit)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(UnknownPrecision, match="lowest"):
        Options(precision="lowest")  # type: ignore[arg-type]


def test_an_instruction_set_of_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_ISA", "avx2")
    assert Options().isa == "avx2" and Options(isa="").isa == ""
    monkeypatch.setenv("BRICOLAGE_ISA", "mmx")
    with pytest.raises(BadOption, match="mmx"):
        Options()


def test_there_are_no_more_threads_than_cores() -> None:
    assert Options(threads=8, cores=(0, 1)).threads == 2
    assert Options(threads=1, cores=(0, 1)).threads == 1


def test_threads_that_only_wait_for_each_other_are_refused_or_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bricolage.base.options.available_cores", lambda: 2)
    Options(threads=2).check_here()
    assert not caplog.records
    Options(threads=16).check_here()
    assert "16 threads on 2 cores" in caplog.text
    with pytest.raises(BadOption, match="Here are 2 cores"):
        Options(threads=17).check_here()


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0,,1", "0;1", "1.5"])
def test_bad_lists_of_cores_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="--cores"):
        parse_cores(text)


def test_cores_are_numbers_and_ranges() -> None:
    assert parse_cores("0-3") == (0, 1, 2, 3) and parse_cores("5,0-1,1") == (0, 1, 5)
    with pytest.raises(BadOption):
        Options(cores=parse_cores("3-1"))  # an empty range


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1e2s", 100)])
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "ten", "1d", "5 minutes"])
def test_bad_times_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="--budget"):
        parse_seconds(text)


@pytest.mark.parametrize(("text", "ms"), [("50", 50), ("50ms", 50), ("0.2s", 200), ("1e-1ms", 0.1), ("2s", 2000)])
def test_times_of_a_request(text: str, ms: float) -> None:
    assert parse_milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "s", "ms", "ten", "5m", "5 minutes", "50us"])
def test_bad_times_of_a_request_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="--latency-limit"):
        parse_milliseconds(text)


@pytest.mark.parametrize("word", ["", "batch", "batch=", "=1", "batch=1,", "batch=one", "batch=1.5"])
def test_bad_shapes_are_refused(word: str) -> None:
    with pytest.raises(BadOption, match="--shape"):
        parse_shapes([word])


# --- what follows from them -----------------------------------------------------------------------------------------


def test_the_bound_is_the_words_unless_a_tolerance_is_given() -> None:
    assert [Options(precision=word).bound for word in PRECISIONS] == [BOUNDS[word] for word in PRECISIONS]
    assert Options(precision="medium", tolerance=1e-5).bound == 1e-5


def test_more_effort_accepts_less_risk_and_has_more_time() -> None:
    profiles = [PROFILES[effort] for effort in EFFORTS]
    assert [one.risk for one in profiles] == sorted((one.risk for one in profiles), reverse=True)
    assert [one.budget_s for one in profiles] == sorted(one.budget_s for one in profiles)


# --- what a decision rests on ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MoreOptions(Options):
    """As if somebody added an option."""

    depth: int = 3


def test_a_new_option_decides_unless_it_says_otherwise() -> None:
    assert MoreOptions().deciding() != Options().deciding()
    assert MoreOptions(depth=4).deciding() != MoreOptions().deciding()
    assert set(MoreOptions().deciding()) - set(Options().deciding()) == {"depth"}


OTHER: dict[str, Any] = {
    "precision": "medium",
    "tolerance": 0.5,
    "accuracy": "sqnr=20",
    "weights": "int4",
    "objective": "throughput",
    "effort": "full",
    "budget_s": 7.0,
    "threads": 77,
    "pattern": "sparse",
    "shared": True,
    "backends": ("torch",),
    "shapes": {"n": (3,)},
    "constants": {"sr": "16000"},
    "rewrite": False,
    "predict": False,
    "seed": 5,
    "isa": "avx2",
    "cores": tuple(range(100)),
}


def test_every_option_decides_but_what_a_decision_is_made_with() -> None:
    base = Options(threads=1, isa="")
    changed = {name: replace(base, **{name: value}).deciding() for name, value in OTHER.items()}
    changed["latency_limit_ms"] = replace(base, objective="throughput", latency_limit_ms=5.0).deciding()
    assert changed["latency_limit_ms"] != changed["objective"]
    assert set(changed) == {one.name for one in fields(Options)} - {"memory_limit_mb", "ray"}
    assert all(found != base.deciding() for found in changed.values())
    assert replace(base, memory_limit_mb=512, ray="auto").deciding() == base.deciding()


def test_an_address_is_not_empty() -> None:
    with pytest.raises(BadOption, match="ray"):
        Options(ray=" ")


@given(options)
def test_options_are_kept_in_plans(made: Options) -> None:
    assert decode(Options, encode(made)) == made


# --- the command line -----------------------------------------------------------------------------------------------

run = CliRunner()


def parsed(arguments: Sequence[str]) -> Options:
    """What a command gets from the words."""
    got: list[Options] = []
    app = typer.Typer()

    @app.command()
    @decision_options()
    def command(*, options: Options) -> int:
        got.append(options)
        return 0

    result = run.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return got[0]


def test_default_options_need_no_words() -> None:
    assert Options().flags() == [] and parsed([]) == Options()


def test_flags_read_as_one_would_write_them() -> None:
    made = Options(budget_s=90.0, rewrite=False, cores=(0, 2), shapes={"batch": (1, 8), "n": (4, 4)}, tolerance=1e-5)
    text = " ".join(made.flags())
    for flag in ("--budget 90s", "--no-rewrite", "--cores 0,2", "--shape batch=1,8 --shape n=4,4", "--tolerance 1e-05"):
        assert flag in text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options, st.sampled_from([None, *ISAS]))
@example(Options(isa="", threads=1), "avx2")
@example(Options(budget_s=1234.56789), None)
def test_flags_make_the_same_options(monkeypatch: pytest.MonkeyPatch, made: Options, environment: str | None) -> None:
    with monkeypatch.context() as patch:
        if environment is None:
            patch.delenv("BRICOLAGE_ISA", raising=False)
        else:
            patch.setenv("BRICOLAGE_ISA", environment)
        assert parsed(made.flags()) == made


def test_one_size_may_stand_alone() -> None:
    assert Options(shapes={"batch": 4, "length": [1, 2]}).shapes == {"batch": (4,), "length": (1, 2)}
