"""Jobs and nodes from what `squeue --json` and `sinfo --json` print.

The shape differs between versions: numbers are plain, null where they are not set, or (since 23.02) objects with `set`, `infinite`
and `number`; states are words or lists of words. Both are read. Only jobs with GPUs count; a policy orders no others.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bricolage.errors import SlurmAnswer

ENDED = frozenset(
    {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED"}
)
GATE = "bricolage"
"""The comment of jobs that wait for a watch to release them."""
_AWAY = re.compile(
    r"DOWN|DRAIN|FAIL|ERROR|UNKNOWN|FUTURE|POWERED_DOWN|NOT_RESPONDING|INVALID|MAINT|REBOOT", re.IGNORECASE
)
_GPUS = re.compile(r"(?:gres[:/])?gpu(?::([^:,=()]+?))?(?:[:=](\d+))?(?:\([^)]*\))?(?:,|$)")
_MARK = re.compile(r"\s*\[bricolage((?: [a-z]+=[0-9a-z]+)*)\]")
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_WAITS_OTHERWISE = frozenset(
    {"Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit", "PartitionDown", "PartitionInactive"}
)
_HOSTS = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_PARTS = re.compile(r"([^\[\]]+)|\[([^\]]*)\]")
_MOST_HOSTS = 100_000
_MOST_TASKS = 1000
"""Of one array, that a forecast takes up one by one."""


@dataclass(frozen=True)
class Marked:
    """What a job was before it was changed; it stands in its AdminComment, so that any later call, from anywhere, knows."""

    limit_min: int | None = None
    """0: none."""
    nice: int | None = None
    held: bool = False

    def text(self) -> str:
        """As it stands there; empty where nothing was changed."""
        parts = [] if self.limit_min is None else [f"limit={self.limit_min}"]
        parts += [] if self.nice is None else [f"nice={'m' if self.nice < 0 else ''}{abs(self.nice)}"]
        parts += ["held=yes"] if self.held else []
        return f"[bricolage {' '.join(parts)}]" if parts else ""


@dataclass(frozen=True)
class SlurmJob:
    """A job with GPUs. Times are seconds since 1970."""

    number: str
    name: str
    user: str
    state: str
    reason: str
    partitions: tuple[str, ...]
    devices: int
    kind: str
    """Type of the GPUs that it names; empty where any will do."""
    submit_s: float
    start_s: float
    """Of one that waits: when Slurm expects it to start; nan where it says nothing."""
    end_s: float
    limit_s: float
    """Infinite where it has none."""
    nice: int
    priority: float
    comment: str
    """AdminComment without our mark."""
    marked: Marked
    gated: bool = False
    """Submitted with `--hold --comment=bricolage`: its user wants it to be released when its turn comes."""
    nodes: tuple[str, ...] = ()
    """Of a running one."""
    tasks: int = 1
    """Of an array that wait, in one line."""
    accounted: str = ""
    """What accounting calls it: `17_3` a task of an array, `300+1` a component of a heterogeneous job."""
    component: bool = False
    """Whether it is a component of a heterogeneous job, whose components start together."""

    @property
    def waits(self) -> bool:
        """Whether it may start when its turn comes: it is pending, and not held or blocked by others than us."""
        free = self.marked.held or self.gated or not self.held
        return self.state == "PENDING" and free and self.reason not in _WAITS_OTHERWISE

    @property
    def held(self) -> bool:
        """By whomever."""
        return self.state == "PENDING" and (self.priority == 0 or self.reason in ("JobHeldUser", "JobHeldAdmin"))

    @property
    def own_limit_s(self) -> float:
        """What it asked for, before any change of ours."""
        if self.marked.limit_min is None:
            return self.limit_s
        return 60.0 * self.marked.limit_min if self.marked.limit_min else math.inf

    @property
    def own_nice(self) -> int:
        """Before any change of ours."""
        return self.nice if self.marked.nice is None else self.marked.nice


@dataclass(frozen=True)
class SlurmNode:
    """A node with GPUs that can run jobs."""

    name: str
    kind: str
    devices: int
    partitions: tuple[str, ...]


@dataclass(frozen=True)
class SlurmQueue:
    """All that is known at a time."""

    now: float
    jobs: tuple[SlurmJob, ...]
    """Waiting, running, and ended ones that the controller remembers; in order of submission."""
    nodes: tuple[SlurmNode, ...]
    left_out: Mapping[str, int]
    """Jobs and nodes that are not in it, by the reason."""


def queue_of(jobs: Sequence[object], nodes: Sequence[object], now: float) -> SlurmQueue:
    """From the lists in Slurm's JSON.

    Raises:
        SlurmAnswer: what every version writes is missing.
    """
    left_out: Counter[str] = Counter()
    parsed_jobs = [job for row in jobs if (job := _job(_row(row, "squeue --json"), left_out)) is not None]
    there = [node for row in nodes if (node := _node(_row(row, "sinfo --json"), left_out)) is not None]
    parsed_jobs.sort(key=lambda job: (job.submit_s, len(job.number), job.number))
    return SlurmQueue(now, tuple(parsed_jobs), tuple(there), dict(left_out))


def _row(row: object, command: str) -> Mapping[str, object]:
    if not isinstance(row, dict):
        raise SlurmAnswer(command=command, reason=f"one of its rows is no object: {str(row)[:80]}")
    return row


def _job(row: Mapping[str, object], left_out: Counter[str]) -> SlurmJob | None:
    number, state = _number(row.get("job_id")), _words(row.get("job_state"))
    if number is None or not state:
        raise SlurmAnswer(command="squeue --json", reason="a job lacks job_id or job_state")
    try:
        kind, devices = _job_devices(row)
    except ValueError as error:
        left_out[f"jobs {error}"] += 1
        return None
    if not devices:
        left_out["jobs have no GPU"] += 1
        return None
    if len(state) > 1 and "COMPLETING" in state:
        state = [word for word in state if word != "COMPLETING"]
    comment = str(row.get("admin_comment") or "")
    limit = _number(row.get("time_limit"))
    return SlurmJob(
        number=str(int(number)),
        name=str(row.get("name") or ""),
        user=str(row.get("user_name") or row.get("user_id") or ""),
        state=state[0],
        reason=str(row.get("state_reason") or ""),
        partitions=tuple(str(row.get("partition") or "").split(",")),
        devices=devices,
        kind=kind,
        submit_s=_number(row.get("submit_time")) or 0.0,
        start_s=_number(row.get("start_time")) or math.nan,
        end_s=_number(row.get("end_time")) or math.nan,
        limit_s=math.inf if limit is None else 60.0 * limit,
        nice=_nice(row.get("nice")),
        priority=_priority(row.get("priority")),
        comment=_MARK.sub("", comment),
        marked=marked_in(comment),
        gated=str(row.get("comment") or "").strip() == GATE,
        nodes=hosts(str(row.get("nodes") or "")),
        tasks=_tasks(row) if state[0] == "PENDING" else 1,
        accounted=_format_accounting_id(row, int(number)),
        component=bool(_number(row.get("het_job_id"))),
    )


def _format_accounting_id(row: Mapping[str, object], number: int) -> str:
    whole, component = _number(row.get("het_job_id")), _number(row.get("het_job_offset"))
    array, task = _number(row.get("array_job_id")), _number(row.get("array_task_id"))
    if whole:
        return f"{int(whole)}+{int(component or 0)}"
    return f"{int(array)}_{int(task)}" if array and task is not None else str(number)


def _node(row: Mapping[str, object], left_out: Counter[str]) -> SlurmNode | None:
    gpus = _gpus(str(row.get("gres") or ""))
    if not gpus:
        left_out["nodes have no GPU"] += 1
        return None
    state = "+".join([*_words(row.get("state")), *_words(row.get("state_flags"))])
    if _AWAY.search(state):
        left_out["nodes are away"] += 1
        return None
    if len({kind for kind, _ in gpus}) > 1:
        left_out["nodes have GPUs of several types"] += 1
        return None
    partitions = row.get("partitions")
    names = partitions.split(",") if isinstance(partitions, str) else []
    names += [str(partition) for partition in partitions] if isinstance(partitions, list) else []
    return SlurmNode(str(row.get("name") or ""), gpus[0][0], sum(count for _, count in gpus), tuple(sorted(names)))


def marked_in(comment: str) -> Marked:
    """What an AdminComment says of a job before it was changed."""
    match = _MARK.search(comment)
    if match is None:
        return Marked()
    values = dict(part.split("=", 1) for part in match[1].split())
    limit, nice = values.get("limit", ""), values.get("nice", "")
    sign = -1 if nice.startswith("m") else 1
    nice = nice.removeprefix("m")
    return Marked(
        int(limit) if limit.isdigit() else None, sign * int(nice) if nice.isdigit() else None, "held" in values
    )


def _job_devices(row: Mapping[str, object]) -> tuple[str, int]:
    """Type and number of GPUs. Raises ValueError where they cannot be counted."""
    if row.get("tres_per_socket") and "gpu" in str(row["tres_per_socket"]):
        raise ValueError("count GPUs by socket")
    nodes = int(_number(row.get("node_count")) or 1)
    tasks = int(_number(row.get("tasks")) or 1)
    for text, factor in (
        (row.get("tres_alloc_str"), 1), (row.get("tres_req_str"), 1), (row.get("tres_per_job"), 1),
        (row.get("tres_per_node"), nodes), (row.get("tres_per_task"), tasks),
    ):  # fmt: skip
        gpus = _gpus(str(text or ""))
        typed = [gpu for gpu in gpus if gpu[0]]
        if len({kind for kind, _ in typed}) > 1:
            raise ValueError("hold GPUs of several types")
        if gpus:
            kind, count = typed[0] if typed else gpus[0]
            typed_in_request = _gpus(str(row.get("tres_per_node") or row.get("tres_per_job") or ""))
            kind = kind or next((gpu_kind for gpu_kind, _ in typed_in_request if gpu_kind), "")
            return kind, count * factor
    return "", 0


def _gpus(text: str) -> list[tuple[str, int]]:
    """(type, number) of `gpu:v100:2`, `gres:gpu:2`, `gres/gpu:v100=2`, several with commas between them."""
    gpus = []
    for part in re.split(r",(?![^()]*\))", text):
        match = _GPUS.fullmatch(part.strip())
        if match is None:
            continue
        kind, count = match[1] or "", match[2]
        if count is None and kind.isdigit():
            kind, count = "", kind
        gpus.append((kind, int(count) if count is not None else 1))
    return gpus


def hosts(text: str) -> tuple[str, ...]:
    """The names in a list of nodes as Slurm writes it: `n[0-3,07],gpu1`."""
    host_names: list[str] = []
    for match in _HOSTS.finditer(text):
        names = [""]
        for plain, ranges in _PARTS.findall(match[0]):
            names = [f"{name}{part}" for name in names for part in (_numbers(ranges) if ranges else [plain])]
            if len(names) > _MOST_HOSTS:
                return tuple(names[:_MOST_HOSTS])
        host_names += names
    return tuple(host_names)


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not last or not (first.isdigit() and last.isdigit()):
            numbers.append(part)
        else:
            stop = min(int(last), int(first) + _MOST_HOSTS)
            numbers += [str(number).zfill(len(first)) for number in range(int(first), stop + 1)]
    return numbers


def _tasks(row: Mapping[str, object]) -> int:
    words = str(row.get("array_task_string") or "").split("%")[0]
    total = 0
    for match in _TASKS.finditer(words):
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        total += (last - first) // max(step, 1) + 1
    return min(max(total, 1), _MOST_TASKS)


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return [value.upper()] if value else []
    return [str(word).upper() for word in value] if isinstance(value, list) else []


def _number(value: object) -> float | None:
    """None where it is not set, or endless."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _nice(value: object) -> int:
    """Some versions write it with Slurm's offset of 2^31."""
    number = int(_number(value) or 0)
    return number - (1 << 31) if number >= 1 << 30 else number


def _priority(value: object) -> float:
    number = _number(value)
    return math.nan if number is None else number
