"""`bricolage serve` with a language model, as a process."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from benchmarks.tools.server_process import PATIENCE_S, serving
from bricolage.api.model_serving import serve_artifacts
from bricolage.errors import BadOption, PortTaken
from bricolage.runtime.inference_protocol.http_listener import listen
from bricolage.runtime.inference_protocol.server_settings import ServerSettings
from tests.frontends.decoders import tiny_decoders
from tests.needed import needs

for library_name in ("gguf", "tokenizers", "transformers", "fastapi", "fastapi_openai_compat", "uvicorn", "grpc"):
    needs(library_name)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_decoders.torch_decoder("llama")
    return tiny_decoders.write_gguf(model, "llama", tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_a_server_answers_and_ends_with_what_it_has_begun(small_model: Path) -> None:
    with serving(f"small={small_model}") as server:
        assert [model["id"] for model in json.loads(server.exchange("GET", "/v1/models")[1])["data"]] == ["small"]
        body = json.dumps({"model": "small", "prompt": "the theme", "max_tokens": 8, "temperature": 0})
        answers = [json.loads(server.exchange("POST", "/v1/completions", body)[1]) for _ in range(2)]
        assert answers[0]["choices"] == answers[1]["choices"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0


def test_what_cannot_be_served(small_model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="two servers"):
        serve_artifacts({"small": small_model, "digits": tmp_path / "digits.bricolage"}, ServerSettings())
    taken = listen("127.0.0.1", 0)
    try:
        with pytest.raises(PortTaken):
            serve_artifacts({"small": small_model}, ServerSettings(http_port=taken.getsockname()[1]))
    finally:
        taken.close()
