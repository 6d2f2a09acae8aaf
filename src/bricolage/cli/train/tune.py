"""`bricolage train tune`: hyper-parameters found by search, whose trials are trained as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage.base.option_words import parse_bytes
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command


@guard_command
def tune(
    search: Annotated[Path, typer.Argument(metavar="SEARCH", help="A search as TOML or JSON.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="A file for the weights of the best trial.")
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", metavar="N", min=1, help="Instead of the file's.")] = None,
    together: Annotated[
        int | None,
        typer.Option("--together", metavar="N", min=1, help="Trials suggested at once; overrides the file."),
    ] = None,
    how: Annotated[
        str,
        typer.Option("--how", metavar="WORD", help="How trials are trained: auto, serial or fused (see `train fuse`)."),
    ] = "auto",
    threads: a.Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory limit for trials trained together (2GB); default: most of the free memory.",
        ),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Search hyper-parameters; trials that have equal layers are trained as one.

    SEARCH names a training step, the data, ranges and a sampler. Trials that fall behind are pruned. Running it runs the Python
    that SEARCH names.
    """
    from bricolage.api.train_tune import open_search, search_parameters
    from bricolage.base.codec import encode
    from bricolage.cli import output, progress_bars
    from bricolage.report.training_tables import search_parts

    request = open_search(search, how, trials=trials, together=together)
    limit = None if memory is None else parse_bytes(memory)
    output.check_writable(out)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        done = search_parameters(request, threads=threads, memory_bytes=limit, progress=shown)
    if out is not None and done.state is not None:
        output.write_file(out, done.save)
    if as_json:
        output.show_json(encode(done.report))
        return
    output.show_parts(search_parts(done.report))
    if out is not None and done.state is not None:
        output.note(f"wrote {out}")
