"""What all tests share: a test that needs a framework which is not installed is skipped and says so."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bricolage.errors import MissingBackend, NoBackend
from bricolage.native.cpu.toolchain import LEVEL_VARIABLE
from bricolage.runtime.process_environment import TRY_SIZES
from bricolage.verify.reference import LIBRARY_VARIABLE
from tests.apart import Apart
from tests.brief import decide_briefly

# How long an example takes says how busy the machine is. `make test` draws the same examples each time, so that what fails is what
# was changed; `make test-all` and the fuzzers draw new ones.
settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("new"), derandomize=True)
settings.load_profile("same")

# Compiling generated C is what most tests wait for, and none of them times it. What the compiler makes of it at the product's own
# level is tested where `product_level` is asked for, and in all of `make test-all`.
os.environ.setdefault(LEVEL_VARIABLE, "0")

decide_briefly()

# Sizes that no plan has are tried in a process of their own first, which takes a second each: that is tested where it is asked for
# (tests/runtime/test_untried_sizes.py).
os.environ.setdefault(TRY_SIZES, "0")

# A suite that a shell starts in the background ignores Ctrl-C, one under nohup hang-ups; so would all that it starts.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

FRAMEWORKS = ("torch", "onnxruntime", "openvino", "jax", "tvm", "iree", "onnxscript", "matplotlib")
_MISSING = frozenset(name for name in FRAMEWORKS if importlib.util.find_spec(name) is None)


_COMPILERS = frozenset({"inductor", "xla", "tvm", "iree"})
"""Backends whose code other compilers generate."""
_APART = Apart()


def _thin(items: list[pytest.Item]) -> None:
    """Marks as slow what `thinned("isa", ...)` leaves out of a parametrised test: for each combination of the other parameters
    it keeps one value of each that is named, in turn, so that every value of every parameter still occurs. Tests of one file
    begin in turn, too, so that those with no other parameter do not all take the first value."""
    cases: dict[tuple[object, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("thinned") and hasattr(item, "callspec"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    files: dict[object, int] = {}
    for (path, _), group in cases.items():
        first = files[path] = files.get(path, -1) + 1
        named = group[0].get_closest_marker("thinned").args  # type: ignore[union-attr]
        values = {
            name: list(dict.fromkeys(repr(item.callspec.params[name]) for item in group))
            for name in group[0].callspec.params
        }
        for item in group:
            places = {name: values[name].index(repr(value)) for name, value in item.callspec.params.items()}
            turn = first + sum(place for name, place in places.items() if name not in named)
            if any(places[name] != turn % len(values[name]) for name in named):
                item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a backend that runs code which other compilers generate are marked by the backend's name; `thinned` ones are."""
    _thin(items)
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if parameters.get("backend") in _COMPILERS:
            item.add_marker("apart")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What the tests' modules import stays. To look through it for garbage takes a third of the time of the imports, and later
    most of a second each time: what little garbage there is stays, too."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs the bodies of tests marked `apart` in their own process."""
    if pyfuncitem.get_closest_marker("apart") is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _APART.run(pyfuncitem.module.__name__, pyfuncitem.originalname, given)
    return True


def pytest_sessionfinish() -> None:
    """The process of its own ends with the session."""
    _APART.close()


@pytest.fixture(scope="module")
def light_reference() -> Iterator[None]:
    """The reference imports no torch: for decisions of models so small that the import takes longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LIBRARY_VARIABLE, "onnx")
        yield


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The made-up backends that run plans are known, and the cache is the test's own."""
    from tests.runtime import made_plans

    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    made_plans.register_all()
    yield
    made_plans.forget_all()


@pytest.fixture
def product_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native engine's code is compiled as it is for users."""
    monkeypatch.delenv(LEVEL_VARIABLE)


def _missing(error: BaseException | None) -> str | None:
    """The framework that is not installed and brought the error about, if that is its cause."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (name := (error.name or "").partition(".")[0]) in _MISSING:
            return name
        if isinstance(error, MissingBackend | NoBackend) and _MISSING:
            return "a backend"
        error = error.__cause__ or error.__context__
    return None


def _skip_if_missing(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    except Exception as error:
        name = _missing(error)
        if name is None:
            raise
        pytest.skip(f"{name} is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Fixtures may need a framework, too."""
    return (yield from _skip_if_missing(item))


@contextmanager
def _same_handlers() -> Iterator[None]:
    """A test leaves the handlers of signals that end a process as they were: later ones in the same process send such signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    changed = {number.name: signal.getsignal(number) for number in before if signal.getsignal(number) != before[number]}
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    assert not changed, f"the test leaves other handlers of signals: {changed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The test itself. With every framework installed nothing is skipped here."""
    with _same_handlers():
        return (yield from _skip_if_missing(item))
