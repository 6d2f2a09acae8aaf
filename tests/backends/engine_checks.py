"""What every engine must do; the tests of each engine call these on the real one."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from bricolage.backends.interface import Backend
from tests.backends import regions


def check_conv_net(backend: Backend, folder: Path) -> None:
    model, x = regions.conv_net(folder), regions.noise(1, 8, 32, 32)
    assert regions.error(regions.answer(backend, model, x), regions.reference(model, x)) < 1e-6


def check_several_outputs(backend: Backend, folder: Path) -> None:
    model, x = regions.attention_block(folder), regions.noise(1, 16, 32)
    assert [info.name for info in model.outputs] == ["y", "p"]
    assert regions.error(regions.answer(backend, model, x), regions.reference(model, x)) < 2e-6


def check_buffers_are_read_again(backend: Backend, folder: Path) -> None:
    """The call reads its input buffers each time, writes the same output buffers, and gives the same answer twice."""
    model = regions.conv_net(folder)
    kernel = backend.compile(model, "f32", regions.ONE_THREAD)
    inputs, outputs, call = regions.bound(kernel, model, regions.noise(1, 8, 32, 32))
    place = outputs[0].ctypes.data
    for seed in (1, 2, 1):
        inputs[0][...] = regions.noise(1, 8, 32, 32, seed=seed)
        call()  # type: ignore[operator]
        assert outputs[0].ctypes.data == place
        assert regions.error(outputs, regions.reference(model, inputs[0])) < 1e-6


def check_two_bindings(backend: Backend, folder: Path) -> None:
    """Two calls bound on one kernel do not disturb each other."""
    model = regions.region(folder, "y = Relu (x)")
    kernel = backend.compile(model, "f32", regions.ONE_THREAD)
    _, first, call_first = regions.bound(kernel, model, np.float32([-1, 2, -3, 4]))
    _, second, call_second = regions.bound(kernel, model, np.float32([5, -6, 7, -8]))
    call_first()  # type: ignore[operator]
    call_second()  # type: ignore[operator]
    assert first[0].tolist() == [0, 2, 0, 4]
    assert second[0].tolist() == [5, 0, 7, 0]


def check_scalars_and_empty_tensors(backend: Backend, folder: Path) -> None:
    scalar = regions.region(folder, "y = Mul (x, x)", "float x", "float y")
    assert regions.answer(backend, scalar, np.float32(3))[0].tolist() == 9
    empty = regions.region(folder, "y = Concat <axis = 0> (x, z)", "float[0, 2] x, float[1, 2] z", "float[1, 2] y")
    given = np.float32([[1, 2]])
    assert regions.answer(backend, empty, np.zeros((0, 2), np.float32), given)[0].tolist() == [[1, 2]]


def check_bfloat16(backend: Backend, folder: Path) -> None:
    """Types that numpy lacks pass the boundary bit by bit, bound and unbound."""
    model = regions.region(folder, "y = Cast <to = 16> (x)", "float[3] x", "bfloat16[3] y")
    x = np.float32([1.0, -2.5, 3.14159])
    assert np.array_equal(regions.answer(backend, model, x)[0], x.astype(ml_dtypes.bfloat16))
    (found,) = backend.compile(model, "f32", regions.ONE_THREAD).run([x])
    assert np.array_equal(np.asarray(found), x.astype(ml_dtypes.bfloat16))


def check_dynamic_shapes(backend: Backend, folder: Path) -> None:
    model = regions.region(folder, "a = Relu (x) \n y = ReduceSum (a)", "float[n, 2] x", "float[1, 1] y")
    kernel = backend.compile(model, "f32", regions.ONE_THREAD)
    for count in (1, 5, 3):
        x = regions.noise(count, 2, seed=count)
        assert np.allclose(kernel.run([x])[0], regions.reference(model, x)[0], rtol=1e-6)
