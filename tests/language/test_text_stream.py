"""Whole characters, and nothing of a stop string, however the bytes come."""

from __future__ import annotations

import itertools
import random

import pytest

from bricolage.language.text_stream import TextStream

TEXT = "naïve €uro 🦔 – stop? STOP! end"


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    ends = [0, *itertools.accumulate(sizes), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


@pytest.mark.parametrize("stops", [(), ("STOP",), ("ST", "S"), ("🦔",), ("end!",), ("op? ST", "nd"), ("qqq", "- stop")])
def test_any_division_gives_the_same_text(stops: tuple[str, ...]) -> None:
    places = [place for place in map(TEXT.find, stops) if place >= 0]
    expected = TEXT[: min(places)] if places else TEXT
    draws = random.Random(7)
    for _ in range(200):
        sizes = [draws.randint(0, 4) for _ in range(12)] if draws.random() < 0.5 else [1] * 60
        stream, shown = TextStream(stops), ""
        for piece in pieces(TEXT.encode(), sizes):
            shown += stream.add(piece)
            assert expected.startswith(shown), "what was shown is never taken back"
        assert stream.stopped == bool(places)
        assert shown + stream.end() == expected


def test_nothing_is_held_back_without_a_reason() -> None:
    stream = TextStream(("STOP",))
    assert [stream.add(letter.encode()) for letter in "a S ST STx"] == [
        "a",
        " ",
        "",
        "S ",
        "",
        "",
        "ST ",
        "",
        "",
        "STx",
    ]


def test_a_stop_in_the_middle_of_a_character() -> None:
    """The text ends in front of a character that is not whole."""
    stream = TextStream()
    assert stream.add("a€".encode()[:3]) == "a" and stream.end() == ""


def test_bytes_that_are_no_text() -> None:
    stream = TextStream()
    assert stream.add(b"a\xffb") == "a\ufffdb"
