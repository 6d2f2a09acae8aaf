"""The pages of docs/manual/exporters.md, run as they stand: `python -m tests.exporters FOLDER`, or `make test-exporters`.

For each section an environment is made with the packages that it names, its program is run there, and bricolage is checked to
optimise what came out and to answer as the framework did.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bricolage.api.optimize import optimize
from bricolage.base.options import Options

PAGE = Path(__file__).parents[1] / "docs" / "manual" / "exporters.md"
_BUDGET_S = 15.0
_CLOSE = 1e-4


@dataclass(frozen=True)
class Section:
    """One framework: the commands that make its environment, and a program that exports a model."""

    name: str
    setup: str
    program: str


def sections() -> Iterator[Section]:
    """What the page holds."""
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        setup = re.search(r"^(python -m venv .*)$", part, re.MULTILINE)
        program = re.search(r"<<'END'\n(.*?)^END$", part, re.DOTALL | re.MULTILINE)
        if setup and program:
            yield Section(part.splitlines()[0], setup.group(1), program.group(1))


def check(section: Section, folder: Path) -> float:
    """Follows a section in an empty folder; how far the answer is from the framework's.

    Raises:
        CalledProcessError: a command fails.
    """
    folder.mkdir(parents=True)
    (folder / "export.py").write_text(section.program, encoding="utf-8")
    environment = section.setup.split()[3]
    subprocess.run(section.setup.replace("python ", f"{sys.executable} ", 1), shell=True, cwd=folder, check=True)
    subprocess.run([folder / environment / "bin" / "python", "export.py"], cwd=folder, check=True)
    (model,) = folder.glob("*.onnx")
    given, wanted = dict(np.load(folder / "image.npz")), np.load(folder / "wanted.npy")
    (found,) = optimize(model, Options(budget_s=_BUDGET_S), inputs=given).run(given).values()
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.exporters", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where environments and models go; must not exist")
    given = parser.parse_args()
    bad = 0
    for number, section in enumerate(sections()):
        error = check(section, given.folder / str(number))
        bad += not error < _CLOSE
        print(f"{section.name}: the answer is {error:.1e} from the framework's", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
