"""One process that answers for language models, until it is told to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from bricolage.base.generation_options import LanguageSettings
from bricolage.base.progress import Progress
from bricolage.language.language_model import LanguageModel
from bricolage.language.open_language import open_language_model
from bricolage.language.openai_routes.openai_application import OpenaiApplication
from bricolage.runtime.inference_protocol.http_listener import (
    build_http_server,
    finish_unless,
    listen,
    run_until_signal,
)
from bricolage.runtime.inference_protocol.server_settings import Listening, ServerSettings


def serve_language_models(
    paths: Mapping[str, Path],
    settings: ServerSettings,
    language: LanguageSettings,
    begun: Callable[[Listening], None],
    progress: Progress | None = None,
) -> None:
    """Takes the port, loads the models, calls `begun`, and answers until SIGTERM or SIGINT; then the texts under way are finished,
    or broken off where they take longer than the grace.

    Raises:
        PortTaken: it cannot listen there.
        NotALanguageModel, and others: as `open_language_model`.
    """
    models: dict[str, LanguageModel] = {}

    def load() -> None:
        for name, path in paths.items():
            models[name] = open_language_model(path, language, progress)

    async def serve(ending: asyncio.Event) -> None:
        listener = listen(settings.host, settings.http_port)
        try:
            if await finish_unless(ending, asyncio.ensure_future(asyncio.to_thread(load))):
                server = build_http_server(OpenaiApplication(models, settings), settings.grace_s)
                answering = asyncio.create_task(server.serve(sockets=[listener]))
                begun(Listening(settings.host, listener.getsockname()[1], None, tuple(models)))
                await asyncio.wait(
                    (answering, asyncio.ensure_future(ending.wait())), return_when=asyncio.FIRST_COMPLETED
                )
                server.should_exit = True
                await answering
        finally:
            listener.close()
            for model in models.values():
                await asyncio.to_thread(model.close)

    run_until_signal(serve)
