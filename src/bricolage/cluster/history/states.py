"""What a state in accounting says of a run: whether it completed, ended otherwise, or is not over.

Only a run that completed says how long a job takes. Any other one took at least so long: a job that failed, was cancelled or met
its time limit might have needed longer.
"""

from __future__ import annotations

from typing import Literal

Ending = Literal["completed", "cut", "not over"]

_NOT_OVER = frozenset(
    {
        "PENDING", "PD", "RUNNING", "R", "SUSPENDED", "S", "REQUEUED", "RQ", "REQUEUE_HOLD", "RH", "REQUEUE_FED", "RF",
        "RESIZING", "RS", "CONFIGURING", "CF", "COMPLETING", "CG", "STOPPED", "ST", "SIGNALING", "SI", "STAGE_OUT", "SO",
        "SPECIAL_EXIT", "SE", "RESV_DEL_HOLD", "RD",
    }
)  # fmt: skip
"""Of Slurm, in its long and its short words."""


def state_word(text: str) -> str:
    """The state alone: `CANCELLED by 1000` is CANCELLED; `?` where nothing is said."""
    words = text.upper().split()
    return words[0].rstrip("+") if words else "?"


def ending(word: str) -> Ending:
    """Of a run in a state, as `state_word` gives it. A state that is not known did not complete."""
    if word in ("COMPLETED", "CD"):
        return "completed"
    return "not over" if word in _NOT_OVER else "cut"
