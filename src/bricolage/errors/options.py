"""Of options."""

from __future__ import annotations

from bricolage.errors.base import UsageError


class BadOption(UsageError):
    what = "{option} cannot be '{value}'"
    hint = "{advice}"


class UnknownBackend(UsageError):
    what = "there is no backend '{name}'"
    hint = "Known backends: {known}"


class UnknownPrecision(UsageError):
    what = "there is no precision '{name}'"
    hint = "Use one of: highest, high, medium, low"


class NotWritable(UsageError):
    what = "'{path}' cannot be written: {reason}"
    hint = "Free some space or choose another path (for the cache --cache or $BRICOLAGE_CACHE); nothing was left half-written"


class CacheNotWritable(NotWritable):
    what = "the cache folder '{path}' cannot be written: {reason}"
    hint = "Name another folder with BRICOLAGE_CACHE or --cache, or free some space"


class UnsafeCache(UsageError):
    """Code is loaded from the cache, so any user who may write there could run code as this user."""

    what = "the cache folder '{path}' is not this user's alone: {reason}"
    hint = "Name another folder with BRICOLAGE_CACHE or --cache, or delete it or make it your own: chown and chmod 700"


class MissingDependency(UsageError):
    """Bricolage was installed without what it depends on, as what only runs artifacts may be."""

    what = "{name} is needed {purpose}, and is not installed"
    hint = "Install it: pip install {package}"


class MissingLibrary(UsageError):
    what = "{name} is needed {purpose}, and cannot be imported ({reason})"
    hint = "Install it: {install}"
