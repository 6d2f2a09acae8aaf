"""The graph of a decoder's program: standard operators, of which every backend makes the same answer."""

from __future__ import annotations

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.backends.interface import Available, RegionModel, Resources
from bricolage.device.buffers import allocate_aligned
from bricolage.frontends.decoders.decoder_graph import DecoderProgram, build_decoder_graph
from bricolage.graph.extract import write_model
from bricolage.graph.store import Store
from tests.language.mixed_decoders import mixed_decoder

ROWS, LONGEST, POOL = 4, 64, 256
STARTS, LENGTHS = np.array([64, 64, 128, 192]), np.array([10, 11, 1, 50])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> RegionModel:
    folder = tmp_path_factory.mktemp("program")
    model = build_decoder_graph(mixed_decoder(), DecoderProgram(ROWS, LONGEST, POOL, cache="float32"))
    Store(folder).share([model])
    write_model(model, folder / "region.onnx")
    return RegionModel(folder / "region.onnx")


def answer(program: RegionModel, backend: str) -> dict[str, np.ndarray]:
    found = registry.get(backend)
    config = found.configs("highest", Resources().device)[0]
    kernel = found.compile(program, config, Resources(threads=2))
    given, made = (
        [allocate_aligned(info.sizes, info.numpy) for info in ends] for ends in (program.inputs, program.outputs)
    )
    numbers = {"starts": STARTS, "lengths": LENGTHS, "places": STARTS + LENGTHS - 1}
    numbers |= {"window_starts": STARTS, "window_lengths": LENGTHS}
    draw = np.random.default_rng(0)
    for info, array in zip(program.inputs, given, strict=True):
        values = numbers.get(info.name)
        array[...] = draw.standard_normal(info.sizes) if values is None else values.reshape(info.sizes)
    kernel.bind(given, made)()
    return {info.name: array for info, array in zip(program.outputs, made, strict=True)}


@pytest.mark.parametrize("backend", ["native", "onnxruntime", "openvino"])
def test_backends_agree_with_float64(program: RegionModel, backend: str) -> None:
    if not isinstance(registry.find_status(backend), Available):
        pytest.skip(backend)
    right = answer(program, "reference")
    for name, found in answer(program, backend).items():
        assert np.abs(found - right[name]).max() < 1e-5 * np.abs(right[name]).max(), name
