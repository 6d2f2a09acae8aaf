"""`bricolage backends`: what is here, what is missing, and the command that adds it."""

from __future__ import annotations

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command


@guard_command
def backends(as_json: a.Json = False) -> None:
    """List the backends: version, or why one is missing and the command that adds it. Installs nothing."""
    from bricolage.api.backend_status import list_backends
    from bricolage.cli import output
    from bricolage.report.backend_rows import backend_json, backend_parts

    statuses = list_backends()
    if as_json:
        output.show_json({"backends": [backend_json(status) for status in statuses]})
    else:
        output.show_parts(backend_parts(statuses))
