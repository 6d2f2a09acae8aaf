"""How a page is filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined


def fill_template(template: str, filters: Mapping[str, Callable[..., object]], **facts: object) -> str:
    """A template of this package, with what it asks for escaped; a name that is missing is an error."""
    environment = Environment(
        loader=PackageLoader("bricolage.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(template).render(**facts)
