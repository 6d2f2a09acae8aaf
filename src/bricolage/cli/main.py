"""The console entry. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from bricolage._version import __version__
from bricolage.base.cache import VARIABLE
from bricolage.cli import cluster, cluster_serve, costs, train
from bricolage.cli.arguments import fill_required_gain
from bricolage.cli.backends import backends
from bricolage.cli.bisect import bisect
from bricolage.cli.explain import explain, report
from bricolage.cli.export import export
from bricolage.cli.generate_command import generate
from bricolage.cli.optimize import optimize
from bricolage.cli.pack import pack
from bricolage.cli.quantize import quantize
from bricolage.cli.reduce import reduce
from bricolage.cli.rewrite import rewrite, rules
from bricolage.cli.run import bench, run
from bricolage.cli.schedule import schedule
from bricolage.cli.serve_command import serve
from bricolage.cli.tune import tune
from bricolage.errors import plain


class _Commands(TyperGroup):
    """Fills in values that may be left out."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """The words that are left for the command."""
        return super().parse_args(ctx, fill_required_gain(args))


app = typer.Typer(
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
for command in (
    optimize,
    quantize,
    pack,
    run,
    generate,
    serve,
    export,
    bench,
    tune,
    schedule,
    explain,
    report,
    rewrite,
    bisect,
    reduce,
    backends,
):
    app.command()(command)
app.add_typer(costs.app, name="costs")
app.add_typer(train.app, name="train")
cluster_serve.add_to(cluster.app)
app.add_typer(cluster.app, name="cluster")
app.add_typer(rules, name="rules")


def _version(asked: bool) -> None:
    if asked:
        print(f"bricolage {__version__}")
        raise typer.Exit


@app.callback()
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
    app()


if __name__ == "__main__":
    main()
