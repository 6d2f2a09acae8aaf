"""Index expressions against numpy, and against evaluating the C that they become."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bricolage.native.ir.index_expressions import Index, Var, constant, flatten, nested_extents, unflatten, variable


def evaluate(index: Index, values: dict[str, int]) -> int:
    """What the C means. Python's division agrees with C's where nothing is negative."""
    return int(eval(index.c().replace("/", "//"), {}, values))


shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@given(shapes, st.data())
def test_flatten_and_unflatten_are_those_of_numpy(shape: tuple[int, ...], data: st.DataObject) -> None:
    coords = tuple(variable(f"x{i}", extent) for i, extent in enumerate(shape))
    values = {f"x{i}": data.draw(st.integers(0, extent - 1)) for i, extent in enumerate(shape)}
    position = flatten(coords, shape)
    spot = tuple(values[f"x{i}"] for i in range(len(shape)))
    assert evaluate(position, values) == (np.ravel_multi_index(spot, shape) if shape else 0)
    assert unflatten(position, shape) == coords, "what was put together comes apart without any division"


@given(st.permutations([2, 3, 4, 5]), st.data())
def test_reshapes_of_reshapes(shape: list[int], data: st.DataObject) -> None:
    count = math.prod(shape)
    factors = data.draw(st.sampled_from([(count,), (2, count // 2), (count // 6, 6), (4, 5, 6), (6, 2, 10)]))
    if math.prod(factors) != count:
        factors = (count,)
    o = variable("o", count)
    twice = unflatten(flatten(unflatten(o, factors), factors), tuple(shape))
    value = data.draw(st.integers(0, count - 1))
    assert [evaluate(index, {"o": value}) for index in twice] == [int(i) for i in np.unravel_index(value, shape)]
    assert flatten(unflatten(o, tuple(shape)), tuple(shape)) == o, "there and back is nothing"


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 20), st.integers(1, 12), st.data())
def test_quotients_and_remainders(extent: int, factor: int, shift: int, by: int, data: st.DataObject) -> None:
    index = variable("x", extent) * factor + shift
    quotient, remainder = index.split(by)
    value = data.draw(st.integers(0, extent - 1))
    exact = value * factor + shift
    assert evaluate(quotient, {"x": value}) == exact // by
    assert evaluate(remainder, {"x": value}) == exact % by
    for part, true in ((quotient, exact // by), (remainder, exact % by)):
        assert part.range[0] <= true <= part.range[1]


def test_strides_are_known_where_no_division_is_in_the_way() -> None:
    x, y = Var("x", 8), Var("y", 3)
    index = variable("x", 8) * 3 + variable("y", 3) + 5
    assert (index.stride(x), index.stride(y)) == (3, 1)
    assert index.split(6)[0].stride(x) is None
    assert variable("z", 1) == constant(0), "a loop of one turn has no variable"


def test_substitution_simplifies_again() -> None:
    x = Var("x", 12)
    quotient = variable("x", 12).split(4)[0]
    assert quotient.substitute({x: variable("y", 3) * 4 + variable("z", 4)}) == variable("y", 3)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_nested_loops_need_no_division(shape: list[int], data: st.DataObject) -> None:
    """Of a dimension that is a reshape of several, whose order in memory is another one."""
    count = math.prod(shape)
    coords = unflatten(variable("x", count), shape)
    order = data.draw(st.permutations(range(len(shape))))
    address = flatten([coords[axis] for axis in order], [shape[axis] for axis in order])
    extents = nested_extents(Var("x", count), [address, coords[0]])
    assert math.prod(extents) == count
    nested = flatten([variable(f"x{i}", extent) for i, extent in enumerate(extents)], extents)
    within = address.substitute({Var("x", count): nested})
    assert all(isinstance(atom, Var) for atom, _ in within.terms)
    position = data.draw(st.integers(0, count - 1))
    spot = {f"x{i}": int(index) for i, index in enumerate(np.unravel_index(position, extents))}
    assert evaluate(within, spot) == evaluate(address, {"x": position})


def test_divisors_that_do_not_divide_each_other_leave_one_loop() -> None:
    x = variable("x", 12)
    assert nested_extents(Var("x", 12), [x.split(4)[0], x.split(6)[1]]) == (12,)
    assert nested_extents(Var("x", 12), [variable("y", 12).split(4)[0], x]) == (12,)
