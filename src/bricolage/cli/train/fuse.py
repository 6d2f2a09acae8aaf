"""`bricolage train fuse`: a sweep of small models trained as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage.base.option_words import parse_bytes
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command


@guard_command
def fuse(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep as TOML or JSON.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="A folder for the weights: LANE.pt for each model."),
    ] = None,
    how: Annotated[
        str,
        typer.Option(
            "--how",
            metavar="WORD",
            help="auto times the ways and takes the fastest; or serial, fused, processes, fused-processes.",
        ),
    ] = "auto",
    threads: a.Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory limit for models trained together (2GB); default: most of the free memory.",
        ),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Train many small models as one; each comes out as if trained alone.

    SWEEP names a training step, the data, and lanes with hyper-parameters of their own. Lanes of equal layers and shapes are
    trained as one where that is fastest here; the others one by one, and the table says why. Running it runs the Python that it
    names.
    """
    from bricolage.api.train_fuse import fuse_lanes, open_sweep
    from bricolage.base.codec import encode
    from bricolage.cli import output, progress_bars
    from bricolage.report.training_tables import sweep_parts

    request = open_sweep(sweep, how)
    limit = None if memory is None else parse_bytes(memory)
    if out is not None:
        output.make_folder(out)
        output.check_writable(out / "lane.pt")
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        done = fuse_lanes(request, threads=threads, memory_bytes=limit, progress=shown)
    if out is not None:
        for name in done.states:
            output.write_file(out / f"{name}.pt", lambda file, name=name: done.save(name, file))  # type: ignore[misc]
    if as_json:
        output.show_json(encode(done.report))
        return
    output.show_parts(sweep_parts(done.report))
    if out is not None:
        output.note(f"wrote the weights of {len(done.states)} models to {out}")
