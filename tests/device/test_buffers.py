import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bricolage.device.buffers import ALIGNMENT, aligned, bindable


@given(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(["float32", "int64", "bool", "float16"]))
def test_arrays_are_aligned(shape: list[int], dtype: str) -> None:
    array = aligned(tuple(shape), np.dtype(dtype))
    assert array.shape == tuple(shape) and array.dtype == dtype
    assert array.ctypes.data % ALIGNMENT == 0
    assert bindable(array)


def test_a_transposed_array_is_not_bindable() -> None:
    assert not bindable(aligned((4, 8), np.dtype("float32")).T)
