"""`bricolage generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bricolage.base.generation_options import GenerationOptions, LanguageSettings
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.errors import BadOption

LanguageFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A GGUF file, an ONNX file with a cache, or a folder with a model.", show_default=False
    ),
]
Text = Annotated[
    str | None, typer.Argument(metavar="[TEXT]", help="What to answer; default: what stdin gives.", show_default=False)
]
System = Annotated[str, typer.Option("--system", metavar="TEXT", help="Instruction in front of the chat.")]
Raw = Annotated[bool, typer.Option("--raw", help="Go on with TEXT as it is, without the model's chat template.")]
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
    *,
    options: GenerationOptions,
    settings: LanguageSettings,
    accuracy: Accuracy = None,
    as_json: a.Json = False,
) -> None:
    """Write what a language model answers to TEXT, while it comes.

    TEXT is a message of a chat where the model has a template. The same options give the same text, whatever else the machine does.
    """
    from bricolage.api.text_generation import compose_chat, open_text_model
    from bricolage.cli import output, progress_bars
    from bricolage.report.generated_text import generation_json, generation_line

    if accuracy is not None:
        _show_accuracy(model, settings, accuracy, text, as_json=as_json)
        return
    prompt = sys.stdin.read() if text is None else text
    with output.stdout_kept() as results:
        with progress_bars.show_progress() as shown:
            shown.start(f"load {model.name}")
            opened = open_text_model(model, settings, shown)
        with opened:
            chat = compose_chat(prompt, system) if system else prompt
            with opened.generate(chat, options, raw=raw) as stream:
                pieces = []
                for piece in stream:
                    pieces.append(piece)
                    if not as_json:
                        output.show_piece(piece, results)
        if not as_json:
            output.show_piece("\n", results)
    if as_json:
        output.show_json(generation_json(stream, "".join(pieces), options.seed))
        return
    output.note(generation_line(stream.figures))


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
