"""Advice to install something names what registries have under that name: bricolage is in none."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bricolage import extras
from bricolage.backends import registry
from bricolage.backends.interface import Missing, installed
from bricolage.errors import KueueMissing, MissingLibrary, NoBackend, NoReference
from bricolage.extras import install_command, requirements

SOURCE = Path(extras.__file__).parent
DECLARED = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = sorted(DECLARED["optional-dependencies"])


@pytest.fixture(params=["metadata", "sources"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where extras are looked up: the metadata of an installed package, or the project's file."""
    lines: list[str] = []
    for extra, needed in DECLARED["optional-dependencies"].items():
        for requirement, _, marker in (one.partition(";") for one in needed):
            lines.append(f"{requirement}; {f'{marker} and ' if marker else ''}extra == '{extra}'")

    def declared(name: str) -> list[str]:
        if request.param == "sources":
            raise importlib.metadata.PackageNotFoundError(name)
        return [*DECLARED["dependencies"], *lines]

    monkeypatch.setattr(importlib.metadata, "requires", declared)
    if request.param == "metadata":
        monkeypatch.setattr(extras, "_PROJECT", Path("nowhere"))
    requirements.cache_clear()
    request.addfinalizer(requirements.cache_clear)
    return str(request.param)


@pytest.mark.parametrize("extra", EXTRAS)
def test_commands_name_what_an_extra_needs(extra: str, source: str) -> None:
    first, second, *named = shlex.split(install_command(extra))
    assert (first, second) == ("pip", "install") and named
    found = [Requirement(one) for one in named]
    assert "bricolage" not in {one.name for one in found}
    own = [Requirement(one) for one in DECLARED["optional-dependencies"][extra]]
    assert {str(one) for one in own if one.name != "bricolage"} <= {str(one) for one in found}


def test_several_extras_are_one_command(source: str) -> None:
    assert re.fullmatch(r"pip install 'onnxruntime>=[\d.]+' 'torch>=[\d.]+'", install_command("onnxruntime", "torch"))
    assert install_command("torch", "inductor") == install_command("torch")
    assert not requirements("nothing") and len(requirements("all")) > 5
    assert install_command("nothing") == "look up the extra nothing in bricolage's pyproject.toml"


def test_errors_and_backends_say_them() -> None:
    for error in (NoBackend(why=""), NoReference(reason="so"), KueueMissing(reason="so")):
        assert re.search(r"pip install '\w+>=", error.next_step)
    error = MissingLibrary(name="torch", purpose="to train", reason="so", extra="train")
    assert error.next_step == f"Install it: {install_command('train')}"
    for name in registry.names():
        status = registry.get(name).status()
        assert not isinstance(status, Missing) or "bricolage" not in status.cure
    assert installed("no-such-package", "none", "xla") == Missing(
        "the package no-such-package is not installed", install_command("xla")
    )
    assert installed("no-such-package", "none", "a-plugin-s") == Missing(
        "the package no-such-package is not installed", "pip install no-such-package"
    )


def test_every_extra_that_the_sources_name_is_one() -> None:
    called = re.compile(
        r"""\bextra\s*=\s*"([\w,-]+)"|installed\("[\w-]+", "[\w.]+", "(\w+)"\)|install_command\(["'](\w+)["']\)"""
    )
    found = {
        word
        for path in SOURCE.rglob("*.py")
        for groups in called.findall(path.read_text(encoding="utf-8"))
        for word in ",".join(filter(None, groups)).split(",")
    }
    assert len(found) > 10 and found <= set(EXTRAS)


def test_without_an_installed_package_the_sources_answer() -> None:
    """As where the folder of the sources is on the path alone."""
    script = "from bricolage.extras import install_command; print(install_command('xla'))"
    command = [sys.executable, "-S", "-c", script]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE.parent)}, encoding="utf-8"
    )
    assert shown.stdout.strip() == install_command("xla")
