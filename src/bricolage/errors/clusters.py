"""Errors about clusters: their files, histories of jobs, policies."""

from __future__ import annotations

from bricolage.errors.base import BricolageError, UsageError


class BadCluster(UsageError):
    what = "'{path}' describes no cluster: {reason}"
    hint = "docs/clusters.md lists what such a file may hold"


class BadHistory(UsageError):
    what = "line {line} of '{path}'{column}: {reason}"
    hint = "Mend the line, or leave it out; docs/clusters.md lists the columns of each format"


class UnknownHistory(UsageError):
    what = "'{path}' is no history of jobs in a format that is known: {reason}"
    hint = "A table needs the columns submit, duration and devices; `bricolage cluster replay --help` lists the formats"


class RatesNeeded(UsageError):
    what = "'{path}' counts steps, and no rates are given"
    hint = "Give the rates of its kinds of jobs on each kind of device with --rates (Gavel's JSON, or a CSV table)"


class JobFitsNowhere(UsageError):
    what = "job {name} needs {devices} devices of {kinds} at once, and the cluster has {there}"
    hint = "Add devices (--add KIND=N), or leave the job out of the history"


class ClusterStuck(BricolageError):
    what = "{waiting} jobs wait at {at} s, no job runs, and nothing is due to change"
    hint = (
        "A node that fails must come back before the jobs that need it can run; check [[failure]] in the cluster's file"
    )


class UnknownPolicy(UsageError):
    what = "there is no policy '{name}'"
    hint = "Use one of {known}; or all"


class PolicyRefuses(UsageError):
    what = "policy {name} cannot serve this history: {reason}"
    hint = "Give another policy, or all of those that can (--policy all)"
