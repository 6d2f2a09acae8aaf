import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bricolage.device.buffers import ALIGNMENT, allocate_aligned, bindable, lasting, view_memory


@given(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(["float32", "int64", "bool", "float16"]))
def test_arrays_are_aligned(shape: list[int], dtype: str) -> None:
    array = allocate_aligned(tuple(shape), np.dtype(dtype))
    assert array.shape == tuple(shape) and array.dtype == dtype
    assert array.ctypes.data % ALIGNMENT == 0
    assert bindable(array)


def test_a_transposed_array_is_not_bindable() -> None:
    assert not bindable(allocate_aligned((4, 8), np.dtype("float32")).T)


def test_what_lasts_is_an_array_like_any_other() -> None:
    for shape, dtype in (((3, 5), np.float32), ((0,), np.uint8), ((3 << 20,), np.uint8), ((700, 1001), np.float32)):
        made = lasting(shape, np.dtype(dtype))
        assert made.shape == shape and made.dtype == dtype and bindable(made)
        made[...] = 7  # all of it is there
        assert made.size == 0 or (made.reshape(-1)[[0, -1]] == 7).all()


def test_arrays_of_memory_that_something_else_has_keep_it_alive_and_can_be_written_to() -> None:
    owner = np.arange(6, dtype=np.float32)
    gone = weakref.ref(owner)
    array = view_memory(owner.ctypes.data, owner, (2, 3), np.dtype(np.float32))
    array[1, 2] = 7
    assert owner[5] == 7
    del owner
    assert array[1:].tolist() == [[3, 4, 7]] and gone() is not None
    del array
    assert gone() is None
