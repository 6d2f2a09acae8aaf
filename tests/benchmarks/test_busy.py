"""What `benchmarks.busy` and `benchmarks.commits` make of what they see."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from benchmarks import busy
from benchmarks.busy import Row, table, verdict
from benchmarks.commits import take_turns

_RUNNER = """
import json, sys
print(json.dumps({load}), flush=True)
for line in sys.stdin:
    print(json.dumps([{ms}] * 3), flush=True)
    if {ends}:
        sys.exit(3)
"""


def runner(ms: float, load: float, ends: bool = False) -> subprocess.Popen[str]:
    code = _RUNNER.format(ms=ms, load=load, ends=ends)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )


def test_programs_take_turns_and_the_ratio_is_of_the_first_one_s_time() -> None:
    turns = take_turns([partial(runner, 3.0, 0.5), partial(runner, 2.0, 0.25)])
    assert turns.ms == (3.0, 2.0) and turns.load_s == (0.5, 0.25)
    assert turns.ratio.value == pytest.approx(1.5) and turns.ratio.rounds == 36


def test_a_program_that_ends_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended with 3"):
        take_turns([partial(runner, 3.0, 0.5, ends=True), partial(runner, 2.0, 0.25)])


def row(load: str, shipped: str, regret: float, ratio: float) -> Row:
    same = regret == 1.0
    return Row("resnet-50", load, shipped, "native f32", regret, (regret, regret), same, 60.0, ratio, "race", "")


def test_decisions_that_held_and_accidents_are_counted() -> None:
    rows = [
        row("bursty", "native f32", 1.0, 1.1),
        row("memory", "openvino f32", 1.03, 1.4),
        row("2-nice0", "torch f32", 1.49, 0.9),
    ]
    assert verdict(rows) == (
        "2 of 3 decisions are within 3% of the one in quiet; PyTorch eager by accident: 1; longest decision: 1.40 times "
        "that in quiet"
    )
    text = table(rows)
    assert "same plan" in text and "**1.490** [1.490, 1.490]" in text and text.count("\n") == 4
    assert verdict([]).startswith("0 of 0")


def test_an_unknown_load_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["busy", "--load", "noisy"])
    with pytest.raises(SystemExit):
        busy.main()
    assert "there is no load 'noisy'; there are: quiet" in capsys.readouterr().err
