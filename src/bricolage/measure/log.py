"""What happened while one decision measured: others on the machine, and answers that say nothing of what they are about."""

from __future__ import annotations

from dataclasses import dataclass, field

from bricolage.measure.disturbance import Tally
from bricolage.measure.worker_process import Answer


@dataclass
class MeasurementLog:
    """Made for a decision, written by all that measures for it, and read when it is kept."""

    lost: int = 0
    """Answers that say nothing of the candidate as such (`Answer.blameless`)."""
    tally: Tally = field(default_factory=Tally)
    """What others did while something was timed."""

    def heard(self, answer: Answer) -> Answer:
        """Counts an answer, and returns it."""
        self.lost += answer.blameless
        return answer
