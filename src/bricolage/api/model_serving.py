"""Artifacts behind a server that others' clients speak to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from bricolage.api.text_generation import LanguageSettings, are_language_models
from bricolage.base.progress import Progress
from bricolage.errors import BadOption, MissingLibrary
from bricolage.frontends.decoders.decoder_files import is_language_model
from bricolage.plan.operating_point import OperatingPoint
from bricolage.runtime.inference_protocol.server_settings import Listening, LoadOptions, ServerSettings

__all__ = ["Listening", "OperatingPoint", "ServerSettings", "name_models", "serve_artifacts"]


def name_models(words: Sequence[str]) -> dict[str, Path]:
    """`["digits.bricolage", "small=other/digits.bricolage"]` → paths by the names of the models: the word before `=`, else the
    file's name without its ending.

    Raises:
        BadOption: a name that no path of HTTP can have, or two models of one name.
    """
    paths: dict[str, Path] = {}
    for word in words:
        before, equals, behind = word.partition("=")
        named = bool(equals) and "/" not in before and not Path(word).exists()
        path = Path(behind if named else word)
        name = before if named else path.stem
        if not name or "/" in name:
            raise BadOption(option="MODEL", value=word, advice="Write PATH, or NAME=PATH with a name without slashes")
        if name in paths:
            advice = f"Two models have the name '{name}'; write NAME=PATH to give one of them another name"
            raise BadOption(option="MODEL", value=word, advice=advice)
        paths[name] = path
    return paths


def serve_artifacts(
    paths: Mapping[str, Path],
    settings: ServerSettings,
    language: LanguageSettings | None = None,
    *,
    any_machine: bool = False,
    target: str = "",
    begun: Callable[[Listening], None] = lambda _: None,
    progress: Progress | None = None,
) -> None:
    """Serves artifacts by the Open Inference Protocol over HTTP and gRPC, or language models by OpenAI's routes over HTTP, until
    SIGTERM or SIGINT.

    Args:
        paths: of artifacts, or of language models, by the names of the models.
        settings: where it listens, and its limits.
        language: how language models are opened.
        any_machine: whether artifacts that were made on other hardware or versions run all the same.
        target: of packs, whose plans run.
        begun: called once all models take requests.
        progress: is told where programs of language models are compiled first.

    Raises:
        MissingLibrary: a library of the extra `serve` or `language-server` is not installed.
        PortTaken: it cannot listen there.
        NotServable: a model has a tensor of a type that the protocol does not have.
        MissingFile, BadArtifact, ForeignArtifact and others: as `load`.
        BadOption: an option that is for artifacts alone is given with language models, or both kinds are to be served.
        BadOption, NotBatchable, NotEnoughMemory: as `Executable.serve`.
    """
    if are_language_models(list(paths.values())):
        given = {"--operating-point": settings.point, "--any-machine": any_machine, "--target": target}
        for option, value in given.items():
            if value:
                advice = "It is for artifacts, and these are language models: leave it out"
                raise BadOption(option=option, value=value, advice=advice)
        _serve_texts(paths, settings, replace(language or LanguageSettings(), prepare=True), begun, progress)
        return
    for field in fields(LanguageSettings) if language is not None else ():
        if getattr(language, field.name) != field.default:
            value, advice = getattr(language, field.name), "It is for language models alone: leave it out"
            raise BadOption(option=field.metadata.get("flag", field.name), value=value, advice=advice)
    mixed = [path for path in paths.values() if is_language_model(path)]
    if mixed:
        advice = "Serve language models and artifacts by two servers: their clients speak different protocols"
        raise BadOption(option="MODEL", value=mixed[0], advice=advice)
    try:
        from bricolage.runtime.inference_protocol.model_server import serve_models
    except ImportError as error:
        raise MissingLibrary(name=error.name, purpose="to serve models", reason=error, extra="serve") from error
    serve_models(paths, settings, LoadOptions(any_machine, target), begun)


def _serve_texts(
    paths: Mapping[str, Path],
    settings: ServerSettings,
    language: LanguageSettings,
    begun: Callable[[Listening], None],
    progress: Progress | None,
) -> None:
    try:
        from bricolage.language.openai_routes.language_server import serve_language_models
    except ImportError as error:
        purpose, extra = "to serve language models", "language-server"
        raise MissingLibrary(name=error.name, purpose=purpose, reason=error, extra=extra) from error
    serve_language_models(paths, settings, language, begun, progress)
