"""Random plans for property tests."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from hypothesis import strategies as st

from bricolage.base.codec import Length, Matching, Within
from bricolage.base.options import PRECISIONS, Options
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.constant_inputs import ConstantInput
from bricolage.plan.decision_record import DecisionRecord
from bricolage.plan.disturbance_record import Disturbance
from bricolage.plan.number_sets import format_numbers
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.race_outcome import RaceOutcome
from bricolage.plan.rewrite_steps import RewriteStep
from bricolage.plan.schedules import PlannedSchedule
from bricolage.plan.shipped_program import PlannedRegion, ShippedProgram
from bricolage.plan.throughput import ServingConfig, Throughput
from bricolage.work.implementation import KernelConfig
from tests.plan.bucket_facts import make_bucket


def plans() -> st.SearchStrategy[Plan]:
    """Plans of any content that type annotations allow."""
    return of_type(Plan)


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values that a type annotation allows."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _OWN:
        return _OWN[kind]()
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{one.name: of_type(hints[one.name]) for one in dataclasses.fields(kind)})
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(of_type, arguments))
    if origin is frozenset:
        return st.frozensets(of_type(arguments[0]), max_size=3)
    if origin is tuple and arguments[-1] is ...:
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=3)
    return {str: st.text(max_size=8), int: st.integers(), float: finite, bool: st.booleans(), type(None): st.none()}[
        kind
    ]


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def _annotated(kind: Any, checks: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    (check,) = checks
    if isinstance(check, Within) and kind is int:
        return st.integers(int(check.low), int(check.high))
    if isinstance(check, Within):
        return st.floats(check.low, check.high, allow_nan=False)
    if isinstance(check, Matching):
        return st.from_regex(check.pattern, fullmatch=True)
    assert isinstance(check, Length)
    return st.lists(of_type(typing.get_args(kind)[0]), min_size=check.low, max_size=2).map(tuple)


def _options() -> st.SearchStrategy[Options]:
    return st.builds(
        Options,
        precision=st.sampled_from(PRECISIONS),
        tolerance=st.none() | st.floats(1e-6, 0.5),
        threads=st.integers(1, 64),
        constants=st.dictionaries(st.text(min_size=1), st.none() | st.text(), max_size=2),
        shapes=st.dictionaries(st.text(min_size=1), st.lists(st.integers(1, 512), min_size=1).map(tuple)),
        cores=st.none() | st.just((0, 1)),
    )


def _configs() -> st.SearchStrategy[KernelConfig]:
    scalars = st.integers() | finite | st.text() | st.booleans()
    names = st.sampled_from(("f32", "bf16", "f32-winograd2"))
    return st.builds(lambda name, given: KernelConfig(name).tuned(given), names, st.dictionaries(st.text(), scalars))


@st.composite
def _buckets(draw: st.DrawFn) -> Bucket:
    parts = [ShippedProgram, RaceOutcome, Verification, DecisionRecord]
    hints = {name: hint for part in parts for name, hint in typing.get_type_hints(part, include_extras=True).items()}
    given = {name: draw(of_type(hints[name])) for name in hints if name not in ("regions", "steps", "schedule")}
    given["operators"] = operators = draw(st.integers(0, 12))
    owners = draw(st.lists(st.integers(0, 2), min_size=operators, max_size=operators))
    region = typing.get_type_hints(PlannedRegion, include_extras=True)
    regions = []
    for owner in sorted(set(owners)):
        own = tuple(number for number, one in enumerate(owners) if one == owner)
        rest = {name: draw(of_type(region[name])) for name in region if name not in ("operators", "count")}
        regions.append(PlannedRegion(operators=format_numbers(own), count=len(own), **rest))
    contestants = draw(st.lists(of_type(typing.get_args(hints["contestants"])[0]), min_size=1, max_size=3))
    names = st.sampled_from([contestant.name for contestant in contestants])
    given |= {"regions": tuple(regions), "contestants": tuple(contestants)}
    given |= {"chosen": draw(names), "best_baseline": draw(names), "best_other": draw(st.just("") | names)}
    if draw(st.booleans()):
        rest = typing.get_type_hints(PlannedSchedule, include_extras=True)
        cores = [tuple(sorted(draw(st.sets(st.integers(0, 63), min_size=1, max_size=3)))) for _ in regions]
        facts = {name: draw(of_type(rest[name])) for name in rest if name not in ("cores", "ms")}
        ms = [draw(of_type(typing.get_args(rest["ms"])[0])) for _ in regions] if draw(st.booleans()) else []
        given["schedule"] = PlannedSchedule(cores=tuple(cores), ms=tuple(ms), **facts)
    return make_bucket(steps=draw(st.lists(of_type(RewriteStep), max_size=2).map(tuple)), **given)


@st.composite
def _plans(draw: st.DrawFn) -> Plan:
    hints = typing.get_type_hints(Plan, include_extras=True)
    given = {name: draw(of_type(hints[name])) for name in hints if name != "constants"}
    overridden = {name for bucket in given["buckets"] for name in bucket.program.overridden}
    optional = [spec.name for spec in given["defaults"] if spec.name not in overridden]
    names = draw(st.sets(st.sampled_from(optional))) if optional else ()
    return Plan(
        constants=tuple(ConstantInput(name, at, draw(st.text(max_size=8))) for at, name in enumerate(names)), **given
    )


@st.composite
def _disturbances(draw: st.DrawFn) -> Disturbance:
    hints = typing.get_type_hints(Disturbance, include_extras=True)
    given = {name: draw(of_type(hints[name])) for name in hints}
    given["samples"] = max(given["samples"], given["disturbed"], given["repeated"])
    return Disturbance(**given)


@st.composite
def _servers(draw: st.DrawFn) -> ServingConfig:
    hints = typing.get_type_hints(ServingConfig, include_extras=True)
    given = {name: draw(of_type(hints[name])) for name in hints}
    given["accepted"] = given["accepted"] and None not in (given["rate"], given["p99_ms"])
    return ServingConfig(**given)


@st.composite
def _throughputs(draw: st.DrawFn) -> Throughput:
    servers = draw(st.lists(_servers(), min_size=1, max_size=3, unique_by=lambda one: one.name).map(tuple))
    name = st.sampled_from([server.name for server in servers])
    hints = typing.get_type_hints(Throughput, include_extras=True)
    named = ("servers", "chosen", "best_peer", "front", "best_other")
    rest = {one: draw(of_type(hints[one])) for one in hints if one not in named}
    rest["best_other"] = draw(st.just("") | name)
    front = draw(st.lists(name, max_size=3).map(tuple))
    return Throughput(servers=servers, chosen=draw(name), best_peer=draw(name), front=front, **rest)


_OWN: Mapping[Any, Any] = {
    Options: _options,
    KernelConfig: _configs,
    Bucket: _buckets,
    Plan: _plans,
    Disturbance: _disturbances,
    ServingConfig: _servers,
    Throughput: _throughputs,
}
