"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bricolage.options import Options

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Artifact = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="A .bricolage file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Precision = Annotated[
    str, typer.Option("--precision", metavar="WORD", help="highest (error up to 1e-6), high (1e-4) or medium (2e-2).")
]
Tolerance = Annotated[
    float | None, typer.Option("--tolerance", metavar="NUMBER", help="Relative error accepted, instead of the word's.")
]
Effort = Annotated[str, typer.Option("--effort", metavar="WORD", help="quick or full.")]
Budget = Annotated[str | None, typer.Option("--budget", metavar="TIME", help="Time to search: 60s, 5m, 1h.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="Threads; all usable cores by default.")]
Backends = Annotated[
    list[str] | None, typer.Option("--backend", metavar="NAME", help="Allow only this backend. Repeatable.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=SIZES", help="Sizes of a symbolic dimension: batch=1,8. Repeatable."),
]
Inputs = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="Measure and verify with these inputs (.npz).")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of generated inputs and of the refinement.")]


def options(
    precision: str,
    tolerance: float | None,
    effort: str,
    budget: str | None,
    threads: int | None,
    backends: list[str] | None,
    shapes: list[str] | None,
    seed: int,
) -> Options:
    """The words of the command line as `Options`.

    Raises:
        UnknownPrecision, BadOption
    """
    from bricolage.options import Options, available_cores, parse_seconds, parse_shapes

    return Options(
        precision=precision,  # type: ignore[arg-type]  # checked by Options
        tolerance=tolerance,
        effort=effort,  # type: ignore[arg-type]  # checked by Options
        budget_s=None if budget is None else parse_seconds(budget),
        threads=available_cores() if threads is None else threads,
        backends=tuple(dict.fromkeys(backends)) if backends else None,
        shapes=parse_shapes(shapes or []),
        seed=seed,
    )


def with_shapes_of(path: Path, options: Options) -> Options:
    """The options with an artifact's shapes, unless others are given."""
    import dataclasses

    from bricolage.plan import artifact

    if options.shapes:
        return options
    plan, _ = artifact.load(path)
    names = dict.fromkeys(name for bucket in plan.buckets for name in bucket.sizes)
    shapes = {name: tuple(bucket.sizes[name] for bucket in plan.buckets) for name in names}
    return dataclasses.replace(options, shapes=shapes)
