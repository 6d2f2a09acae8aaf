"""Errors about clusters: their files, histories of jobs, policies."""

from __future__ import annotations

from bricolage.errors.base import BricolageError, UsageError


class BadCluster(UsageError):
    what = "'{path}' describes no cluster: {reason}"
    hint = "docs/manual/cluster-replay.md lists what such a file may hold"


class BadProfiles(UsageError):
    what = "'{path}' holds no profiles of jobs: {reason}"
    hint = "docs/manual/cluster-replay.md lists what such a file may hold"


class BadHistory(UsageError):
    what = "line {line} of '{path}'{column}: {reason}"
    hint = "Mend the line, or leave it out; docs/manual/cluster-replay.md lists the columns of each format"


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


class BadJob(UsageError):
    what = "'{path}' describes no job: {reason}"
    hint = "docs/manual/cluster-serve.md lists what such a file may hold"


class JobRefused(UsageError):
    what = "job {name} is refused: {reason}"
    hint = "Nothing was submitted; mend its file and submit it again"


class UnknownJob(UsageError):
    what = "there is no job '{name}' here"
    hint = "`bricolage cluster list` shows the jobs and their names"


class NotServed(UsageError):
    what = "no process serves a cluster from '{folder}'"
    hint = "Start it with `bricolage cluster serve`, or give the folder that it was given with --state"


class AlreadyServed(UsageError):
    what = "another process serves a cluster from '{folder}'"
    hint = "End that one first, or give a folder of its own with --state"


class NoAnswer(BricolageError):
    what = "whoever serves '{folder}' has not answered for {seconds} s"
    hint = "The request was taken back, unless it was just being answered; `bricolage cluster list` says what there is"


class BrokenJournal(BricolageError):
    what = "line {line} of the log '{path}' is not what was written: {reason}"
    hint = "Nothing was changed. Bring the file back from a copy, or serve from a new folder and submit the jobs again"


class UnsafeState(UsageError):
    what = "the folder '{folder}' cannot be used to serve from: {reason}"
    hint = "Give a folder that only you may write to; whoever can write there can run commands as you"


class EngineUnusable(UsageError):
    what = "no jobs can be run there: {reason}"
    hint = "docs/manual/cluster-serve.md says what it needs"


class SlurmUnavailable(BricolageError):
    what = "Slurm does not answer `{command}`: {reason}"
    hint = (
        "Run it where Slurm's commands work (try `sinfo`), or name its configuration in SLURM_CONF; nothing was changed"
    )


class SlurmTooOld(UsageError):
    what = "this is Slurm {found}, whose commands write no JSON"
    hint = "Slurm {oldest} or later is needed; nothing was changed"


class SlurmAnswer(BricolageError):
    what = "what Slurm's `{command}` prints cannot be read: {reason}"
    hint = "This version of Slurm may be newer than those that are known (docs/manual/cluster-slurm.md); nothing was changed"


class SlurmRefused(BricolageError):
    what = "Slurm refused `{command}`: {reason}"
    hint = "Changing limits and order of other users' jobs takes Slurm's operator rights{done}"


class SlurmEmpty(UsageError):
    what = "Slurm has no nodes with GPUs that can run jobs: {reason}"
    hint = "Look at `sinfo -N -o '%N %G %T'`; a policy orders jobs with GPUs (gres/gpu)"


class KueueMissing(BricolageError):
    what = "the Python package `kubernetes` is not there ({reason})"
    hint = "Install it: {install}"
    extra = "kueue"


class KueueUnavailable(BricolageError):
    what = "the Kubernetes API does not serve {what}: {reason}"
    hint = "Check `kubectl get clusterqueues`, the kubeconfig's context (--context), and the rights on kueue.x-k8s.io"


class KueueNoChecks(UsageError):
    what = "no AdmissionCheck has the controllerName '{controller}'"
    hint = "Make one and name it in a ClusterQueue; docs/manual/cluster-kueue.md shows both"
