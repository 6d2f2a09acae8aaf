"""Options that several commands of `bricolage cluster` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

History = Annotated[
    Path,
    typer.Argument(metavar="HISTORY", help="Jobs: a CSV table, sacct's output, a published trace.", show_default=False),
]
Machines = Annotated[
    Path, typer.Option("--cluster", metavar="FILE", help="The cluster as TOML or JSON.", show_default=False)
]
Rates = Annotated[
    Path | None, typer.Option("--rates", metavar="FILE", help="Steps a second of kinds of jobs on kinds of devices.")
]
