"""The entry: help, imports, exit codes, and what is said when something goes wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bricolage import __version__, errors
from bricolage.cli import crash
from bricolage.cli.guard import INTERRUPTED, guard_command
from bricolage.cli.main import _named_command, app
from bricolage.graph.prepare import unbound

run = CliRunner()
HEAVY = ("torch", "onnx", "onnx_ir", "onnxruntime", "openvino", "jax", "tvm", "iree", "scipy", "numpy", "jinja2")


def bricolage(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from bricolage.cli.main import main; main()", *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
        encoding="utf-8",
    )


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "bricolage", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, encoding="utf-8")
    assert found.stdout == f"bricolage {__version__}\n" and __version__ == importlib.metadata.version("bricolage")


@pytest.mark.parametrize("statement", ["import bricolage", "import bricolage.cli.main"])
def test_importing_is_light(statement: str) -> None:
    code = f"{statement}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, encoding="utf-8"
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["generate", "m.gguf"], "generate"),
        (["-v", "--cache", "run", "train", "plan"], "train"),
        (["--cache=run", "run"], ""),
        (["--help"], ""),
        (["generat"], ""),
        (["--cache"], ""),
        ([], ""),
    ],
)
def test_a_command_that_is_named_is_the_only_one_that_is_imported(words: list[str], expected: str) -> None:
    """Without one, all are: for help, and for what is not right."""
    assert _named_command(words) == expected


def test_other_commands_are_not_imported() -> None:
    code = (
        "import sys, atexit; from bricolage.cli.main import main; sys.argv = ['bricolage', 'generate', '--help'];"
        "atexit.register(lambda: print([m for m in sys.modules if m.startswith('bricolage.cli.cluster')])); main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, encoding="utf-8"
    )
    assert "--max-tokens" in ran.stdout
    assert ran.stdout.rstrip().endswith("[]")


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, atexit; from bricolage.cli.main import main; sys.argv = ['bricolage', '--help'];"
        f"atexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules])); main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, encoding="utf-8"
    )
    for command in ("optimize", "run", "bench", "explain", "report", "backends", "costs"):
        assert f"\n  {command} " in found.stdout
    assert found.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize(
    "words", [["nonsense"], ["optimize"], ["optimize", "--nonsense"], ["run", "a.bricolage"], ["costs", "nonsense"]]
)
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    found = bricolage(*words)
    assert found.returncode == errors.USAGE
    assert found.stdout == "" and "Error" in found.stderr and "Traceback" not in found.stderr


def test_version() -> None:
    assert bricolage("--version").stdout.startswith("bricolage 0.")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["optimize", "absent.onnx"], "there is no file 'absent.onnx'"),
        (["bench", "absent.onnx"], "there is no file 'absent.onnx'"),
        (["explain", "absent.bricolage"], "there is no file 'absent.bricolage'"),
        (["report", "absent.bricolage"], "there is no file 'absent.bricolage'"),
        (["run", "absent.bricolage", "--input", "x.npz"], "there is no file 'x.npz'"),
        (["costs", "import", "absent.jsonl"], "there is no file 'absent.jsonl'"),
        (["optimize", "m.onnx", "--precision", "perfect"], "there is no precision 'perfect'"),
        (["optimize", "m.onnx", "--effort", "huge"], "effort cannot be 'huge'"),
        (["optimize", "m.onnx", "--budget", "soon"], "--budget cannot be 'soon'"),
        (["optimize", "m.onnx", "--budget", "nan"], "budget cannot be 'nan'"),
        (["optimize", "m.onnx", "--budget", "inf"], "budget cannot be 'inf'"),
        (["optimize", "m.onnx", "--shape", "batch"], "--shape cannot be 'batch'"),
        (["optimize", "m.onnx", "--threads", "0"], "threads cannot be '0'"),
        (["optimize", "m.onnx", "--tolerance", "2"], "tolerance cannot be '2.0'"),
    ],
)
def test_bad_input_is_one_sentence_and_a_next_step(words: list[str], what: str) -> None:
    found = run.invoke(app, words)
    assert found.exit_code == errors.USAGE
    assert found.stderr.count("\n") == 1 and found.stderr.startswith(f"bricolage: {what}. ")
    assert found.stdout == "" and not list(Path().iterdir())


def test_error_as_json() -> None:
    found = run.invoke(app, ["explain", "absent.bricolage", "--json"])
    failure = json.loads(found.stdout)["error"]
    assert failure["type"] == "MissingFile" and failure["exit_code"] == found.exit_code == errors.USAGE
    assert "absent.bricolage" in failure["message"] and failure["next_step"]


def leave(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def failing(as_json: bool = False) -> None:
        del as_json
        raise error

    with pytest.raises(typer.Exit) as caught:
        guard_command(failing)()
    return caught.value.exit_code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotAccurate(error=1e-3, bound=1e-6), errors.INACCURATE),
        (errors.NoBackend(why=""), errors.NO_BACKEND),
        (errors.MissingBackend(name="tvm", reason="it is not installed", cure="pip install it"), errors.NO_BACKEND),
        (errors.NotWritable(path="x", reason="No space left on device"), errors.USAGE),
    ],
)
def test_exit_codes_come_from_the_catalogue(
    error: errors.BricolageError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = leave(error, capsys)
    assert found == code and text.startswith(f"bricolage: {error.sentence}. ")


def test_sizes_are_asked_for_with_the_command_to_paste(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bricolage", "optimize", "my model.onnx", "--effort", "instant"])
    code, text = leave(unbound({"h w": ["x"], "n": ["x", "z"]}, {"h w": 224}, ["a reason"]), capsys)
    sentence, command = text.splitlines()
    assert (
        code == errors.USAGE
        and "'h w' of input 'x', 'n' of input 'x' and 1 more" in sentence
        and "a reason" in sentence
    )
    given = ["bricolage", "optimize", "my model.onnx", "--effort", "instant"]
    assert shlex.split(command) == [*given, "--shape", "h w=224", "--shape", "n=SIZE"], "it can be pasted into a shell"


def test_interrupt_says_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = leave(KeyboardInterrupt(), capsys)
    assert code == INTERRUPTED and "Every finished measurement is kept" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_supervisor_s_signal_ends_with_clean_up_and_says_what_is_kept(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import signal, time; from pathlib import Path\n"
        "from bricolage.base import scratch; from bricolage.cli.guard import guard_command\n"
        f"signal.signal({int(number)}, signal.SIG_DFL)  # under nohup it would stay ignored\n"
        f"def command(): print(scratch.make(Path({str(tmp_path)!r}), 'run-'), flush=True); time.sleep(60)\n"
        "import typer; app = typer.Typer(); app.command()(guard_command(command)); app()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    process.send_signal(number)
    _, words = process.communicate(timeout=30)
    assert process.returncode == 128 + number and not folder.exists()
    assert f"ended by {number.name}. Every finished measurement is kept" in words and words.count("\n") == 1


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    def command() -> None:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert callable(signal.getsignal(signal.SIGTERM))

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ending = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(typer.Exit) as caught:
            guard_command(command)()
        assert caught.value.exit_code == errors.OK
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is ending


def test_own_fault_leaves_a_folder(
    cache: Path, small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bricolage", "explain", str(small)])
    monkeypatch.setattr(crash, "_last_plan", None)
    code, text = leave(RuntimeError("broken\nin two lines"), capsys)
    assert code == errors.INTERNAL and text.count("\n") == 1 and "RuntimeError: broken)" in text
    (folder,) = cache.glob("crash-*")
    assert str(folder) in text
    assert "in two lines" in (folder / "traceback.txt").read_text(encoding="utf-8")
    assert "explain" in (folder / "command.txt").read_text(encoding="utf-8")
    assert "numpy " in (folder / "versions.txt").read_text(encoding="utf-8")
    assert json.loads((folder / "plan.json").read_text(encoding="utf-8"))["model"] == "sample.onnx"


def test_closed_pipe_is_no_fault(small: Path) -> None:
    script = "from bricolage.cli.main import main; main()"
    command = f'"{sys.executable}" -c "{script}" explain "{small}" --json | head -c 5'
    found = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    assert found.returncode == 0 and found.stderr == ""
