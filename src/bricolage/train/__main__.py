"""One process of a plan, as `torchrun` starts it: `torchrun --nproc-per-node 4 -m bricolage.train run plan/`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bricolage.errors import BricolageError
from bricolage.train.run.joining import run_as_rank
from bricolage.train.run.launch_plan import PlanResult


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a plan as one of the processes of the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); the first one prints."""
    parser = argparse.ArgumentParser(prog="python -m bricolage.train", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a plan of `bricolage train plan`")
    run.add_argument("plan", type=Path)
    run.add_argument("--seconds", type=float, default=8.0, help="for the race")
    run.add_argument("--timeout", type=float, default=120.0, help="seconds for which a process waits for another")
    run.add_argument("--pipelines", type=int, default=1, help="in the race: the fastest as predicted")
    given = parser.parse_args(arguments)
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        parser.error("torchrun starts it; on this machine alone: bricolage train run PLAN")
    number = int(os.environ["RANK"])
    try:
        return _run(given, number)
    except BricolageError as error:
        print(f"rank {number}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except RuntimeError as error:  # of a process that waits in vain for another
        message = next(iter(str(error).strip().splitlines()), type(error).__name__)
        print(
            f"rank {number}: another rank ended, or did not answer for {given.timeout:g} s: {message}",
            file=sys.stderr,
            flush=True,
        )
        return 1


def _run(given: argparse.Namespace, number: int) -> int:
    plan_result = run_as_rank(
        given.plan, number=number, seconds=given.seconds, timeout_s=given.timeout, pipelines=given.pipelines
    )
    if plan_result is not None:
        _print(plan_result)
    return 0


def _print(found: PlanResult) -> None:
    for name, latency in found.measured.items():
        check, error = found.checks.get(name), found.error(name)
        prediction = "" if error is None else f", predicted {found.predicted_ms[name]:.4g} ms ({error:+.0%})"
        gradients = (
            ""
            if check is None
            else f"; gradients within {check.error:.1e} of float64 (one process: {check.own_error:.1e})"
        )
        print(f"{name}: {latency}{prediction}{gradients}{' <- kept' if name == found.kept else ''}")
    for name, reason in found.failures.items():
        print(f"{name} is not kept: {reason}")


if __name__ == "__main__":
    sys.exit(main())
