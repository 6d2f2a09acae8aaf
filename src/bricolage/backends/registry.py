"""Which backends there are: the built-in ones and those of the entry-point group `bricolage.backends`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Mapping
from functools import cache

from bricolage.backends.interface import Available, Backend, Missing, Status
from bricolage.base import telemetry
from bricolage.errors import BrokenPlugin, DuplicateBackend, MissingBackend, NoBackend, UnknownBackend

_LOG = logging.getLogger(__name__)
GROUP = "bricolage.backends"

# Those that compile slowly are tried in this order while there is time: quicker ones first.
_BUILT_IN: Mapping[str, str] = {
    "onnxruntime": "bricolage.backends.onnxruntime:OnnxRuntime",
    "openvino": "bricolage.backends.openvino:OpenVino",
    "torch": "bricolage.backends.torch:Torch",
    "native": "bricolage.backends.native.engine:Native",
    "inductor": "bricolage.backends.inductor:Inductor",
    "xla": "bricolage.backends.xla:Xla",
    "tvm": "bricolage.backends.tvm:Tvm",
    "iree": "bricolage.backends.iree:Iree",
}


_UNOFFERED: Mapping[str, str] = {"reference": "bricolage.backends.reference:ReferenceBackend"}
"""Used only by those who name it: it takes part in no decision."""
_OURSELVES = "bricolage itself"


@cache
def _sources() -> dict[str, tuple[str, str]]:
    """Name → (object reference, who registers it).

    Raises:
        DuplicateBackend: two packages register the same name.
    """
    sources = {name: (reference, _OURSELVES) for name, reference in {**_BUILT_IN, **_UNOFFERED}.items()}
    from importlib import metadata  # here: those of our own are known without

    for point in metadata.entry_points(group=GROUP):
        source = f"package {point.dist.name}" if point.dist else "an unknown package"
        if point.name in sources:
            raise DuplicateBackend(name=point.name, first=sources[point.name][1], second=source)
        sources[point.name] = (point.value, source)
    return sources


def _find_source(name: str) -> tuple[str, str] | None:
    """What `_sources` says of a name. Other packages are asked only for names that are not our own."""
    reference = _BUILT_IN.get(name) or _UNOFFERED.get(name)
    return _sources().get(name) if reference is None else (reference, _OURSELVES)


def register(name: str, reference: str) -> None:
    """Adds a backend, given as "module:Class", to this process: for plugins under development and for worker processes,
    which must know what their parent knows. Registering the same again changes nothing.

    Raises:
        DuplicateBackend: another one has that name.
    """
    registration = _sources().setdefault(name, (reference, "this process"))
    if registration[0] != reference:
        raise DuplicateBackend(name=name, first=registration[1], second=reference)


def registered_references() -> dict[str, str]:
    """Name → reference of what `register` added."""
    return {name: reference for name, (reference, origin) in _sources().items() if origin == "this process"}


def names() -> tuple[str, ...]:
    """Names of all registered backends, installed or not, in order of registration."""
    return tuple(name for name in _sources() if name not in _UNOFFERED)


def find_status(name: str) -> Status | None:
    """Whether a backend is installed; None where none of that name is registered."""
    return None if _find_source(name) is None else get(name).status()


def source(name: str) -> str:
    """Who registers a backend."""
    return _sources()[name][1]


@cache
def get(name: str) -> Backend:
    """The backend of that name; its module is imported now, its framework is not.

    Raises:
        UnknownBackend, BrokenPlugin
    """
    source_of_name = _find_source(name)
    if source_of_name is None:
        raise UnknownBackend(name=name, known=", ".join(names()))
    telemetry.disable()
    reference, origin = source_of_name
    module, _, attribute = reference.partition(":")
    try:
        backend = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        raise BrokenPlugin(name=name, source=origin, reason=f"{type(error).__name__}: {error}") from error
    if not isinstance(backend, Backend) or backend.name != name:
        raise BrokenPlugin(name=name, source=origin, reason=f"'{reference}' is no Backend named '{name}'")
    return backend


def available(chosen: Iterable[str] | None = None) -> tuple[Backend, ...]:
    """The installed backends among `chosen` (all when None).

    Raises:
        UnknownBackend: a name is not registered.
        MissingBackend: a backend asked for by name is not installed.
        NoBackend: none is installed.
    """
    usable: list[Backend] = []
    for name in names() if chosen is None else chosen:
        backend = get(name)
        status = backend.status()
        if isinstance(status, Available):
            usable.append(backend)
        elif chosen is not None:
            raise MissingBackend(name=name, reason=status.reason, cure=status.cure)
    if not usable:
        missing = [status for name in names() if isinstance(status := get(name).status(), Missing)]
        raise NoBackend(why=f" ({len(missing)} are registered, none is installed)" if missing else "")
    return tuple(usable)


def version(name: str) -> str:
    """Installed version of a backend.

    Raises:
        MissingBackend: it is not installed.
    """
    status = get(name).status()
    if isinstance(status, Missing):
        raise MissingBackend(name=name, reason=status.reason, cure=status.cure)
    return status.version


def versions() -> Mapping[str, str]:
    """Versions of the backends that are installed."""
    version_by_name: dict[str, str] = {}
    for name in names():
        try:
            version_by_name[name] = version(name)
        except (MissingBackend, BrokenPlugin) as error:
            _LOG.debug("%s", error)
    return version_by_name
