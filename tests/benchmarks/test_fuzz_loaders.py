"""A slice of the fuzzing of all loaders that always tries the same inputs, and that the fuzzer would notice what it is for."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fuzz_loaders import targets
from benchmarks.fuzz_loaders.mutate import CANARY
from benchmarks.fuzz_loaders.record import Finding, Record
from benchmarks.fuzz_loaders.targets import Loaders
from bricolage.base.codec import DecodeError

_INPUTS = 300


pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loaders]:
    monkeypatch.setenv("BRICOLAGE_CACHE", os.environ.get("BRICOLAGE_CACHE", ""))  # the fuzzer sets its own
    with targets.loaders() as made:
        yield made


def test_loaders_refuse_what_they_do_not_take_with_errors_of_our_own(loaders: Loaders) -> None:
    draw = random.Random(0)
    for _ in range(_INPUTS):
        data = draw.randbytes(draw.randrange(1, 200))
        found = loaders.attempt(data)
        assert found is None, f"{found.what}\n{data!r}\n{found.trace}"


@pytest.mark.parametrize("only", ["gguf", "hugging_face"])
def test_language_models_that_lie_are_refused_with_errors_of_our_own(
    only: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("BRICOLAGE_CACHE", os.environ.get("BRICOLAGE_CACHE", ""))
    draw = random.Random(1)
    with targets.loaders(only) as made:
        for _ in range(_INPUTS):
            data = draw.randbytes(draw.randrange(1, 200))
            found = made.attempt(data)
            assert found is None, f"{found.what}\n{data!r}\n{found.trace}"


def test_a_sound_artifact_is_taken(loaders: Loaders) -> None:
    loaders.load_sample()


def test_it_notices_foreign_exceptions_and_forbidden_files(loaders: Loaders, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise IndexError("of somebody else")

    def reads(*_: object) -> None:
        with pytest.raises(OSError):
            Path("/nowhere", CANARY).read_bytes()
        raise DecodeError("and then it is refused")

    for bad, what in ((breaks, "IndexError"), (reads, f"reads /nowhere/{CANARY}")):
        for name in ("decode", "load_onnx", "load_arrays"):
            monkeypatch.setattr(targets, name, bad)
        monkeypatch.setattr(targets.artifact, "load_artifact", bad)
        found = loaders.attempt(b"\0" * 8)
        assert found is not None and what in found.what


def test_counts_and_findings_outlive_the_process(tmp_path: Path) -> None:
    record = Record(tmp_path)
    for _ in range(3):
        record.count()
    record.note()
    record.keep(Finding("x: IndexError", 'File "a.py", line 1\nIndexError: x', b"one"))
    record.keep(Finding("x: IndexError", 'File "a.py", line 1\nIndexError: y', b"two"))
    record.trying(b"deadly")
    again = Record(tmp_path)
    again.ended("exit code -11")
    assert again.tried == 3
    assert sorted(path.read_bytes() for path in again.findings()) == [b"deadly", b"one"]
