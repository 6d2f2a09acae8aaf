"""Buckets by their facts, whichever part of them has each."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_type_hints

from bricolage.plan.plan import Bucket

_PARTS: dict[str, Any] = {part.name: get_type_hints(Bucket)[part.name] for part in fields(Bucket)}


def make_bucket(**facts: Any) -> Bucket:
    """The bucket with these facts."""
    return Bucket(**{name: _PARTS[name](**given) for name, given in _divide_facts(facts).items()})


def alter_bucket(bucket: Bucket, **facts: Any) -> Bucket:
    """The bucket with other facts."""
    parts = {name: replace(getattr(bucket, name), **given) for name, given in _divide_facts(facts).items()}
    return replace(bucket, **parts)


def _divide_facts(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By the part that has them."""
    parts = {
        name: {fact.name: facts.pop(fact.name) for fact in fields(kind) if fact.name in facts}
        for name, kind in _PARTS.items()
    }
    assert not facts, f"no part of a bucket has {', '.join(facts)}"
    return parts
