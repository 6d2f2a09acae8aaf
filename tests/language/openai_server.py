"""The small model behind OpenAI's routes, in a thread of this process: `tests.language.test_openai_client` speaks to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bricolage.language.language_model import LanguageModel
from bricolage.language.openai_routes.openai_application import OpenaiApplication
from bricolage.runtime.inference_protocol.http_listener import build_http_server, listen
from bricolage.runtime.inference_protocol.server_settings import ServerSettings


@contextmanager
def serving_models(models: dict[str, LanguageModel], settings: ServerSettings) -> Iterator[int]:
    """The port. Behind the block the server has ended."""
    listener = listen("127.0.0.1", 0)
    server = build_http_server(OpenaiApplication(models, settings), 1.0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
