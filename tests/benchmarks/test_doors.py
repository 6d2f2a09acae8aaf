"""Every system has a command that reaches its method, and every method of ours is reached by one."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest

from benchmarks import doors
from benchmarks.reachable import ReachedSymbols, read_sources
from tests.manual.commands import list_commands

COMMANDS = list_commands()
_MAKEFILE = (doors.ROOT / "Makefile").read_text(encoding="utf-8")


def test_rows_are_full_but_that_of_gpus() -> None:
    rows = doors.read_doors()
    assert len(rows) == 25 == len({row.system for row in rows})
    assert [row.system for row in rows if not (row.command and row.benchmark and row.source)] == ["TensorRT"]
    assert all(row.claim and row.about and (row.ours is not None or not row.command) for row in rows)
    assert doors.PAGE.read_text(encoding="utf-8") == doors.render_page(rows), "make it again: --write"


@pytest.mark.parametrize("door", doors.read_doors(), ids=lambda door: door.system)
def test_commands_and_benchmarks_exist(door: doors.Door) -> None:
    if door.command:
        words = door.command.removeprefix("bricolage ").split()
        names = [name for name in COMMANDS if words[: len(name.split())] == name.split()]
        assert len(names) == 1, door.command
        options = {option for parameter in COMMANDS[names[0]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
    if door.benchmark.startswith("make "):
        assert f"\n{door.benchmark.removeprefix('make ')}:" in _MAKEFILE
    elif door.benchmark.startswith("python -m "):
        assert importlib.util.find_spec(door.benchmark.split()[2]) is not None


def test_a_figure_that_its_section_lost_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("# A\n## First\n1,234 words, 0.5 %\n## Second, there\n77\n", encoding="utf-8")
    rows = tmp_path / "doors.toml"
    monkeypatch.setattr(doors, "_LOG", tmp_path)
    monkeypatch.setattr(doors, "ROWS", rows)

    def read(log: str, ours: str) -> doors.Door:
        text = f'[[row]]\nsystem = "a"\nclaim = "b"\nabout = "c"\nclaimed = 2\nlog = "{log}"\nours = {ours}\n'
        rows.write_text(text, encoding="utf-8")
        return doors.read_doors()[0]

    assert read("page.md#first", '"1,234"').ratio == 617.0
    assert read("page.md#second-there", "77").ours == 77.0
    for log, ours in (("page.md#first", "77"), ("page.md#first", "234"), ("page.md#first", "0"), ("page.md#no", "1")):
        with pytest.raises(ValueError, match=r"does not say|has no section"):
            read(log, ours)


_PACKAGE = {
    "__init__": "",
    "cli": """
        from package import tasks as t
        def command():
            from package.search import exact
            return exact(), t.start()
        """,
    "search": """
        class Node:
            def cost(self): return _price()
        def _price(): return rate()
        def rate(): return 1
        def exact(): return Node()
        def forgotten(): return exact()
        """,
    "tasks": 'ENTRY = "package.worker:work"\ndef start(): return ENTRY\ndef idle(): return 1\n',
    "worker": "from package.rules import apply\ndef work(): return apply()\ndef lost(): return 1\n",
    "rules": "from package import table\nTABLE = {}\ndef apply(): return TABLE\n",
    "table": """
        def rule(f): return f
        @rule
        def registered(): return helper()
        def helper(): return 1
        """,
}


def test_what_commands_reach_is_followed_through_imports_strings_and_registration(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name, text in _PACKAGE.items():
        (tmp_path / "package" / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    reached = ReachedSymbols(read_sources(tmp_path, "package"), ["package.cli"])
    unreached = reached.list_unreached(["package"])
    assert unreached == [("package.search", "forgotten"), ("package.tasks", "idle"), ("package.worker", "lost")]


def test_every_public_function_of_the_planners_is_reached_from_a_command() -> None:
    unreached = ReachedSymbols(read_sources()).list_unreached()
    assert [".".join(symbol) for symbol in unreached] == []
