"""Programs of a decoder in the cache: opened again without a graph, one packing of the weights, and never wrong after damage."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.native import loaded_library
from bricolage.base.generation_options import LanguageSettings
from bricolage.errors import BricolageError, ModelBeyondMemory
from bricolage.frontends.decoders import decoder_memory
from bricolage.frontends.decoders.decoder_description import SourceFile, TokenizerDescription
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.frontends.decoders.decoder_program import DecoderProgram
from bricolage.language import decoder_programs, tokenizer
from bricolage.language.decoder_identity import digest_source, identify_decoder
from bricolage.language.decoder_model import PROMPT_ROWS, STEP_ROWS, DecoderModel
from bricolage.language.open_language import open_language_model
from bricolage.native.library_files import HEADER_BYTES, WEIGHTS
from tests.language.mixed_decoders import VOCABULARY, mixed_decoder
from tests.needed import needs

TOKENS = np.random.default_rng(1).integers(0, VOCABULARY, 12).tolist()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A cache with programs of 1 and 8 rows, and what they answer to `TOKENS`."""
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRICOLAGE_CACHE", str(folder))
        return folder, answer()


@pytest.fixture
def in_filled(filled: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Within that cache; the answer. Other libraries of this process lend no weights."""
    monkeypatch.setattr(loaded_library, "_WEIGHTS", {})
    monkeypatch.setenv("BRICOLAGE_CACHE", str(filled[0]))
    return filled[1]


def answer() -> np.ndarray:
    model = DecoderModel(mixed_decoder(), threads=1)
    sequence = model.open_sequence()
    rows = [model.extend([(sequence, TOKENS[:1])])[0], model.extend([(sequence, TOKENS[1:9])])[0]]
    return np.concatenate(rows)


def refuse_to_compile(*_: object) -> None:
    raise AssertionError("a program is compiled that is there")


def test_programs_are_opened_again_and_share_one_file_of_weights(
    in_filled: np.ndarray, filled: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_programs, "compile_decoder_program", refuse_to_compile)
    assert np.array_equal(answer(), in_filled)
    headers = {path.read_bytes() for path in filled[0].glob(f"compiled/*/*/native-*/{WEIGHTS}")}
    assert len(list(filled[0].glob("compiled/*/*/native-*"))) == 2
    assert len(headers) == 1, "all programs pack weights alike"
    (shared,) = filled[0].glob(f"compiled/*/*/weights-*/{WEIGHTS}")
    assert shared.read_bytes()[:HEADER_BYTES] == headers.pop()


def test_memory_is_asked_for_what_is_loaded(
    in_filled: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that are there map their packing alone; compiling takes copies of it."""
    packed = decoder_memory.count_packed_bytes(mixed_decoder())
    monkeypatch.setattr(decoder_memory, "available_bytes", lambda: packed)
    assert np.array_equal(answer(), in_filled)
    monkeypatch.setattr(decoder_memory, "available_bytes", lambda: packed - 1)
    with pytest.raises(ModelBeyondMemory):
        answer()
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path))
    for spare, why in ((packed, "compiled"), (decoder_memory.count_compiling_bytes(mixed_decoder()) - 1, "compiled")):
        monkeypatch.setattr(decoder_memory, "available_bytes", lambda spare=spare: spare)
        with pytest.raises(ModelBeyondMemory, match=why):
            answer()


def test_bytes_of_a_packing_are_those_of_its_file(filled: tuple[Path, np.ndarray]) -> None:
    (shared,) = filled[0].glob(f"compiled/*/*/weights-*/{WEIGHTS}")
    packed = decoder_memory.count_packed_bytes(mixed_decoder())
    assert packed <= shared.stat().st_size < 2 * packed, (
        "norms and edges of tiles come to it, which are much of a small one"
    )


