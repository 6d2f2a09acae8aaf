"""Dataclasses to JSON and back: the types that there are, and what a damaged file says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.codec import FLAT, DecodeError, Length, Matching, Within, decode, encode, parse
from bricolage.base.options import Options

Scalar = bool | int | float | str
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.booleans() | st.integers() | finite | st.text()


@dataclass(frozen=True)
class Even:
    """Refuses odd numbers."""

    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


@dataclass(frozen=True)
class Everything:
    """One field of each kind."""

    path: Path
    names: frozenset[str]
    scalars: tuple[tuple[str, Scalar], ...]
    maybe: float | None
    pair: tuple[int, str]
    word: Literal["yes", "no"]
    table: Mapping[str, tuple[int, ...]]
    inner: tuple[Even, ...] = ()
    by_name: Mapping[str, Even] = field(default_factory=dict)
    either: Even | str | None = None


st.register_type_strategy(Even, st.builds(Even, st.integers().map(lambda n: 2 * n)))
everything = st.builds(
    Everything,
    path=st.lists(st.text("abc ._-", min_size=1), min_size=1).map(lambda parts: Path(*parts)),
    scalars=st.lists(st.tuples(st.text(), scalars)).map(tuple),
    maybe=st.none() | finite,
    either=st.none() | st.text() | st.builds(Even, st.just(4)),
)


def through_json(value: object) -> Any:
    return json.loads(json.dumps(encode(value)))


@given(everything)
def test_what_was_encoded_is_decoded(made: Everything) -> None:
    found = decode(Everything, through_json(made))
    assert found == made
    assert [type(value) for _, value in found.scalars] == [type(value) for _, value in made.scalars], "True is not 1"


@dataclass(frozen=True)
class EndNumbers:
    """A part whose fields stand among those of others."""

    first: int
    last: Annotated[int, Within(0, 9)] = 9


@dataclass(frozen=True)
class NamedLength:
    """Another part, which refuses odd lengths."""

    name: str
    length: int = 2

    def __post_init__(self) -> None:
        if self.length % 2:
            raise ValueError(f"{self.length} is odd")


@dataclass(frozen=True)
class TwoParts:
    """One object of JSON in memory as two parts, and a field of its own."""

    ends: EndNumbers = field(metadata=FLAT)
    named: NamedLength = field(metadata=FLAT)
    note: str = ""

    KEY_ORDER: ClassVar[tuple[str, ...]] = ("name", "first", "note", "last", "length")


@dataclass(frozen=True)
class PartOfPart:
    """A part of a part, in the order of its fields."""

    outer: TwoParts = field(metadata=FLAT)
    more: tuple[TwoParts, ...] = ()


TWO_PARTS = TwoParts(EndNumbers(1, 3), NamedLength("x", 4), "n")
FLATTENED = {"name": "x", "first": 1, "note": "n", "last": 3, "length": 4}


def test_flat_fields_stand_in_the_object_that_they_are_a_part_of() -> None:
    assert list(encode(TWO_PARTS).items()) == list(FLATTENED.items()), "in the order of its class"
    assert decode(TwoParts, FLATTENED) == TWO_PARTS
    assert decode(TwoParts, {"name": "x", "first": 1}) == TwoParts(EndNumbers(1), NamedLength("x")), (
        "each with its defaults"
    )
    nested = PartOfPart(TWO_PARTS, (TWO_PARTS,))
    assert encode(nested) == {**FLATTENED, "more": [FLATTENED]} and decode(PartOfPart, encode(nested)) == nested


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ends": {"first": 1}}, "plan has the unknown field 'ends'"),
        ({"first": None}, "plan.first is no int"),
        ({"last": 10, "length": 3}, "plan.last is not between 0 and 9"),
        ({"length": 3}, "plan: 3 is odd"),
    ],
)
def test_damaged_parts_are_told_as_if_there_were_none(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(DecodeError, match=f"^{re.escape(sentence)}$"):
        decode(TwoParts, {**FLATTENED, **change})
    with pytest.raises(DecodeError, match="^plan lacks the field 'first'$"):
        decode(TwoParts, {"name": "x"})


def test_keys_are_named_once_each() -> None:
    @dataclass(frozen=True)
    class KeyTwice:
        ends: EndNumbers = field(metadata=FLAT)
        first: int = 0

    @dataclass(frozen=True)
    class KeyForgotten:
        ends: EndNumbers = field(metadata=FLAT)

        KEY_ORDER: ClassVar[tuple[str, ...]] = ("first",)

    with pytest.raises(TypeError, match="KeyTwice has the key 'first' twice"):
        decode(KeyTwice, {})
    with pytest.raises(TypeError, match="KEY_ORDER of KeyForgotten does not name each of its keys once"):
        decode(KeyForgotten, {})


def plain(**changed: object) -> dict[str, object]:
    """A good object with some fields changed."""
    good = {
        "path": "a/b",
        "names": ["x"],
        "scalars": [["k", 1]],
        "maybe": None,
        "pair": [1, "one"],
        "word": "yes",
        "table": {"n": [1]},
    }
    return {**good, **changed}


def test_a_path_is_a_text_in_json() -> None:
    assert encode(Path("/tmp/a b.onnx")) == "/tmp/a b.onnx"
    assert decode(Path, "/tmp/a b.onnx") == Path("/tmp/a b.onnx")
    with pytest.raises(DecodeError, match="plan is no Path"):
        decode(Path, 3)


def test_a_set_is_a_sorted_list_in_json() -> None:
    assert encode(frozenset("cab")) == ["a", "b", "c"]
    assert decode(frozenset[str], ["b", "a", "b"]) == frozenset("ab")
    with pytest.raises(DecodeError, match=r"^names is no list$"):
        decode(frozenset[str], "ab", "names")
    with pytest.raises(DecodeError, match=r"^names\[1\] is no str$"):
        decode(frozenset[str], ["a", 1], "names")


@given(scalars)
def test_scalars_keep_their_types(value: Scalar) -> None:
    found = decode(Scalar, json.loads(json.dumps(value)))  # type: ignore[arg-type]
    assert found == value and type(found) is type(value)


def test_whole_numbers_are_floats_where_floats_are_meant() -> None:
    assert decode(float, 3) == 3.0 and isinstance(decode(float, 3), float)
    assert decode(float | None, 3) == 3.0
    with pytest.raises(DecodeError):
        decode(float, True)
    with pytest.raises(DecodeError):
        decode(int, True)
    with pytest.raises(DecodeError):
        decode(int, 3.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (plain(path=None), "it.path is no Path"),
        (plain(names={}), "it.names is no list"),
        (plain(scalars=[["k", None]]), r"it.scalars\[0\]\[1\] is no str"),
        (plain(scalars=[["k"]]), r"it.scalars\[0\] has 1 items instead of 2"),
        (plain(maybe="1.0"), "it.maybe is no float"),
        (plain(pair="1"), "it.pair is no list"),
        (plain(word="perhaps"), "it.word is none of yes, no"),
        (plain(table=[]), "it.table is no object"),
        (plain(table={"n": [1, "2"]}), r"it.table.n\[1\] is no int"),
        (plain(inner=[{"number": 2}, 3]), r"it.inner\[1\] is no object"),
        (plain(inner=[{}]), r"it.inner\[0\] lacks the field 'number'"),
        (plain(extra=1), "it has the unknown field 'extra'"),
        ({key: value for key, value in plain().items() if key != "word"}, "it lacks the field 'word'"),
        ([], "it is no object"),
        (None, "it is no object"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(data: object, message: str) -> None:
    assert isinstance(decode(Everything, plain(), "it"), Everything)
    with pytest.raises(DecodeError, match=f"^{message}$"):
        decode(Everything, data, "it")


def test_what_an_object_refuses_is_named_by_its_path() -> None:
    with pytest.raises(DecodeError, match=r"^it.inner\[1\]: 3 is odd$") as found:
        decode(Everything, plain(inner=[{"number": 2}, {"number": 3}]), "it")
    assert isinstance(found.value.__cause__, ValueError)
    with pytest.raises(DecodeError, match=r"^it.by_name.x: 5 is odd$"):
        decode(Everything, plain(by_name={"x": {"number": 5}}), "it")


def test_an_object_that_is_refused_may_fit_another_part_of_a_union() -> None:
    assert decode(Everything, plain(either="text")).either == "text"
    assert decode(Everything, plain(either={"number": 4})).either == Even(4)
    with pytest.raises(DecodeError, match=r"it\.either"):
        decode(Everything, plain(either={"number": 5}), "it")


@dataclass(frozen=True)
class Limited:
    """Values within limits."""

    count: Annotated[int, Within(0, 10)] = 0
    share: Annotated[float, Within(0.0, 1.0)] = 0.0
    name: Annotated[str, Matching("[a-z]+", "word")] = "a"
    many: Annotated[tuple[int, ...], Length(0, 2)] = ()
    sizes: Mapping[Annotated[str, Matching("[a-z]+", "word")], Annotated[int, Within(1, 9)]] = field(
        default_factory=dict
    )
    maybe: Annotated[int, Within(0, 10)] | None = None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"count": -1}, "it.count is not between 0 and 10"),
        ({"count": 10**400}, "it.count is not between 0 and 10"),
        ({"share": float("nan")}, "it.share is not between 0 and 1"),
        ({"share": float("inf")}, "it.share is not between 0 and 1"),
        ({"share": 10**400}, "it.share is no float"),
        ({"name": "../x"}, "it.name is no word"),
        ({"name": "a\n"}, "it.name is no word"),
        ({"many": [1, 2, 3]}, "it.many has 3 items, not 0 to 2"),
        ({"sizes": {"a": 0}}, "it.sizes.a is not between 1 and 9"),
        ({"sizes": {"A": 1}}, "it.sizes has a key that is no word"),
        ({"maybe": 11}, "it.maybe is not between 0 and 10"),
    ],
)
def test_values_out_of_range_are_named_by_their_path(data: object, message: str) -> None:
    good = Limited(10, 1.0, "abc", (1, 2), {"a": 9}, 10)
    assert decode(Limited, through_json(good), "it") == good
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        decode(Limited, data, "it")


@pytest.mark.parametrize("text", ["[" * 100_000, "{", b"\xff\xfe\xfd", "1" * 5_000, ""])
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(DecodeError):
        parse(text)


def test_what_the_catalogue_refuses_is_named_by_its_path() -> None:
    with pytest.raises(DecodeError, match=r"^it.threads: threads cannot be '-3'$|^it: threads cannot be '-3'$"):
        decode(Options, {**encode(Options(threads=1)), "threads": -3}, "it")
