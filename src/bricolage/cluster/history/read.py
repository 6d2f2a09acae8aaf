"""Which format a history is in, and the jobs in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.cluster.history.gavel_traces import is_gavel, read_gavel
from bricolage.cluster.history.job_tables import TABLES, read_table
from bricolage.cluster.history.profiles import read_profiles, with_profiles
from bricolage.cluster.history.rates import RateTable, read_rates
from bricolage.cluster.history.records import JobHistory, OddLines, records
from bricolage.cluster.history.sacct import NEEDED, read_sacct
from bricolage.cluster.machines import ClusterSpec
from bricolage.errors import BadOption, MissingFile, UnknownHistory

FORMATS = ("auto", "table", "sacct", "gavel", "elasticflow", "tiresias", "helios", "philly")


@dataclass(frozen=True)
class HistoryFiles:
    """Where a history stands, and what is known of its jobs."""

    history: Path
    """A table, `sacct`'s output, or a published trace."""
    rates: Path | None = None
    """Steps a second of kinds of jobs on kinds of devices (`rates.py`)."""
    profiles: Path | None = None
    """What batch sizes, processors and memory do to kinds of jobs (`profiles.py`)."""
    form: str = "auto"
    """One of `FORMATS`."""


def read_history_files(files: HistoryFiles, cluster: ClusterSpec) -> JobHistory:
    """The jobs of a history, with their rates and profiles, for a cluster.

    Raises:
        BadOption: there is no such format.
        MissingFile, UnknownHistory, BadHistory, RatesNeeded: as `read_history` and `read_rates` have it.
        BadProfiles: as `read_profiles` has it.
    """
    if files.form not in FORMATS:
        raise BadOption(option="--format", value=files.form, advice=f"Use one of {', '.join(FORMATS)}")
    rates = None if files.rates is None else read_rates(files.rates, cluster.kinds)
    history = read_history(files.history, cluster, rates, files.form)
    if rates is not None:
        history = replace(history, rate_error=rates.error)
    if files.profiles is None:
        return history
    return replace(history, jobs=with_profiles(history.jobs, read_profiles(files.profiles, cluster), cluster))


def read_past_runs(path: Path, cluster: ClusterSpec) -> JobHistory:
    """Jobs that ended, for what they took: they may have been larger than what is there now.

    Raises:
        MissingFile, UnknownHistory, BadHistory, RatesNeeded: as `read_history` has it.
    """
    large = tuple(replace(group, nodes=1 << 10, devices=1 << 12, cpus=None, host_gb=None) for group in cluster.group)
    return read_history(path, replace(cluster, group=large, failure=()))


def read_history(path: Path, cluster: ClusterSpec, rates: RateTable | None = None, form: str = "auto") -> JobHistory:
    """The jobs of a history, for a cluster. A line that cannot be used is left out, and counted.

    Args:
        path: of the file.
        cluster: whose kinds of devices the jobs run on.
        rates: where the format counts steps instead of seconds.
        form: one of `FORMATS`; "auto" goes by the first line.

    Raises:
        MissingFile: there is no such file.
        UnknownHistory: it is in no known format, or holds no job.
        BadHistory: no line can be used, and this is the first; or there are more jobs than a replay takes.
        RatesNeeded: the format needs rates.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    odd = OddLines()
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:  # names of jobs may be in any
            first = file.readline(1 << 16).rstrip("\r\n")
            file.seek(0)
            if form == "gavel" or (form == "auto" and is_gavel(first)):
                return read_gavel(path, file, cluster, rates, odd)
            delimiter = "|" if "|" in first else ","
            heads = [head.strip() for head in first.split(delimiter)]
            if form in ("auto", "sacct") and set(NEEDED) <= set(heads):
                return read_sacct(path, records(path, file, delimiter, odd), cluster, odd)
            fitting = [
                table_format
                for table_format in TABLES
                if form in ("auto", table_format.name) and table_format.fits(heads)
            ]
            if fitting:
                return read_table(path, records(path, file, delimiter, odd), fitting[0], cluster, rates, odd)
    except OSError as error:
        raise UnknownHistory(path=path, reason=f"it cannot be read ({error})") from error
    wanted = "" if form == "auto" else f" of format {form}"
    raise UnknownHistory(path=path, reason=f"its first line is no heading{wanted}: '{first[:200]}'")