@pytest.mark.parametrize("pattern", ["weights-*/weights.bin", "decoder-*/program.json", "native-*/region.so"])
def test_what_is_damaged_is_made_again(in_filled: np.ndarray, filled: tuple[Path, np.ndarray], pattern: str) -> None:
    for path in filled[0].glob(f"compiled/*/*/{pattern}"):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 255
        other = path.with_suffix(".other")
        other.write_bytes(raw)
        other.replace(path)  # this process may have mapped what was there
    assert np.array_equal(answer(), in_filled)


def test_weights_that_were_trimmed_are_made_again(in_filled: np.ndarray, filled: tuple[Path, np.ndarray]) -> None:
    (shared,) = filled[0].glob("compiled/*/*/weights-*")
    for path in shared.iterdir():
        path.unlink()
    shared.rmdir()
    assert np.array_equal(answer(), in_filled)
    assert shared.is_dir()


def test_a_full_disk_is_told_and_leaves_nothing(empty: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        with pytest.raises(BricolageError):
            answer()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(empty.glob("compiled/*/*/[!.]*/*"))


def test_another_program_does_the_work_of_one_that_is_compiled_meanwhile(
    in_filled: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy:
        """Never ready with some programs."""

        def __init__(self, rows: tuple[int, ...]) -> None:
            self.rows = rows

        def is_compiling(self, program: DecoderProgram) -> bool:
            return program.rows in self.rows

    monkeypatch.setattr(decoder_programs, "compile_decoder_program", refuse_to_compile)
    for busy, ready in (((2, 4), 8), ((2, 4, 8), 1)):
        model = DecoderModel(mixed_decoder(), threads=1)
        monkeypatch.setattr(model._programs, "_compiler", Busy(busy))
        sequence = model.open_sequence()
        model.extend([(sequence, TOKENS[:1])])
        model.extend([(sequence, TOKENS[1:3])])  # a program of two rows would do
        (last,) = model.extend([(sequence, TOKENS[3:9])])
        assert np.array_equal(last, in_filled[1:])
        assert {program.rows for program in model._programs._ready} == {1, ready}


def test_a_decoder_is_known_by_its_contents(empty: Path) -> None:
    decoder = mixed_decoder()
    assert identify_decoder(decoder) == identify_decoder(mixed_decoder())
    layer = replace(decoder.layers[1], attention_norm=decoder.layers[1].attention_norm + np.float32(1e-6))
    assert identify_decoder(replace(decoder, layers=(decoder.layers[0], layer))) != identify_decoder(decoder)


def test_a_file_is_read_through_once_and_again_when_it_changes(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    source = SourceFile.of(path)
    first = digest_source(source)
    (note,) = empty.glob("compiled/models/digests/*")
    raw = bytearray(note.read_bytes())
    raw[-1] ^= 1
    note.write_bytes(raw)
    assert digest_source(source) == first, "a damaged note is not believed"
    path.write_bytes(b"two")
    assert digest_source(source) is None, "it is not what was read"
    assert digest_source(SourceFile.of(path)) != first


class Told:
    """Progress as it was told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None]] = []
        self.steps = 0

    def start(self, phase: str, total: int | None = None) -> None:
        self.phases.append((phase, total))

    def advance(self, count: int = 1, note: str = "") -> None:
        del note
        self.steps += count

    def finish(self) -> None: ...

    def decided(self, bucket: object, /) -> None: ...


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for library_name in ("gguf", "tokenizers", "transformers"):
        needs(library_name)
    from tests.frontends.decoders import tiny_decoders

    model = tiny_decoders.torch_decoder("llama")
    return tiny_decoders.write_gguf(model, "llama", tmp_path_factory.mktemp("models") / "tiny.gguf", "Q8_0")


_WRITE = """
import sys, bricolage
with bricolage.load(sys.argv[1]) as model:
    print(repr(model.generate("the theme", max_tokens=12).text))
print([name for name in ("onnx", "onnx_ir", "sympy", "ml_dtypes") if name in sys.modules])
"""


def test_two_processes_at_once_and_a_third_that_reads_no_graph(empty: Path, small_file: Path) -> None:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _WRITE, str(small_file)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def read(process: subprocess.Popen[str]) -> list[str]:
        text, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        return text.splitlines()

    together = [start(), start()]
    first, second = map(read, together)
    assert first[0] == second[0]
    assert len(list(empty.glob("compiled/*/*/weights-*"))) == 1
    told = Told()
    with open_language_model(small_file, LanguageSettings(prepare=True), told) as model:
        assert repr(model.generate("the theme", max_tokens=12).text) == first[0]
    ((phase, total),) = told.phases
    assert "compile" in phase
    assert total == told.steps <= len(STEP_ROWS) + len(PROMPT_ROWS)
    kept = list(empty.glob("compiled/*/*/decoder-*"))
    assert len(kept) == len(STEP_ROWS) + len(PROMPT_ROWS)
    told = Told()
    with open_language_model(small_file, LanguageSettings(prepare=True), told):
        assert not told.phases, "nothing is compiled twice"
    assert read(start()) == [first[0], "[]"]


def test_a_file_that_is_opened_decodes_no_weights(small_file: Path) -> None:
    decoder = read_decoder(small_file)
    blocks = [matrix for matrix in decoder.matrices() if not isinstance(matrix, np.ndarray)]
    assert not any("_decoded" in matrix.__dict__ for matrix in blocks)
    assert decoder.sources == (SourceFile.of(small_file),)
    assert replace(decoder, epsilon=1e-3).sources == (), "it is not what the file says any more"
    for matrix in blocks:
        rows = np.array([3, 0])
        few, whole = matrix.take_rows(rows), matrix.numbers()
        assert np.array_equal(few.numbers(), whole[rows])
        assert few.nbytes == matrix.nbytes * 2 // matrix.n == few.packed.nbytes + few.scales.nbytes
    assert blocks


def test_a_folder_is_compiled_by_other_processes_too(empty: Path, tmp_path: Path) -> None:
    needs("transformers")
    from tests.frontends.decoders import tiny_decoders

    folder = tiny_decoders.write_folder(tiny_decoders.torch_decoder("qwen2"), tmp_path / "folder")
    model = DecoderModel(read_decoder(folder), threads=1)
    model.prepare(Told(), every=False)
    assert model._programs._compiler is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_programs, "compile_decoder_program", refuse_to_compile)
        state = model.open_sequence()
        assert np.isfinite(model.extend([(state, [1, 2, 3])])[0]).all()
    model.close()
    (folder / "other.safetensors").symlink_to(folder / "nothing")
    assert read_decoder(folder).sources == (), "a link to nothing that it does not need: it is known by its contents"


def test_processes_that_compile_end_with_the_model(empty: Path, small_file: Path) -> None:
    model = DecoderModel(read_decoder(small_file), threads=1)
    model.prepare(Told(), every=False)
    compiler = model._programs._compiler
    assert compiler is not None
    model.close()
    assert not compiler._thread.is_alive()
    state = model.open_sequence()
    assert np.isfinite(model.extend([(state, [1, 2, 3])])[0]).all(), "what is missing is compiled here"
    state.close()


def test_merges_of_many_tokens_are_kept(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = ("a", "b", "ab", "aab", "abb", "b" * 3, "bb")
    scores = np.array([0, 0, -1, -3, -3, -2, -2], np.float32)
    described = TokenizerDescription("llama", tokens=tokens, scores=scores)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    right = tokenizer._find_merges(described, vocabulary)
    assert not list(empty.glob("compiled/models/merges/*")), "those of few tokens are made in no time"
    monkeypatch.setattr(tokenizer, "_MANY", len(tokens))
    assert tokenizer._find_merges(described, vocabulary) == right
    (note,) = empty.glob("compiled/models/merges/*")
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "_list_merges", refuse_to_compile)
        assert tokenizer._find_merges(described, vocabulary) == right
    note.write_bytes(note.read_bytes()[:-4])
    assert tokenizer._find_merges(described, vocabulary) == right
    other = replace(described, scores=-scores)
    assert tokenizer._find_merges(other, vocabulary) != right
