"""`bricolage generate` as a user meets it, on a small file with random weights; Transformers says what it should write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bricolage
from bricolage.api.text_generation import open_text_model
from bricolage.base.generation_options import GenerationOptions, LanguageSettings
from bricolage.cli.main import app
from bricolage.errors import MissingFile, NotALanguageModel, OtherVocabulary
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.frontends.decoders.gguf_contents import copy_gguf_keys, list_gguf_tensors
from bricolage.frontends.decoders.gguf_file import GgufFile
from bricolage.frontends.decoders.gguf_writer import encode_value, write_gguf_file
from bricolage.language.tokenizer import read_tokenizer
from tests.frontends.decoders import tiny_decoders
from tests.needed import needs

for library_name in ("gguf", "tokenizers", "transformers"):
    needs(library_name)

TEXT = "the theme of the thesis"
"""17 tokens with the merges of the small tokenizer, and the one in front."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def shared_cache(cache: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(kept))


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_decoders.torch_decoder("llama")
    return tiny_decoders.write_gguf(model, "llama", tmp_path_factory.mktemp("models") / "tiny.gguf")


def run(*words: object, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["generate", *(str(word) for word in words)], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_it_writes_what_transformers_writes(small_model: Path) -> None:
    import torch

    tokens = read_tokenizer(small_model).encode(TEXT)
    network = tiny_decoders.torch_decoder("llama")
    expected = network.generate(
        torch.tensor([tokens]), max_new_tokens=20, do_sample=False, eos_token_id=10**6, pad_token_id=0
    )[0, len(tokens) :].tolist()
    code, shown, _ = run(small_model, TEXT, "--max-tokens", 20, "--json", "--logprobs", 2)
    told = json.loads(shown)
    assert code == 0 and told["prompt_tokens"] == len(tokens)
    ends = [place for place, token in enumerate(expected) if token in read_tokenizer(small_model).ends]
    assert told["tokens"] == expected[: ends[0] if ends else None]
    assert told["finish_reason"] == ("stop" if ends else "length")
    assert [row["likeliest"][0]["token"] for row in told["logprobs"]] == told["tokens"]
    assert run(small_model, TEXT, "--max-tokens", 20, "--json", "--speculate", "ngram")[0] == 0


def test_a_text_is_shown_while_it_comes_and_notes_stand_apart(
    small_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(run(small_model, TEXT, "--max-tokens", 12, "--json")[1])["text"]
    code, _, noted = run(small_model, "-", "--max-tokens", 12, stdin=TEXT)
    assert code == 0 and capfd.readouterr().out == f"{whole}\n"
    assert "12 new ones" in noted and "load tiny.gguf" in noted


def test_a_chat_goes_on_line_by_line_and_from_a_file(
    small_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each answer is that to all messages before it: line by line, from a file, and in Python."""
    template = "{% for message in messages %}{{ message['role'][0] }}{{ message['content'] }}\n{% endfor %}"
    file = tmp_path / "chat.gguf"
    values, factors = copy_gguf_keys(GgufFile(small_model))
    values["tokenizer.chat_template"] = encode_value(template)
    write_gguf_file(file, values, [*list_gguf_tensors(read_decoder(small_model)), *factors])
    said: list[dict[str, str]] = [{"role": "system", "content": "s"}]
    expected = []
    with open_text_model(file) as model:
        for line in ("the", "its"):
            said.append({"role": "user", "content": line})
            expected.append(model.generate(said, max_tokens=6).text)
            said.append({"role": "assistant", "content": expected[-1]})
    code, _, noted = run(file, "--chat", "--system", "s", "--max-tokens", 6, stdin="the\n\nits\n")
    assert code == 0 and capfd.readouterr().out == "".join(f"{answer}\n" for answer in expected), noted
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps(said[:-1]), encoding="utf-8")
    code, shown, _ = run(file, "--messages", messages, "--max-tokens", 6, "--json")
    assert code == 0 and json.loads(shown)["text"] == expected[-1]
    for text, reason in (("{", "it is no JSON"), ("{}", "it is no list of messages"), ("[1]", "it is no list of")):
        messages.write_text(text, encoding="utf-8")
        code, shown, noted = run(file, "--messages", messages)
        assert code == 2 and shown == "" and reason in noted, noted
    for words, reason in (
        (("--messages", messages, "--raw"), "leave out TEXT"),
        (("--chat", "--raw"), "needs the model's template"),
        (("--chat", "--json"), "has many answers"),
        (("--messages", tmp_path / "absent.json"), "there is no file"),
    ):
        code, shown, noted = run(file, *words)
        assert code == 2 and reason in noted and (shown == "" or "--json" in words), noted


def test_options_reach_the_draw(small_model: Path) -> None:
    def tokens(*words: object) -> list[int]:
        result: list[int] = json.loads(run(small_model, TEXT, "--max-tokens", 15, "--json", *words)[1])["tokens"]
        return result

    drawn = tokens("--temperature", 1.5, "--seed", 3)
    assert drawn == tokens("--temperature", 1.5, "--seed", 3) != tokens("--temperature", 1.5, "--seed", 4)
    assert tokens("--temperature", 1.5, "--top-k", 1) == tokens() == tokens("--speculate", "ngram")
    assert tokens() == tokens("--speculate", small_model), "the model guesses for itself"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--temperature", -1), "--temperature cannot be '-1.0'"),
        (("--top-p", 2), "--top-p cannot be '2.0'"),
        (("--precision", "medium"), "--precision cannot be 'medium'"),
        (("--stop", ""), "--stop cannot be ''"),
        (("--speculate", "absent.gguf"), "there is no file 'absent.gguf'"),
    ],
    ids=str,
)
def test_options_that_cannot_be(small_model: Path, words: tuple[object, ...], said: str) -> None:
    code, shown, noted = run(small_model, TEXT, *words)
    assert code == 2 and shown == "" and said in noted


def test_prompts_and_files_that_cannot_be(small_model: Path, tmp_path: Path) -> None:
    code, _, noted = run(small_model, "x" * 64)
    assert code == 2 and "do not fit the model, which was trained for 64" in noted
    other = tmp_path / "other.gguf"
    other.write_text("no model")
    assert run(other, TEXT)[0] == run(tmp_path / "absent.gguf", TEXT)[0] == 2
    for path, kind in ((other, NotALanguageModel), (tmp_path / "absent.gguf", MissingFile)):
        with pytest.raises(kind):
            bricolage.load(path)


def test_a_draft_model_of_another_family(small_model: Path, tmp_path: Path) -> None:
    network = tiny_decoders.torch_decoder("llama")
    folder = tiny_decoders.write_folder(network, tmp_path / "folder")
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace('"b"', '"\\u00e4\\u00e4"'), encoding="utf-8")
    with pytest.raises(OtherVocabulary):
        bricolage.load(small_model, language=LanguageSettings(speculate=str(folder)))


def test_in_python_texts_share_steps_and_prefixes_and_stay_the_same(small_model: Path) -> None:
    prompts = [TEXT, "other", TEXT + " and more", "the " * 9]
    options = GenerationOptions(max_tokens=12, temperature=0.9, seed=6)
    with bricolage.load(small_model, language=LanguageSettings(threads=1, prefix_bytes=0)) as alone:
        expected = []
        for prompt in prompts:
            stream = alone.generate(prompt, options)
            list(stream)
            expected.append(stream.records)
    with bricolage.load(small_model, language=LanguageSettings(threads=2)) as model:
        for _ in range(2):  # the second time from kept prefixes
            streams = [model.generate(prompt, options) for prompt in prompts]
            for stream, records in zip(streams, expected, strict=True):
                list(stream)
                assert stream.records == records
        assert streams[3].figures.restored_tokens == 0 or streams[3].figures.prompt_tokens > 32
        assert model.generate(TEXT, max_tokens=3).text == model.generate(TEXT, max_tokens=3).text


def test_accuracy_is_measured_on_a_text(small_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "held.txt"
    text.write_text("the theme of these theses is that 12 of them don't hold; " * 8, encoding="utf-8")
    figures = {
        words: json.loads(run(small_model, "--accuracy", text, "--json", *words)[1])
        for words in ((), ("--cache", "float32"), ("--precision", "low"))
    }
    plain, exact = figures[()], figures["--cache", "float32"]
    assert plain["window"] == 64 and plain["tokens"] == plain["windows"] * 31
    assert 0 <= exact["kl"] < 1e-9 < plain["kl"] < 1e-5 and exact["agreement"] == 1
    assert abs(plain["perplexity"] / plain["reference_perplexity"] - 1) < 1e-3
    code, shown, _ = run(small_model, "--accuracy", text)
    assert code == 0 and "perplexity" in shown and "KL from the reference" in shown
    text.write_text("the")
    for words, said in ((("--accuracy", text), "it has 2 tokens"), ((TEXT, "--accuracy", text), "leave it out")):
        code, shown, noted = run(small_model, *words)
        assert code == 2 and shown == "" and said in noted, noted
    assert "--cache cannot be 'int3'" in run(small_model, TEXT, "--cache", "int3")[2]
