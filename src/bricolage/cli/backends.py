"""`bricolage backends`: what is here, what is missing, and the command that adds it."""

from __future__ import annotations

from typing import Any

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command


@guard_command
def backends(as_json: a.Json = False) -> None:
    """List the backends: version, or why one is missing and the command that adds it. Installs nothing."""
    from bricolage.backends import registry
    from bricolage.cli import output

    facts = [_facts(name) for name in registry.names()]
    if as_json:
        output.show_json({"backends": facts})
        return
    _show(facts)


def _facts(name: str) -> dict[str, Any]:
    from bricolage.backends import registry
    from bricolage.backends.capabilities import command, committed_table, is_current
    from bricolage.backends.interface import Missing
    from bricolage.base.options import PRECISIONS
    from bricolage.device.host import host
    from bricolage.errors import BricolageError
    from bricolage.measure.selfcheck import known_findings

    facts: dict[str, Any] = {"name": name, "source": registry.source(name)}
    try:
        backend = registry.get(name)
    except BricolageError as error:  # a broken plug-in must not hide the others
        return facts | {"kind": None, "version": None, "reason": error.sentence, "cure": error.next_step}
    status = backend.status()
    facts["kind"] = backend.kind
    if isinstance(status, Missing):
        return facts | {"version": None, "reason": status.reason, "cure": status.cure}
    facts["version"] = status.version
    facts["configs"] = {word: [str(config) for config in backend.configs(word, host())] for word in PRECISIONS}
    tested = committed_table(name)
    if tested is not None:
        facts["capabilities"] = {
            "version": tested.version,
            "onnx": tested.onnx,
            "opset": tested.opset,
            "cases": dict(tested.counts),
            "holds": is_current(backend),
            "command": command(tested),
        }
        if not is_current(backend):
            checked = known_findings(backend)
            facts["self_check"] = {
                "passed": sum(not reason for reason in checked.values()),
                "failed": {
                    f"{name}-{since} {kind}": reason for (name, since, kind), reason in checked.items() if reason
                },
            }
    return facts


def _version_tested(facts: dict[str, Any]) -> str:
    """The version that the capability table is of, with what a self-check found where another one is installed."""
    tested = facts.get("capabilities")
    if tested is None:
        return "-"
    if tested["holds"]:
        return "installed"
    checked = facts["self_check"]
    return f"{tested['version']} ({checked['passed']} checked, {len(checked['failed'])} failed)"


def _explain_self_checks(found: list[dict[str, Any]]) -> None:
    """What it means that a table is of another version, what a self-check found, and the command for another table."""
    from bricolage.cli import output

    others = [facts for facts in found if "self_check" in facts]
    if others:
        output.show_result(
            "\nWhere the table is of another version, a self-check of the model's operators decides what is used.  "
            "What makes the table again, in a checkout of the sources:"
        )
    for facts in others:
        output.show_result(f"  {facts['capabilities']['command']}")
        for kind, reason in facts["self_check"]["failed"].items():
            output.show_result(f"    not used: {kind}: {reason}")


def _show(found: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from bricolage.cli import output
    from bricolage.report.tables import plain_table

    rows: list[list[str | Text]] = []
    for facts in (f for f in found if f["version"] is not None):
        cases = facts.get("capabilities", {}).get("cases", {})
        passed = f"{cases.get('passes', 0)} of {sum(cases.values())}" if cases else "-"
        configs = dict.fromkeys(v for names in facts["configs"].values() for v in names)
        name = Text(facts["name"], "bold")
        rows.append([name, facts["kind"], facts["version"], ", ".join(configs), passed, _version_tested(facts)])
    heads = [
        ("Backend", "left"),
        ("Kind", "left"),
        ("Version", "left"),
        ("Configs", "fold"),
        ("ONNX cases", "right"),
        ("Version tested", "fold"),
    ]
    if rows:
        output.show_result(plain_table(heads, rows))
        _explain_self_checks(found)
    missing = [[Text(f["name"], "bold"), f["reason"], f["cure"]] for f in found if f["version"] is None]
    if missing:
        output.show_result("")
        output.show_result(plain_table([("Missing", "left"), ("Why", "fold"), ("What adds it", "fold")], missing))
