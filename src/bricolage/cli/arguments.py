"""Options that several commands share. Those of a decision derive from the fields of `bricolage.base.options.Options`, and those of
a quantisation from its options' likewise."""

from __future__ import annotations

import functools
import inspect
import logging
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bricolage.base.option_words import is_number, parse_seconds
from bricolage.base.options import Options
from bricolage.errors import NO_GAIN, OK, BadOption, MissingFile

if TYPE_CHECKING:
    import numpy as np

    from bricolage.base.generation_options import GenerationOptions, LanguageSettings
    from bricolage.base.quantization_options import QuantizationOptions

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, or a .pt2 file.", show_default=False)]
Artifact = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="A .bricolage or .pack file.", show_default=False)]
AnyArtifact = Annotated[
    Path,
    typer.Argument(
        metavar="ARTIFACT", help="A .bricolage or .pack file, or the folder of a language model.", show_default=False
    ),
]
Target = Annotated[str, typer.Option("--target", metavar="NAME", help="Of a pack: the plan of this target.")]
RacedModel = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL|ARTIFACT",
        help="An ONNX, .pt2, .bricolage, .pack or GGUF file, or the folder of a language model.",
    ),
]
ModelOrArtifact = Annotated[
    Path, typer.Argument(metavar="MODEL|ARTIFACT", help="An ONNX, .pt2, .bricolage or .pack file.")
]
Provisional = Annotated[
    bool,
    typer.Option("--provisional", help="Take a stored decision that is provisional as it is; do not go on with it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Inputs = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="Measure and verify with these inputs (.npz).")
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        metavar="FILE",
        help="Samples of the inputs (.npz) that give integers their scales; for --precision low.",
    ),
]
Evaluate = Annotated[
    Path | None,
    typer.Option(
        "--evaluate", metavar="FILE", help="Samples (.npz) to judge accuracy by; default: a quarter of --calibrate."
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=SIZES", help="Sizes of a symbolic dimension: batch=1,8. Repeatable."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of random inputs.")]

RequireGain = Annotated[
    float | None,
    typer.Option(
        "--require-gain",
        metavar="[PERCENT]",
        min=0.0,
        help="Exit with 3 where the gain over the best single configuration is less; without a number: where none is significant.",
    ),
]
"""Its value may be left out: `fill_required_gain` puts it in."""

Trial = Annotated[
    str, typer.Option("--trial", metavar="TIME", help="Time limit to compile a program and to run it: 60s, 5m.")
]

Threads = Annotated[int | None, typer.Option("--threads", metavar="N", min=1, help="Cores to use; default: all.")]

Unclaimed = Annotated[bool, typer.Option("--unclaimed", help="Also try operators that a backend does not claim.")]
PROGRAM_OPTIONS = (
    *("precision", "tolerance", "threads", "backends", "shapes", "constants", "rewrite", "seed", "isa", "cores"),
    "memory_limit_mb",
)
"""Fields of `Options` that say how a model becomes a program, with what it may take."""


def fill_required_gain(words: Sequence[str]) -> list[str]:
    """A command line in which each `--require-gain` has a number: 0 where the word behind it is none. (Typer's options have a value
    or none.)"""
    filled_words: list[str] = []
    for word, behind in zip_longest(words, words[1:], fillvalue=""):
        filled_words.append(f"{word}=0" if word == "--require-gain" and not is_number(behind) else word)
    return filled_words


def exit_code(require_gain: float | None, note: str, *, gains: bool) -> int:
    """Of a command that has done what was asked for. The `note` says that nothing gains; it is shown then."""
    from bricolage.cli import output

    if gains:
        return OK
    output.note(note if require_gain is None else f"{note} (exit code {NO_GAIN})")
    return OK if require_gain is None else NO_GAIN


def positive_seconds(word: str, option: str = "--trial") -> float:
    """A time that an option says: `Trial` and others.

    Raises:
        BadOption: not a time, or none.
    """
    try:
        seconds = parse_seconds(word)
    except BadOption:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise BadOption(option=option, value=word, advice="Write for example 60s, 5m or 1h")
    return seconds


def decision_options(
    *names: str,
    of: type[Options | QuantizationOptions | GenerationOptions | LanguageSettings] = Options,
    before: Mapping[str, str] | None = None,
    into: str = "options",
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Gives a command the options that are fields of `Options` (all of them, or those named) on the command line; the
    command gets them as one argument, checked; if it has a parameter `given`, that is the names of those that
    the user gave. They stand where the command has that argument.

    Args:
        names: of fields; where there are none, all that have a flag.
        of: another class of options. Its defaults are Typer's too, so that all of them count as given.
        before: by the name of a field, the command's own parameter that stands in front of it.
        into: the command's argument.
    """

    def decorate(command: Callable[..., int | None]) -> Callable[..., int | None]:
        hints = typing.get_type_hints(of)
        chosen = [field for field in fields(of) if "flag" in field.metadata and (not names or field.name in names)]
        moved = dict(before or {})

        @functools.wraps(command)
        def run(**given: Any) -> int | None:
            words = {option: given.pop(option.name) for option in chosen}
            settings = {option.name: _parse_option(option, word) for option, word in words.items() if word is not None}
            if "given" in signature.parameters:
                given["given"] = frozenset(settings)
            return command(**given, **{into: of(**settings)})

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            if name == into:
                for option in chosen:
                    parameters += [signature.parameters[moved[option.name]]] if option.name in moved else []
                    parameters.append(_parameter(option, hints[option.name], with_default=of is not Options))
            elif name != "given" and name not in moved.values():
                parameters.append(parameter)
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _parse_option(one: Field[Any], word: Any) -> Any:
    parse = one.metadata["parse"]
    return word if parse is None else parse(word)


def _parameter(one: Field[Any], kind: Any, *, with_default: bool) -> inspect.Parameter:
    """What Typer makes an option of: words stay words where a field has a parser. Of a flag, and `with_default` of what has no
    parser, the default is the field's; else it is None, for what was not given, and the help says it."""
    parsed, help_text = one.metadata["parse"] is not None, one.metadata["help"]
    if parsed:
        kind = list[str] if "Repeatable" in help_text else str
    elif typing.get_origin(kind) is typing.Literal:
        kind = str
    default = one.default if kind is bool or (with_default and not parsed) else None
    if kind is not bool and not with_default and one.default not in (None, MISSING):
        help_text = f"{help_text} [default: {one.default}]"
    if kind is not bool and not isinstance(kind, types.UnionType):
        kind = kind | None
    option = typer.Option(one.metadata["flag"], metavar=one.metadata["metavar"], help=help_text)
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def verbose() -> bool:
    """Whether the user asked for more words."""
    return logging.getLogger("bricolage").isEnabledFor(logging.INFO)


def open_options(
    model: Path, data: Path | None, options: Options, given: Collection[str] | None = None
) -> tuple[Options, dict[str, np.ndarray] | None]:
    """The options, as `adopt_options` has it, and the inputs for a `ModelOrArtifact`.

    Raises:
        MissingFile: there is no such model, or no such file with inputs.
        BadOption: the file holds no arrays.
        BadArtifact, NewerArtifact, OlderArtifact
    """
    from bricolage.api.array_files import load_arrays
    from bricolage.api.artifact_options import adopt_options

    if not model.exists():
        raise MissingFile(path=model)
    return adopt_options(model, options, given), None if data is None else load_arrays(data)
