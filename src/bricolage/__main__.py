"""The command `bricolage`, which is also `python -m bricolage`."""

from __future__ import annotations

import sys

from bricolage.base.late_imports import require_dependency
from bricolage.errors import MissingDependency


def main() -> None:
    """Runs the command line and exits. Where what it is made of is not installed, the exit code is that of the error."""
    try:
        with require_dependency("for the command line"):
            from bricolage.cli.main import main as run_command
    except MissingDependency as error:
        print(f"bricolage: {error}.", file=sys.stderr)
        sys.exit(error.exit_code)
    run_command()


if __name__ == "__main__":
    main()
