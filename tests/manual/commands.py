"""The page of each command: its purpose and example (docs/manual/commands/*.toml), its options as the parser has them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

import click
from typer.main import get_command

from bricolage.cli.main import app
from tests.manual.pages import COMMANDS, Block

EXIT_CODES = "[Exit codes](../faults.md#exit-codes)"


@dataclass(frozen=True)
class CommandText:
    """What a person wrote of a command. `runs` is false where its example needs a service or another machine."""

    name: str
    purpose: str
    page: str
    when: str
    example: str
    runs: bool = True

    @property
    def file_name(self) -> str:
        """Of its page."""
        return self.name.replace(" ", "-") + ".md"


def read_texts() -> dict[str, CommandText]:
    """The texts of all commands, by name.

    Raises:
        ValueError: two files name one command.
    """
    texts: dict[str, CommandText] = {}
    for file in sorted(COMMANDS.glob("*.toml")):
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["command"]:
            text = CommandText(**entry)
            if text.name in texts:
                raise ValueError(f"'{text.name}' stands twice, in {file.name} too")
            texts[text.name] = text
    return texts


def list_commands() -> dict[str, click.Command]:
    """Every command of the parser that does something (not the groups), by name, in the order of `--help`."""

    def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
        inner_commands = getattr(command, "commands", None)  # Typer's groups are no subclasses of click's
        if inner_commands is not None:
            for word, inner in inner_commands.items():
                yield from walk(inner, f"{name} {word}".strip())
        else:
            yield name, command

    return dict(walk(get_command(app), ""))


def example_block(text: CommandText) -> Block:
    """The example of a command as a block of a page."""
    return Block("console" if text.runs else "sh", text.example.strip("\n") + "\n", None)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _option_row(option: click.Parameter, context: click.Context) -> str | None:
    record = option.get_help_record(context)
    if record is None:
        return None
    return f"| `{_cell(record[0])}` | {_cell(record[1])} |"


def command_page(name: str, command: click.Command, text: CommandText, output: str | None) -> str:
    """The page. `output` is what the example printed with its commands, or None: then the commands alone."""
    context = click.Context(command, info_name=f"bricolage {name}")
    pieces = [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1\2", piece) for piece in command.collect_usage_pieces(context)]
    usage = " ".join([f"bricolage {name}", *pieces])
    lines = [f"# bricolage {name}", "", text.purpose, "", f"    {usage}", "", text.when.strip(), ""]
    lines += [f"```{'console' if text.runs else 'sh'}", (output or text.example).strip("\n"), "```", ""]
    parameters = command.get_params(context)
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    if arguments:
        lines += ["| argument | what it is |", "|---|---|"]
        for argument in arguments:
            name, _ = argument.get_help_record(context) or (argument.human_readable_name, "")
            lines.append(f"| `{name.split()[0]}` | {_cell(getattr(argument, 'help', None) or '')} |")
        lines.append("")
    options = [parameter for parameter in parameters if parameter.param_type_name == "option"]
    rows = [row for row in (_option_row(option, context) for option in options) if row]
    lines += ["| option | what it does |", "|---|---|", *rows, ""]
    lines.append(f"See [{text.page.removesuffix('.md')}](../{text.page}). {EXIT_CODES}.")
    return "\n".join(lines) + "\n"


def index_page(texts: dict[str, CommandText]) -> str:
    """All commands in one table."""
    rows = [f"| [{name}]({texts[name].file_name}) | {_cell(texts[name].purpose)} |" for name in list_commands()]
    return "\n".join(
        [
            "# Commands",
            "",
            "Results go to standard output, everything else to standard error. Every command has `--help`.",
            "`bricolage -v COMMAND` prints more, `--cache DIR` before the command names the folder of measurements.",
            "",
            "| command | what it does |",
            "|---|---|",
            *rows,
            "",
        ]
    )
