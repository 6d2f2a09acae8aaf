"""What a job's steps take, fitted from what was seen of it while it ran: Pollux' model (OSDI'21, section 3; `petuum/adaptdl`,
Apache-2.0) with the rules that it has for what was not seen yet.

- On one device alone exchanges are taken for free. After that a job is given at most twice the devices that it has had.
- Devices beyond two are taken for free until three were seen, and other nodes for no slower than one until there were several.
- With one batch size seen, half of a step is taken to grow with it.
- Of a kind of device that a job never had, steps are those of another kind, by the ratio of rates that is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import least_squares

from bricolage.cluster.adaptive import BatchProfile, Matrix, StepTimes, step_s

_LEAST_S = 1e-9
_MOST_S = 1e6


@dataclass(frozen=True, slots=True)
class SeenStep:
    """A step that was timed."""

    devices: int
    spread: bool
    """Whether they were of more than one node."""
    local: float
    """Samples that a device takes at once; any unit."""
    seconds: float
    """Without what only accumulates gradients."""


def fitted_times(seen: Sequence[SeenStep]) -> StepTimes:
    """The model that is nearest to the logarithms of what was seen.

    Args:
        seen: at least one.
    """
    locals_ = np.array([step.local for step in seen])
    seconds = np.array([step.seconds for step in seen])
    devices = np.array([step.devices for step in seen])
    spread = np.array([step.spread for step in seen])
    several = devices > 1
    inside, across = several & ~spread, several & spread
    # Which of the constants what was seen speaks of: a b a' b' a'' b'' g.
    one_size = len(set(locals_.round(12))) == 1
    free = np.array([not one_size, True, inside.any(), (devices[inside] > 2).any(), across.any(),
                     (devices[across] > 2).any(), several.any() and len(seen) > 3])  # fmt: skip
    rate = float((seconds / locals_).min())
    start = np.array([0.5 * float(seconds.min()), 0.5 * rate, 0.2 * float(seconds.min()), 0.02 * float(seconds.min()),
                      0.2 * float(seconds.min()), 0.02 * float(seconds.min()), 1.5])  # fmt: skip
    fixed = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])

    def whole(values: Matrix) -> Matrix:
        constants = fixed.copy()
        constants[free] = values
        if one_size:
            constants[0] = constants[1] * float(locals_[0])
        return constants

    def off(values: Matrix) -> Matrix:
        a, b, near, near_more, far, far_more, overlap = whole(values)
        grad = a + b * locals_
        sync = np.where(across, far + far_more * (devices - 2), near + near_more * (devices - 2)) * several
        errors: Matrix = np.log(step_s(grad, sync, overlap)) - np.log(seconds)
        # Where what was seen does not tell, the smaller exchange and the smaller overlap (adaptdl's regularisation).
        return np.append(errors, [1e-3 * (overlap - 1.0), 1e-3 * near / seconds.min(), 1e-3 * far / seconds.min()])

    low = np.array([0.0, _LEAST_S, 0.0, 0.0, 0.0, 0.0, 1.0])
    high = np.array([_MOST_S] * 6 + [10.0])
    done = least_squares(
        off, start[free], bounds=(low[free], high[free]), x_scale=np.maximum(start[free], 1e-9), max_nfev=60
    )
    a, b, near, near_more, far, far_more, overlap = (float(value) for value in whole(done.x))
    if not across.any():
        far, far_more = near, near_more
    elif not inside.any():
        near, near_more = far, far_more
    return StepTimes(a, max(b, 1e-12), near, near_more, far, far_more, overlap)


@dataclass
class GoodputFit:
    """What is known of one job's goodput.

    Args:
        truth: its profile; of it only batch sizes are known from the start.
        own: devices that it asks for.
    """

    truth: BatchProfile
    own: int
    noise: float = 0.0
    """As measured last; 0 before: the initial batch size is best then."""
    most: int = 0
    """Devices that it has had."""
    _seen: dict[str, dict[tuple[int, bool, float], float]] = field(default_factory=dict)
    _fits: dict[str, tuple[int, StepTimes]] = field(default_factory=dict)

    def measure(self, kind: str, devices: int, spread: bool, scale: float, noise: float) -> None:
        """It has run so: how long its steps took is known now, and its noise."""
        self.noise = noise
        if kind in self.truth.times:
            local, accumulated = self.truth.at_once(scale, devices)
            times = self.truth.times[kind]
            both = devices * local * (accumulated + 1) / times.throughput(devices, spread, local, accumulated)
            last = float(both) - accumulated * (times.grad_s + times.sample_s * local)
            self.saw(kind, SeenStep(devices, spread, local, last))

    def saw(self, kind: str, step: SeenStep) -> None:
        """A step was timed."""
        self.most = max(self.most, step.devices)
        self._seen.setdefault(kind, {})[step.devices, step.spread, round(step.local, 9)] = step.seconds

    def profile(self, rates: Mapping[str, float]) -> BatchProfile:
        """As it is known now.

        Args:
            rates: by kind, what is believed of the job on its own number of devices.
        """
        for kind, seen in self._seen.items():
            if self._fits.get(kind, (0,))[0] != len(seen):
                steps = [SeenStep(*key, seconds) for key, seconds in seen.items()]
                self._fits[kind] = len(seen), fitted_times(steps)
        times: dict[str, StepTimes] = {}
        for kind in self.truth.times:
            if kind in self._fits:
                times[kind] = self._fits[kind][1]
                continue
            other = next(iter(self._fits), "")
            slower = rates[other] / rates[kind] if other and rates.get(kind) and rates.get(other) else 1.0
            base = self._fits[other][1] if other else StepTimes(0.0, 1.0)
            times[kind] = replace(base, grad_s=base.grad_s * slower, sample_s=base.sample_s * slower)
        return replace(self.truth, times=times)

    @property
    def allowed(self) -> int:
        """Devices that it may be given: twice those that it has had."""
        return max(2 * self.most, self.own)


def learnt_scaling(
    scaling: Sequence[tuple[int, float]], own: int, seen: Mapping[int, float]
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The rate of an elastic job on its own number of devices, and its speeds on others relative to that, from rates that were seen
    on at least two numbers. Beyond twice the most of these it goes on as was declared.

    Args:
        scaling: as declared.
        own: devices that it asks for.
        seen: by number of devices, steps a second.
    """
    model = fitted_times([SeenStep(count, False, 1.0 / count, 1.0 / rate) for count, rate in seen.items()])
    declared, most = dict(scaling), 2 * max(seen)

    def rate(count: int) -> float:
        return seen.get(count) or float(model.throughput(count, False, 1.0 / count))

    last = max((count for count in declared if count <= most), default=max(seen))
    base = rate(own) if own <= most else rate(last) * declared.get(own, 1.0) / declared.get(last, 1.0)
    speeds = tuple(
        (count, (rate(count) if count <= most else rate(last) * speed / declared[last]) / base)
        for count, speed in sorted(declared.items())
    )
    return base, speeds
