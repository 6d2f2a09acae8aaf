"""What running an artifact needs in Python: the size of bricolage's wheel, and the time of a process to its first answer.

    python -m benchmarks.installed --json
    python -m benchmarks.installed --workload minilm-l6 --rounds 15 --csv docs/log/data/DATE-installed-PROCESSOR.csv

The wheel is built from this checkout and unpacked; processes see it and numpy, and no other package, unless the row says so. They
take turns, each from the start of the interpreter to its first answer, with everything in the page cache. The rows:

* numpy: a process that imports numpy alone, which all others contain;
* kept: `bricolage.load` of an artifact that was loaded before, and one run;
* read: the same with all packages, after what the earlier process kept of the program was removed: graphs are read, and the
  compiled code is found by its contents;
* command: `bricolage run`, with all packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from benchmarks.tools.output import keep_table
from benchmarks.workloads import export, workloads
from bricolage.api.optimize import optimize
from bricolage.base.cache import VARIABLE
from bricolage.base.options import Options
from bricolage.device.host import host

ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE")
"""What a wheel is built from, in addition to `src`."""
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
_NUMPY = ("numpy", "numpy.libs")
"""Folders of numpy's wheel."""
_IMPORT_NUMPY = "import numpy"
_LOAD = """
import json, sys, time
import numpy as np
before, begun = set(sys.modules), time.perf_counter()
import bricolage
imported = time.perf_counter()
fast = bricolage.load(sys.argv[1])
loaded = time.perf_counter()
fast.run(dict(np.load(sys.argv[2])))
answered = time.perf_counter()
ours = {name for name in set(sys.modules) - before if sys.modules[name] is not None}
others = {name.partition(".")[0] for name in ours} - sys.stdlib_module_names - {"bricolage", "numpy"}
times = {"import_ms": imported - begun, "load_ms": loaded - imported, "first_ms": answered - loaded}
facts = {name: seconds * 1e3 for name, seconds in times.items()}
# Of this program alone: what getrusage says begins with the process that started it.
peak_mb = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
print(json.dumps(facts | {"modules": len(ours), "packages": len(others), "resident_mb": peak_mb}))
"""
_COMMAND = "import sys; from bricolage.cli.main import main; sys.argv[:] = ['bricolage', 'run', *sys.argv[1:]]; main()"


@dataclass(frozen=True)
class WheelSize:
    """Of bricolage, without what it depends on."""

    wheel_mb: float
    installed_mb: float
    """Its files, without the bytecode that an installer adds."""


@dataclass(frozen=True)
class Start:
    """A kind of process; milliseconds are medians over all of its turns."""

    contestant: str
    process_ms: float
    """From its start to its end, the interpreter's own included."""
    import_ms: float | None = None
    """`import bricolage`, numpy being there."""
    load_ms: float | None = None
    first_ms: float | None = None
    modules: int | None = None
    """That were imported in addition to numpy's."""
    packages: int | None = None
    """Of others, to which these modules belong."""
    resident_mb: float | None = None
    """At most."""


@dataclass(frozen=True)
class Place:
    """The folders of a run of the benchmark."""

    artifact: Path
    inputs: Path
    cache: Path
    lean: str
    """Import path with the wheel and numpy."""
    whole: str
    """Import path with the wheel and all installed packages."""


def build_wheel(folder: Path) -> Path:
    """Builds the wheel."""
    sources = folder / "sources"  # a copy: what earlier builds left in the checkout would be packed, too
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in _SOURCES:
        shutil.copy(ROOT / name, sources)
    building = [*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources)]
    subprocess.run(building, check=True)
    (wheel,) = folder.glob("bricolage-*.whl")
    return wheel


