"""`bricolage pack`: one model, several kinds of devices, one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.api.result_types import Pack

_FIELDS = ("effort", "budget_s", "backends", "shapes", "constants", "rewrite", "predict", "seed")


@guard_command
@a.decision_options(*_FIELDS)
def pack(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, or a .pt2 file.", show_default=False)],
    targets: Annotated[Path, typer.Option("--targets", metavar="FILE", help="Kinds of devices, as TOML or JSON.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The pack; default: the model's name with .pack."),
    ] = None,
    data: a.Inputs = None,
    calibrate: a.Calibrate = None,
    evaluate: a.Evaluate = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Ray cluster whose nodes decide on targets with `ray`."),
    ] = None,
    replan: Annotated[bool, typer.Option("--replan", help="Decide again, even if stored decisions exist.")] = False,
    provisional: a.Provisional = False,
    as_json: a.Json = False,
    *,
    options: Options,
) -> int:
    """Find the fastest verified way to run MODEL on each of several kinds of devices, and write all of them as one file.

    Loading the file takes the plan for the machine that does so, and says which and why. Targets are decided from loose to tight; a
    tighter one starts from what is known of a looser one.
    """
    from bricolage.api.array_files import load_arrays
    from bricolage.api.pack import pack as run
    from bricolage.api.pack import read_targets
    from bricolage.cli import output, progress_bars

    wanted = read_targets(targets)
    target = out if out is not None else Path(model.with_suffix(".pack").name)
    if not model.exists():
        raise errors.MissingFile(path=model)
    if target.resolve() in (model.resolve(), targets.resolve()):
        raise errors.BadOption(option="--output", value=target, advice="It would overwrite the model or the targets")
    output.check_writable(target)
    inputs = None if data is None else load_arrays(data)
    with output.stdout_kept(), progress_bars.show_progress(lambda _: None) as shown:
        outcome = run(
            model,
            wanted,
            target,
            options,
            inputs=inputs,
            replan=replan,
            provisional=provisional,
            progress=shown,
            shown=targets,
            ray=ray,
            calibrate=calibrate,
            evaluate=evaluate,
        )
    _show_pack(outcome.pack, as_json=as_json)
    output.note(f"wrote {target}")
    return errors.OK


def _show_pack(written: Pack, *, as_json: bool) -> None:
    """Shows what is in it."""
    from bricolage.cli import output

    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(written))
    else:
        from bricolage.report.pack import pack_table

        output.show_result(pack_table(written))
