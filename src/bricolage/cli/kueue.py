"""`bricolage cluster kueue`: a policy behind Kueue's admission checks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bricolage.api.kueue_control import CheckVerdict


@guard_command
def kueue(
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Of the replay.")] = "easy",
    context: Annotated[
        str, typer.Option("--context", metavar="NAME", help="Of the kubeconfig; default: its current one.")
    ] = "",
    controller: Annotated[
        str, typer.Option("--controller", metavar="NAME", help="controllerName of the admission checks to serve.")
    ] = "bricolage/policy",
    resource: Annotated[
        str, typer.Option("--resource", metavar="NAME", help="What counts as a device.")
    ] = "nvidia.com/gpu",
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, help="At most so long without a look.")
    ] = 30.0,
    times: Annotated[int, typer.Option("--times", metavar="N", min=0, help="Looks; 0: until it is ended.")] = 0,
    server: Annotated[
        str, typer.Option("--server", metavar="URL", help="An API server without credentials (kubectl proxy).")
    ] = "",
    as_json: a.Json = False,
) -> None:
    """Let Kueue's workloads in by a policy, and tell the others when they are expected to start."""
    from bricolage.api.kueue_control import KueueOptions, control_kueue
    from bricolage.cli import output

    def show(verdicts: Sequence[CheckVerdict]) -> None:
        for verdict in verdicts:
            if as_json:
                row = {"workload": verdict.workload.key, "check": verdict.check}
                output.show_json({**row, "state": verdict.state, "message": verdict.message})
            else:
                line = f"{time.strftime('%H:%M:%S')} {verdict.workload.key}: {verdict.state}, {verdict.message}"
                print(errors.plain(line), flush=True)

    options = KueueOptions(policy, context, server, controller, resource, every, times)
    control_kueue(options, show=show, note=lambda text: output.note(errors.plain(text)))
