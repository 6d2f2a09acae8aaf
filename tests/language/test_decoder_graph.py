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


@pytest.fixture(scope="module", params=["float32", "q8_0"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RegionModel:
    folder = tmp_path_factory.mktemp("program")
    size = 24 if request.param == "float32" else 32  # bytes share a scale by 32
    model = build_decoder_graph(mixed_decoder(size), DecoderProgram(ROWS, LONGEST, POOL, cache=request.param))
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
        error = np.abs(found.astype(np.float64) - right[name])
        if found.dtype == np.int8:  # float32 may lie on the other side of a tie
            assert error.max() <= 1 and (error > 0).sum() <= 16, name  # of 256 new ones
        else:
            rounded = any(array.dtype == np.int8 for array in right.values())
            assert error.max() < (5e-3 if rounded else 1e-5) * np.abs(right[name]).max(), name
