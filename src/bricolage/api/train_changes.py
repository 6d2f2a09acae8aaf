"""Changes of a training step, for help texts: nothing else of training is imported for them."""

from __future__ import annotations

from bricolage.train.predict.variant import forms


def change_forms() -> str:
    """All ways to write a change: "batch=N, amp, ..."."""
    return forms()
