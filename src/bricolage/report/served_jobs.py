"""The jobs of a served cluster: a table for the terminal, and why one waits."""

from __future__ import annotations

from rich.table import Table

from bricolage.cluster.serve.job_answers import Listed, WhyAnswer
from bricolage.errors import plain
from bricolage.report.policies import span, span_with_range


def served_table(listed: Listed) -> Table:
    """A row for each job; `since` is how long ago it ended, else since when it runs, else since when it waits."""
    table = Table(box=None, pad_edge=False)
    table.add_column("job")
    table.add_column("state")
    for head in ("devices", "steps", "since"):
        table.add_column(head, justify="right")
    for job in listed.jobs:
        begun = job.start_s if job.state == "running" and job.start_s is not None else job.submit_s
        since = begun if job.finish_s is None else job.finish_s
        table.add_row(
            plain(job.name, 40), plain(job.state, 60), f"{job.devices} {job.kind}".strip(),
            f"{job.done:.0f} of {job.steps:.0f}", span(max(listed.now - since, 0.0)),
        )  # fmt: skip
    return table


def why_served_sentence(answer: WhyAnswer) -> str:
    """What a job waits for, when it starts and ends, and what would let it start now."""
    line = f"{answer.job}: {answer.state}"
    line += f"; it waits for {answer.reason}" if answer.reason else ""
    for event, at, interval in (
        ("starts", answer.start_s, answer.start_interval_s),
        ("ends", answer.end_s, answer.end_interval_s),
    ):
        if at is not None and interval is not None:
            line += f". It {event} in {span_with_range(at, interval)} if no other comes"
    line += f". It would start now with {answer.change}" if answer.change else ""
    return plain(line)
