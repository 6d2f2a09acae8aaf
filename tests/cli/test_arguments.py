"""The options of a decision on the command line, derived from the fields of `Options`."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from bricolage.api.artifact_options import adopt_options
from bricolage.base.options import Options
from bricolage.cli.arguments import decision_options, exit_code, fill_required_gain
from bricolage.errors import NO_GAIN, OK, BadOption, UnknownPrecision

PAGE = Path(__file__).parents[2] / "docs" / "manual" / "commands" / "optimize.md"
run = CliRunner()


def app_of(got: list[dict[str, Any]], *names: str) -> typer.Typer:
    """A command with an argument and an option of its own."""
    app = typer.Typer()

    @app.command()
    @decision_options(*names)
    def command(
        model: Annotated[Path, typer.Argument()],
        loud: Annotated[bool, typer.Option("--loud")] = False,
        *,
        options: Options,
        given: frozenset[str],
    ) -> int:
        """Does it."""
        got.append({"model": model, "loud": loud, "options": options, "given": given})
        return 0

    return app


def called(*words: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
    got: list[dict[str, Any]] = []
    result = run.invoke(app_of(got, *names), list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return got[0]


def test_a_command_gets_checked_options_beside_its_own() -> None:
    found = called("m.onnx", "--loud", "--budget", "2m", "--shape", "n=1,8", "--shape", "b=2", "--cores", "0-1")
    assert found["model"] == Path("m.onnx") and found["loud"]
    assert found["options"] == Options(budget_s=120.0, shapes={"n": (1, 8), "b": (2,)}, cores=(0, 1))


def test_a_command_may_ask_which_were_given() -> None:
    always = {"rewrite", "predict", "shared"}  # a flag has always a value
    assert called("m.onnx")["given"] == always and called("m.onnx")["options"] == Options()
    assert called("m.onnx", "--seed", "0", "--isa", "")["given"] == {"seed", "isa"} | always, "default values too"


def test_an_option_named_twice_counts_once() -> None:
    assert called("m.onnx", "--backend", "torch", "--backend", "xla", "--backend", "torch")["options"].backends == (
        "torch",
        "xla",
    )


def test_a_command_may_take_some_only() -> None:
    found = called("m.onnx", "--seed", "3", names=("seed", "threads"))
    assert found["options"] == replace(Options(), seed=3) and found["given"] == {"seed"}
    refused = run.invoke(app_of([], "seed", "threads"), ["m.onnx", "--budget", "60s"])
    assert refused.exit_code == 2


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--precision", "lowest"], UnknownPrecision),
        (["--effort", "slow"], BadOption),
        (["--budget", "soon"], BadOption),
        (["--budget", "-5s"], BadOption),
        (["--threads", "0"], BadOption),
        (["--cores", "first"], BadOption),
        (["--isa", "sse4"], BadOption),
        (["--shape", "n"], BadOption),
        (["--memory-limit", "1"], BadOption),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused_is_our_own_error(words: list[str], error: type[Exception]) -> None:
    assert isinstance(run.invoke(app_of([]), ["m.onnx", *words]).exception, error)


def test_words_that_are_no_numbers_are_wrong_usage() -> None:
    for words in (["--threads", "many"], ["--tolerance", "small"], ["--seed", "1.5"]):
        assert run.invoke(app_of([]), ["m.onnx", *words]).exit_code == 2


def test_every_option_is_in_the_help_and_on_the_page_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown, page = run.invoke(app_of([]), ["--help"]).output, PAGE.read_text(encoding="utf-8")
    for option in fields(Options):
        for flag in option.metadata["flag"].split("/"):
            assert flag in shown and flag in page
        assert option.metadata["help"] in page
        if type(option.default) is not bool and option.default not in (None, MISSING):
            assert f"[default: {option.default}]" in page


def test_an_artifact_brings_its_shapes_unless_others_are_given(several: Path) -> None:
    from bricolage.plan import artifact

    plan, _ = artifact.load_artifact(several)
    found = adopt_options(several, Options(seed=4))
    names = {name for bucket in plan.buckets for name in bucket.program.sizes}
    assert found.seed == 4 and set(found.shapes) == names and names
    for name in names:
        assert found.shapes[name] == tuple(bucket.program.sizes[name] for bucket in plan.buckets)
    own = Options(shapes={"n": (3,)})
    assert adopt_options(several, own) is own


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["m.onnx", "--require-gain"], ["m.onnx", "--require-gain=0"]),
        (["--require-gain", "m.onnx"], ["--require-gain=0", "m.onnx"]),
        (["--require-gain", "--json"], ["--require-gain=0", "--json"]),
        (["--require-gain", "7.5", "m.onnx"], ["--require-gain", "7.5", "m.onnx"]),
        (["--require-gain=5", "m.onnx"], ["--require-gain=5", "m.onnx"]),
        (["m.onnx"], ["m.onnx"]),
        ([], []),
    ],
)
def test_a_gain_that_is_required_may_have_no_number(words: list[str], expected: list[str]) -> None:
    assert fill_required_gain(words) == expected


@pytest.mark.parametrize(
    ("required", "gains", "code"), [(None, False, OK), (None, True, OK), (0.0, False, NO_GAIN), (5.0, True, OK)]
)
def test_only_who_requires_a_gain_gets_another_exit_code(
    required: float | None, gains: bool, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(required, "nothing gains", gains=gains) == code
    assert ("nothing gains" in capsys.readouterr().err) == (not gains)