def measure_wheel(wheel: Path) -> WheelSize:
    """Its size, packed and unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    return WheelSize(wheel.stat().st_size / 1e6, unpacked / 1e6)


def install_wheel(wheel: Path, target: Path) -> None:
    """Installs it into a folder of its own, with bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([*_PIP, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, env=environment)


def prepare_place(workload: str, folder: Path, installed: Path) -> Place:
    """Decides for our engine alone, with a cache of its own."""
    cache, lean = folder / "cache", folder / "lean"
    lean.mkdir()
    for name in _NUMPY:
        source = Path(np.__file__).parents[1] / name
        if source.exists():
            (lean / name).symlink_to(source)
    cache.mkdir(mode=0o700)
    built = workloads()[workload]
    inputs = built.example_inputs(0)
    artifact, arrays = folder / "model.bricolage", folder / "inputs.npz"
    optimize(export(built), Options(effort="instant", backends=("native",)), inputs=inputs).save(artifact)
    np.savez(arrays, **inputs)  # type: ignore[arg-type]
    sources = {"", str(ROOT), str(ROOT / "src")}
    everything = [str(installed), *(path for path in sys.path if path not in sources)]
    return Place(artifact, arrays, cache, os.pathsep.join([str(installed), str(lean)]), os.pathsep.join(everything))


def time_process(code: str, path: str, place: Place, *words: str) -> tuple[float, Mapping[str, float]]:
    """Milliseconds of a process that runs `code` with an import path, and the facts that it prints as JSON in its last line."""
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: str(place.cache)}
    begun = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code, *words], env=environment, capture_output=True, text=True, check=True
    )
    took_ms = (time.perf_counter() - begun) * 1e3
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    return took_ms, json.loads(last) if last.startswith("{") else {}


def forget_programs(place: Place) -> None:
    """Removes what earlier processes kept of programs, and leaves their code."""
    for record in place.cache.glob("compiled/*/*/program-*"):
        shutil.rmtree(record)


def measure_starts(place: Place, rounds: int) -> list[Start]:
    """All kinds of processes, in turns."""
    files = str(place.artifact), str(place.inputs)
    time_process(_LOAD, place.whole, place, *files)  # it unpacks the artifact and compiles it
    turns: dict[str, list[tuple[float, Mapping[str, float]]]] = {}
    for _ in range(rounds):
        turns.setdefault("numpy", []).append(time_process(_IMPORT_NUMPY, place.lean, place))
        turns.setdefault("kept", []).append(time_process(_LOAD, place.lean, place, *files))
        command = time_process(_COMMAND, place.whole, place, files[0], "--input", files[1])
        turns.setdefault("command", []).append(command)
        forget_programs(place)
        turns.setdefault("read", []).append(time_process(_LOAD, place.whole, place, *files))
    return [summarise_turns(name, taken) for name, taken in turns.items()]


def summarise_turns(contestant: str, turns: Sequence[tuple[float, Mapping[str, float]]]) -> Start:
    """Medians of what the processes of a kind took and told."""
    told = turns[0][1]
    facts = {name: statistics.median(facts[name] for _, facts in turns) for name in told}
    whole = {name: round(facts.pop(name)) for name in ("modules", "packages") if name in facts}
    return Start(contestant, statistics.median(ms for ms, _ in turns), **facts, **whole)  # type: ignore[arg-type]


def format_table(size: WheelSize, starts: Sequence[Start]) -> str:
    """The size in a line, and the starts as a Markdown table."""
    names = [each.name for each in fields(Start)][1:]
    lines = [
        f"wheel {size.wheel_mb:.1f} MB, installed {size.installed_mb:.1f} MB",
        "",
        "| contestant | " + " | ".join(name.replace("_", " ") for name in names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    lines += ["| " + " | ".join(format_facts(start)) + " |" for start in starts]
    return "\n".join(lines)


def format_facts(start: Start) -> list[str]:
    """What is known of a kind of process, in the order of its fields, with three significant digits."""
    contestant, *facts = asdict(start).values()
    return [contestant, *("" if fact is None else f"{fact:.0f}" if fact >= 100 else f"{fact:.3g}" for fact in facts)]


def tabulate_rows(size: WheelSize, starts: Sequence[Start]) -> list[dict[str, str]]:
    """A run as docs/results.md reads it; the size of the wheel stands in the row of what needs no more."""
    names, sizes = [each.name for each in fields(Start)], asdict(size).items()
    return [
        dict(zip(names, format_facts(start), strict=True))
        | {name: f"{mb:.1f}" if start.contestant == "kept" else "" for name, mb in sizes}
        for start in starts
    ]


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.installed", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="resnet-50", help="whose artifact is loaded")
    parser.add_argument("--rounds", type=int, default=9, help="processes of each kind")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the rows for docs/results.md here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="installed-") as words:
        folder = Path(words)
        wheel, installed = build_wheel(folder), folder / "installed"
        size = measure_wheel(wheel)
        install_wheel(wheel, installed)
        os.environ[VARIABLE] = str(folder / "cache")
        starts = measure_starts(prepare_place(given.workload, folder, installed), given.rounds)
    keep_table(tabulate_rows(size, starts), given.csv)
    document = {
        "hardware": str(host()),
        "workload": given.workload,
        **asdict(size),
        "starts": [asdict(start) for start in starts],
    }
    print(json.dumps(document, indent=1) if given.json else format_table(size, starts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
