"""What tuning found: in words, as a table, and as a page of its own."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from markupsafe import Markup
from rich.console import RenderableType

from bricolage._version import __version__
from bricolage.plan.tuned import TunedKernels, TunedTask
from bricolage.report import words
from bricolage.report.pages import fill_template
from bricolage.report.tables import plain_table
from bricolage.work.config_space import Choice

if TYPE_CHECKING:
    from bricolage.driver.model_tuning import Tuned, TunedImplementation

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 170, 60, 26
_LATELY = 0.75
"""From this part of the time on a gain is one of late."""


def tuning_verdict(found: TunedImplementation) -> str:
    """What came of one implementation, in a line."""
    shape = words.format_shape(found.sizes)
    where = "".join(
        [f" on the {found.variant} graph" if found.variant != "original" else "", f", {shape}" if shape else ""]
    )
    name = f"{found.tuned.implementation.backend} {found.tuned.implementation.config.name}{where}"
    if found.reason and not found.tuned.tasks:
        return f"{name}: not tuned ({found.reason})"
    trials = sum(task.trials for task in found.tuned.tasks)
    tried = f"{words.count(trials, 'trial')} of {words.count(len(found.tuned.tasks), 'task')}"
    if found.gain is None or found.before_ms is None or found.after_ms is None:
        return f"{name}: {found.reason or 'nothing is surely faster than the rules of thumb'} ({tried})"
    return (
        f"{name}: {words.milliseconds(found.before_ms)} → {words.milliseconds(found.after_ms)}, "
        f"{found.gain.value:.3f}x [{found.gain.low:.3f}, {found.gain.high:.3f}] ({tried})"
    )


def search_outlook(found: TunedImplementation) -> str:
    """What going on may bring, by what the search saved last; empty without a search."""
    if not found.curve:
        return ""
    last = found.curve[-1]
    before = max((point.saved for point in found.curve if point.seconds <= _LATELY * last.seconds), default=0.0)
    gained = max(0.0, last.saved - before)
    return f"the last quarter of the time saved {gained:.1%}: running as long again may save about the same"


def search_course(found: TunedImplementation) -> str:
    """How the search went: what its best choices save of the time of all kernels, when; empty without a search."""
    if not found.curve:
        return ""
    end, marks = found.curve[-1].seconds, []
    for part in (0.1, 0.25, 0.5, 1.0):
        seen = [point for point in found.curve if point.seconds <= part * end]
        if seen:
            marks.append(f"{seen[-1].saved:.1%} after {words.seconds(seen[-1].seconds)}")
    return f"best choices so far, by first timings, saved {', '.join(dict.fromkeys(marks))}"


def describe_choice(choice: Choice) -> str:
    """A choice in words."""
    return ", ".join(f"{name} {value}".strip() for name, value in choice) or "as usual"


def format_sizes(task: TunedTask) -> str:
    """The extents of a task's work."""
    return " ".join(f"{name}={size}" for name, size in task.sizes.items())


def rank_tasks(tuned: TunedKernels) -> list[TunedTask]:
    """Tasks by what was saved, then by what they take."""
    return sorted(tuned.tasks, key=lambda task: (-task.saved_ms, -task.usual_ms))


def tuned_table(tuned: TunedKernels, most: int) -> RenderableType:
    """The tasks from which most was saved, as a table."""
    heads = [
        ("Kernels", "left"),
        ("Usual", "right"),
        ("Tuned", "right"),
        ("Gain", "right"),
        ("Trials", "right"),
        ("Choice", "fold"),
    ]
    rows = [
        [
            f"{task.kernels} {task.kind}",
            words.milliseconds(task.usual_ms),
            words.milliseconds(task.ms),
            words.MISSING if task.gain is None else f"{task.gain:.2f}x",
            str(task.trials),
            describe_choice(task.choice),
        ]
        for task in rank_tasks(tuned)[:most]
    ]
    return plain_table(heads, rows)


def savings_curve(found: TunedImplementation) -> str:
    """What the best choices so far save against time, as SVG; empty without trials."""
    if not found.curve:
        return ""
    end, most = found.curve[-1].seconds or 1.0, max(max(point.saved for point in found.curve), 1e-3)

    def at(seconds: float, saved: float) -> str:
        x = _LEFT + seconds / end * (_WIDTH - _LEFT - 10)
        return f"{x:.1f} {_HEIGHT - _BOTTOM - max(0.0, saved) / most * (_HEIGHT - _BOTTOM - 12):.1f}"

    path, before = [f"M{at(0.0, 0.0)}"], 0.0
    for point in found.curve:
        path += [f"L{at(point.seconds, before)}", f"L{at(point.seconds, point.saved)}"]
        before = point.saved
    labels = [
        f'<text x="{_LEFT - 8}" y="16" text-anchor="end">{most:.1%}</text>',
        f'<text x="{_LEFT - 8}" y="{_HEIGHT - _BOTTOM}" text-anchor="end">0 %</text>',
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 6}" text-anchor="end">{escape(words.seconds(end))}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">0 s</text>',
    ]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Saved so far">'
        f'<path class="axis" d="M{_LEFT} 10V{_HEIGHT - _BOTTOM}H{_WIDTH - 10}"/>'
        f'<path class="best" d="{"".join(path)}"/>{"".join(labels)}</svg>'
    )


def tuning_page(found: Tuned) -> str:
    """The page: which kernels were tuned, from what to what, how sure."""
    shown = [
        {
            "verdict": tuning_verdict(implementation).replace("x [", "× ["),
            "outlook": search_outlook(implementation),
            "curve": Markup(savings_curve(implementation)),
            "tasks": [
                {"task": task, "choice": describe_choice(task.choice), "sizes": format_sizes(task)}
                for task in rank_tasks(implementation.tuned)
            ],
        }
        for implementation in found.implementations
    ]
    return fill_template("tuning.html.j2", {"ms": words.milliseconds}, found=found, shown=shown, version=__version__)
