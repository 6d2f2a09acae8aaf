"""Networks of `timm`, built without trained weights."""

from __future__ import annotations

from typing import Any

from benchmarks.unseen.libraries import library


def picture_classifier(name: str) -> Any:
    """A network by the name that `timm` has for it."""
    return library("timm").create_model(name, pretrained=False)
