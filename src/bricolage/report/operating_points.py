"""Operating points in words and as a table: who answers how many requests a second, and how long one takes."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from bricolage.base.codec import JsonObject, encode
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.throughput import ServingConfig, Throughput
from bricolage.report import words
from bricolage.report.headline import by_percent
from bricolage.report.tables import WIDE, plain_table, plain_text


def request_rate(value: float | None) -> str:
    """Requests a second with three significant digits."""
    if value is None:
        return words.MISSING
    if value >= 99_950:
        return f"{value / 1000:,.0f} k"
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def rates(bounds: tuple[float, float] | None) -> str:
    """An interval of rates."""
    return words.MISSING if bounds is None else f"{request_rate(bounds[0])}-{request_rate(bounds[1])}"


def points_verdict(found: Throughput, point: OperatingPoint | None, ships: bool = True) -> str:
    """The decision in one sentence; without `ships`, who answers the most of those that could."""
    won = found.winner
    figures = f"{request_rate(won.rate)} requests/s, p50 {words.milliseconds(won.p50_ms)}, p99 {words.milliseconds(won.p99_ms)}"
    if won.name == found.best_peer:
        standing = "the best single configuration"
    else:
        standing = f"{_times(found.ratio, found.ratio_ci)} of {found.best_peer}, the best single configuration"
    if found.best_other and found.over_other is not None and found.best_other not in (won.name, found.best_peer):
        gained = f"{_times(found.over_other, found.over_other_ci)} of {found.best_other}, the best other tool here"
        standing = f"{gained}; {standing}"
    elif found.best_other:
        standing += " and the best other tool here"
    served = "" if point is None else f"; served in {point}"
    return f"{'ships' if ships else 'best:'} {won.name}: {figures}; {standing}{served}"


def _times(ratio: float, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return f"about {ratio:.2f}x the requests"
    return f"{ratio:.2f}x [{interval[0]:.2f}, {interval[1]:.2f}] the requests"


def gains_requests(found: Throughput, percent: float = 0.0) -> bool:
    """Whether what ships surely answers more requests than the best single configuration, by at least a percentage."""
    return found.significant and found.ratio >= 1.0 + percent / 100.0


def no_gain_sentence(found: Throughput, percent: float = 0.0) -> str:
    """That no plan gains what `--require-gain` asks for: what was gained nevertheless, first."""
    lead = ""
    if found.best_other and found.over_other is not None and found.over_other > 1.0:
        lead = f"{_times(found.over_other, found.over_other_ci)} of {found.best_other}, the best other tool here; "
    return f"{lead}no plan beats the best single configuration{by_percent(percent)}"


def bounding_lines(found: Throughput) -> list[str]:
    """What bounded the search, a line each."""
    lines = []
    if found.latency_limit_ms is not None:
        lines.append(f"99 of 100 requests were to be answered within {found.latency_limit_ms:g} ms")
    if not found.batch_dimension:
        lines.append("requests are not put together: the model has no dimension that leads every input and output")
    elif found.no_batches:
        lines.append(f"requests are not put together any further: {found.no_batches}")
    return lines


def points_standing(server: ServingConfig, found: Throughput) -> str:
    """Why it ships or not, or where it stands."""
    if server.reason:
        return server.reason
    parts = ["ships"] if server.name == found.chosen else []
    parts += ["on the front"] if server.name in found.front else []
    return ", ".join(parts) + ("" if server.raced or server.rate is None else (", " if parts else "") + "not raced")


def points_table(found: Throughput, width: int, most: int | None = None) -> RenderableType:
    """Servers with their figures, the most requests first; with `most`, at most that number, which includes the chosen
    one and those that raced."""
    wide = width >= WIDE
    heads = [
        ("ServingConfig", "fold"),
        ("Requests/s", "right"),
        ("95 % interval", "right"),
        ("p50", "right"),
        ("p99", "right"),
    ]
    heads += [("Ratio", "right"), ("Error", "right")] + ([("", "fold")] if wide else [])
    shown = [
        server
        for place, server in enumerate(found.servers)
        if most is None or place < most or server.raced or server.name in (found.chosen, found.best_peer)
    ]
    rows: list[list[str | Text]] = []
    for server in shown:
        ships = server.name == found.chosen
        style = "bold green" if ships else "" if server.accepted else "dim"
        ratio = (
            "1.00x"
            if server.name == found.best_peer
            else words.MISSING
            if server.ratio is None
            else f"{server.ratio:.2f}x"
        )
        cells: list[str | Text] = [
            plain_text(("> " if ships else "  ") + server.name, style),
            Text(request_rate(server.rate), style),
            rates(server.rate_ci),
            words.milliseconds(server.p50_ms),
            words.milliseconds(server.p99_ms),
            ratio,
            words.error(server.error),
        ]
        rows.append([*cells, points_standing(server, found)] if wide else cells)
    parts: list[RenderableType] = [plain_table(heads, rows)]
    if not wide and any(server.reason for server in shown):
        lines = [
            plain_text(f"{server.name}: ", "bold").append_text(plain_text(server.reason))
            for server in shown
            if server.reason
        ]
        parts += [Text(""), *(Padding(line, (0, 0, 0, 2)) for line in lines)]
    hidden = len(found.servers) - len(shown)
    if hidden:
        parts.append(Text(f"and {words.count(hidden, 'other')} that answered fewer", style="dim"))
    return Group(*parts)


def points_overview(
    found: Throughput, point: OperatingPoint | None, width: int, most: int | None = None, ships: bool = True
) -> RenderableType:
    """Table, verdict and what bounded the search. Without `ships` it is a mere comparison."""
    line = plain_text(points_verdict(found, point, ships), "bold green" if found.significant else "bold")
    return Group(
        points_table(found, width, most), Text(""), line, *(plain_text(limit) for limit in bounding_lines(found))
    )


def points_json(found: Throughput, point: OperatingPoint | None) -> JsonObject:
    """As JSON."""
    return {"operating_point": None if point is None else encode(point), "throughput": encode(found)}
