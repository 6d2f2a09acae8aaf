"""What all tests share: a test that needs a framework which is not installed is skipped and says so."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from bricolage.errors import MissingBackend, NoBackend

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

FRAMEWORKS = ("torch", "onnxruntime", "openvino", "jax", "tvm", "iree", "onnxscript", "matplotlib")
_MISSING = frozenset(name for name in FRAMEWORKS if importlib.util.find_spec(name) is None)


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The test itself. With every framework installed nothing is skipped here."""
    return (yield from _skip_if_missing(item))
