"""`TuningOptions`: how a search for kernels goes."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.errors import BadOption
from bricolage.extras import install_command
from bricolage.tune.techniques import techniques


@dataclass(frozen=True)
class TuningOptions:
    """How a search goes."""

    technique: str = "bandit"
    seed: int = 0
    rounds: int = 7
    """Turns of the first timing of a choice."""
    final_rounds: int = 21
    """Turns of the timing that decides."""
    finalists: int = 3
    """Choices of each task that are timed again."""
    resume: bool = True
    """Whether what this machine tried before this tuner was made counts as tried; otherwise it is a hint."""
    least_gain: float = 1.01
    """Ratio of the usual time to that of a choice, from which on it is kept, if its interval is above 1."""
    trials: int | None = None
    """Choices that a search of one implementation tries, after which it ends; as many as the time allows where it is None."""

    def __post_init__(self) -> None:
        if self.technique not in (available := techniques()):
            advice = f"Use one of {', '.join(available)}" + (
                "" if "surrogate" in available else f"; surrogate needs LightGBM: {install_command('learn')}"
            )
            raise BadOption(option="technique", value=self.technique, advice=advice)
        for name in ("rounds", "final_rounds", "finalists", "trials"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise BadOption(option=name.replace("_", " "), value=getattr(self, name), advice="Give 1 or more")
