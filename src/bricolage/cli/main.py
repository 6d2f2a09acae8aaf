"""The console entry. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from typer.core import TyperGroup

from bricolage._version import __version__
from bricolage.base.cache import VARIABLE
from bricolage.cli.arguments import fill_required_gain
from bricolage.errors import plain

_COMMANDS: Mapping[str, str] = {
    "optimize": "optimize",
    "quantize": "quantize",
    "pack": "pack",
    "run": "run",
    "generate": "generate_command",
    "serve": "serve_command",
    "export": "export",
    "bench": "run",
    "tune": "tune",
    "schedule": "schedule",
    "explain": "explain",
    "report": "explain",
    "rewrite": "rewrite",
    "bisect": "bisect",
    "reduce": "reduce",
    "backends": "backends",
}
"""Modules of this package by command, whose functions have the same names."""
_GROUPS: Mapping[str, tuple[str, str]] = {
    "costs": ("costs", "app"),
    "train": ("train", "app"),
    "cluster": ("cluster", "app"),
    "rules": ("rewrite", "rules"),
}
"""Commands with commands of their own: their modules, and the application in each."""


class _Commands(TyperGroup):
    """Fills in values that may be left out."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """The words that are left for the command."""
        return super().parse_args(ctx, fill_required_gain(args))


def build_app(only: str = "") -> typer.Typer:
    """The command line: of one command, whose module alone is imported, or of all."""
    application = typer.Typer(
        name="bricolage",
        cls=_Commands,
        help="The fastest verified way to run a deep-learning model on this machine.",
        epilog="Results go to stdout, everything else to stderr. Nothing is installed, downloaded or sent anywhere.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, module in _COMMANDS.items():
        if only in ("", name):
            application.command()(getattr(_import_module(module), name))
    for name, (module, group) in _GROUPS.items():
        if only in ("", name):
            if name == "cluster":
                _import_module("cluster_serve").add_to(_import_module("cluster").app)
            application.add_typer(getattr(_import_module(module), group), name=name)
    application.callback()(prepare)
    return application


def _import_module(name: str) -> ModuleType:
    return importlib.import_module(f"bricolage.cli.{name}")


def __getattr__(name: str) -> typer.Typer:
    """`app`: the whole command line, which is built when it is asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    application = globals()["app"] = build_app()
    return application


def _named_command(words: Sequence[str]) -> str:
    """The command in a command line whose first word, but for options with known values, is one; else nothing."""
    at = 0
    while at < len(words) and words[at] in ("-v", "--verbose", "--cache"):
        at += 2 if words[at] == "--cache" else 1
    return words[at] if at < len(words) and words[at] in {**_COMMANDS, **_GROUPS} else ""


def _version(asked: bool) -> None:
    if asked:
        print(f"bricolage {__version__}")
        raise typer.Exit


def prepare(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print more, and where the time went.")] = False,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="DIR", help=f"Folder for measurements and compiled code; default ${VARIABLE}."),
    ] = None,
) -> None:
    """Options before the command."""
    del version
    if cache is not None:
        os.environ[VARIABLE] = str(cache)  # so that worker processes have it, too
    logger = logging.getLogger("bricolage")
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Printable("%(message)s"))
        logger.addHandler(handler)


class _Printable(logging.Formatter):
    """Log lines hold names of models' tensors and words of artifacts."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines, with nothing in them that a terminal would obey."""
        return "\n".join(plain(line) for line in super().format(record).split("\n"))


def main() -> None:
    """Runs the command line and exits."""
    build_app(_named_command(sys.argv[1:]))()


if __name__ == "__main__":
    main()
