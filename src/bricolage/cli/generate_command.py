"""`bricolage generate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Annotated

import typer

from bricolage.base.generation_options import GenerationOptions, LanguageSettings
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.errors import BadOption

Message = dict[str, object]

LanguageFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A GGUF file, an ONNX file with a cache, or a folder with a model.", show_default=False
    ),
]
Text = Annotated[
    str | None,
    typer.Argument(metavar="[TEXT]", help="What to answer; default, or -: what stdin gives.", show_default=False),
]
System = Annotated[str, typer.Option("--system", metavar="TEXT", help="Instruction in front of the chat.")]
Raw = Annotated[bool, typer.Option("--raw", help="Go on with TEXT as it is, without the model's chat template.")]
Messages = Annotated[
    Path | None,
    typer.Option(
        "--messages",
        metavar="FILE",
        help="Answer a chat in a file of JSON: a list of messages as OpenAI's API has them.",
    ),
]
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Answer each line of stdin behind those before it, as on a terminal without TEXT."),
]

Accuracy = Annotated[
    Path | None,
    typer.Option(
        "--accuracy",
        metavar="FILE",
        help="Write no text: measure perplexity on a file of text, and how far the model is from float32.",
    ),
]


@guard_command
@a.decision_options(of=GenerationOptions)
@a.decision_options("threads", "precision", "speculate", "cache", of=LanguageSettings, into="settings")
def generate(
    model: LanguageFile,
    text: Text = None,
    system: System = "",
    raw: Raw = False,
    messages: Messages = None,
    chat: Chat = False,
    *,
    options: GenerationOptions,
    settings: LanguageSettings,
    accuracy: Accuracy = None,
    as_json: a.Json = False,
) -> None:
    """Write what a language model answers to TEXT, while it comes.

    TEXT is a message of a chat where the model has a template. The same options give the same text, whatever else the machine does.
    """
    from bricolage.api.text_generation import open_text_model
    from bricolage.cli import output, progress_bars
    from bricolage.report.generated_text import generation_json, generation_line

    if accuracy is not None:
        _show_accuracy(model, settings, accuracy, text, as_json=as_json)
        return
    if chat and as_json:
        raise BadOption(option="--json", value=as_json, advice="A chat has many answers: leave out --chat or --json")
    chat = chat or (text is None and messages is None and not (as_json or raw) and sys.stdin.isatty())
    prompt = _read_prompt(text, system, messages, raw=raw, chat=chat)
    with output.stdout_kept() as results:
        with progress_bars.show_progress() as shown:
            shown.start(f"load {model.name}")
            opened = open_text_model(model, settings, shown)
        with opened:
            if chat:
                assert not isinstance(prompt, str)
                _answer_lines(prompt, lambda said: opened.generate(said, options), results)
                return
            with opened.generate(prompt, options, raw=raw) as stream:
                answer = _show_pieces(stream, None if as_json else results)
    if as_json:
        output.show_json(generation_json(stream, answer, options.seed))
        return
    output.note(generation_line(stream.figures))


def _read_prompt(text: str | None, system: str, messages: Path | None, *, raw: bool, chat: bool) -> str | list[Message]:
    """A text, or messages of a chat.

    Raises:
        BadOption: options contradict each other.
        MissingFile, UnusableText: as `read_messages`.
    """
    from bricolage.api.text_generation import compose_chat, read_messages

    if messages is not None:
        if text is not None or system or raw:
            advice = "The file has the whole chat: leave out TEXT, --system and --raw"
            raise BadOption(option="--messages", value=messages, advice=advice)
        return read_messages(messages)
    if chat:
        if raw:
            raise BadOption(
                option="--raw", value=raw, advice="--chat needs the model's template: leave out --chat or --raw"
            )
        return compose_chat(text, system)
    if text is None or text == "-":
        text = sys.stdin.read()
    return compose_chat(text, system) if system else text


def _show_pieces(stream: Iterable[str], results: IO[str] | None) -> str:
    """Shows a text while it comes, where there is a place for it; gives the whole of it."""
    from bricolage.cli import output

    pieces = []
    for piece in stream:
        pieces.append(piece)
        if results is not None:
            output.show_piece(piece, results)
    if results is not None:
        output.show_piece("\n", results)
    return "".join(pieces)


def _answer_lines(
    messages: Sequence[Message],
    begin: Callable[[Sequence[Message]], AbstractContextManager[Iterable[str]]],
    results: IO[str],
) -> None:
    """Answers messages that are there, then each line of stdin, behind all before it."""
    said = list(messages)
    while True:
        if not said or said[-1]["role"] != "user":
            try:
                line = input("> " if sys.stdin.isatty() else "")
            except EOFError:
                return
            if not line.strip():
                continue
            said.append({"role": "user", "content": line})
        with begin(said) as stream:
            said.append({"role": "assistant", "content": _show_pieces(stream, results)})


def _show_accuracy(model: Path, settings: LanguageSettings, file: Path, text: str | None, *, as_json: bool) -> None:
    from bricolage.api.text_generation import measure_accuracy
    from bricolage.cli import output, progress_bars
    from bricolage.report.language_accuracy import accuracy_json, text_sentences
    from bricolage.report.tables import plain_text

    if text is not None:
        raise BadOption(option="TEXT", value=text, advice="With --accuracy nothing is answered: leave it out")
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        accuracy = measure_accuracy(model, settings, file, shown)
    if as_json:
        output.show_json(accuracy_json(accuracy))
    else:
        for sentence in text_sentences(accuracy):
            output.show_result(plain_text(sentence))
