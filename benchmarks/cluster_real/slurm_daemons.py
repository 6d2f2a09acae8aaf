"""A Slurm of its own on this machine: munge, a controller and node daemons on loopback, in one folder, ended with the block.

Nodes declare GPUs that are empty files: Slurm hands them out, counts them and shows them to jobs, which do not use them. Needs
Debian's `slurm-wlm` and `munge`, and a user who may run them (root; or any, as whom the daemons run then).
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol")
LONGEST_S = 7 * 86400.0
"""Time limit of jobs that name none."""
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_min_interval=100000
PriorityType=priority/basic
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
MinJobAge=3600
InactiveLimit=0
KillWait=1
CompleteWait=0
SlurmdTimeout=60
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=7-0 State=UP
"""


class NoSlurm(RuntimeError):
    """It cannot be started here, and why."""


@dataclass(frozen=True)
class LocalSlurm:
    """A Slurm that runs."""

    folder: Path
    environment: Mapping[str, str]
    """For its commands."""

    def call(self, *words: str, seconds: float = 20.0, input_: str | None = None) -> str:
        """What one of its commands prints.

        Raises:
            RuntimeError: it failed.
        """
        done = subprocess.run(
            words,
            env=dict(self.environment),
            input=input_,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def submit(self, script: str, *words: str) -> int:
        """A job; its number."""
        where = ("--output", str(self.folder / "job-%j.out"), "--chdir", str(self.folder))
        return int(self.call("sbatch", "--parsable", *where, *words, input_=script).split(";")[0])


def missing() -> str:
    """What is not here of what it needs; empty where all is."""
    found = [name for name in PROGRAMS if _program(name) is None]
    return f"no {', '.join(found)} (Debian's slurm-wlm and munge)" if found else ""


@contextmanager
def local_slurm(
    folder: Path, nodes: int, gpus: int = 1, kind: str = "v100", seconds: float = 20.0, parameters: str = ""
) -> Iterator[LocalSlurm]:
    """Starts one, and ends it.

    Args:
        folder: for everything it writes; its path must be short, since sockets lie in it.
        nodes: node daemons.
        gpus: declared on each.
        kind: their type.
        seconds: until all nodes must be idle.
        parameters: further lines of its configuration.

    Raises:
        NoSlurm: it cannot be started here.
    """
    if lacks := missing():
        raise NoSlurm(lacks)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    _configure(folder, nodes, gpus, kind, parameters)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    environment = {
        key: value for key, value in environment.items() if key == "SLURM_CONF" or not key.startswith("SLURM_")
    }
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "daemons.log").open("ab") as log:

            def start(*words: str) -> None:
                program = _program(words[0]) or words[0]
                daemons.append(
                    subprocess.Popen(
                        [program, *words[1:]], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        start_new_session=True,
                    )
                )  # fmt: skip

            start(
                "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
                f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed",
                "--num-threads=2",
            )  # fmt: skip
            _wait(lambda: (folder / "munge.socket").exists(), 5.0, daemons, folder)
            start("slurmctld", "-D", "-c", "-f", str(folder / "slurm.conf"))
            for node in range(nodes):
                start("slurmd", "-D", "-N", f"n{node}", "-f", str(folder / "slurm.conf"))
            slurm = LocalSlurm(folder, environment)
            _wait(lambda: _idle(slurm) == nodes, seconds, daemons, folder)
        yield slurm
    finally:
        _end(environment, daemons)


def _configure(folder: Path, nodes: int, gpus: int, kind: str, parameters: str) -> None:
    for name in ("state", *(f"spool-n{node}" for node in range(nodes))):
        (folder / name).mkdir(exist_ok=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    for device in range(gpus):
        (folder / f"gpu{device}").touch()
    ports = _ports(nodes + 1)
    host = socket.gethostname()
    lines = [
        f"NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 RealMemory=1000 Gres=gpu:{kind}:{gpus}"
        for node, port in enumerate(ports[1:])
    ]
    text = _CONF.format(host=host, control=ports[0], user=getpass.getuser(), folder=folder, nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(text + parameters + "\n")
    last = f"gpu[0-{gpus - 1}]" if gpus > 1 else "gpu0"
    (folder / "gres.conf").write_text(f"NodeName=n[0-{nodes - 1}] Name=gpu Type={kind} File={folder}/{last}\n")


def _ports(count: int) -> list[int]:
    """Free ones. Another program may take one meanwhile; the start fails then, and says so."""
    found = [socket.socket() for _ in range(count)]
    try:
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]
    finally:
        for one in found:
            one.close()


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_FOLDERS))


def _idle(slurm: LocalSlurm) -> int:
    try:
        return slurm.call("sinfo", "--Node", "--noheader", "--format=%T").split().count("idle")
    except (RuntimeError, subprocess.TimeoutExpired):
        return 0


def _wait(ready: Callable[[], bool], seconds: float, daemons: list[subprocess.Popen[bytes]], folder: Path) -> None:
    until = time.monotonic() + seconds
    while not ready():
        dead = any(one.poll() is not None for one in daemons)
        if dead or time.monotonic() > until:
            logs = [*sorted(folder.glob("*.log"))]
            told = " | ".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-2:])
            raise NoSlurm(f"{'a daemon ended' if dead else f'it was not up after {seconds:g} s'}: {told[-1500:]}")
        time.sleep(0.05)


def _end(environment: Mapping[str, str], daemons: list[subprocess.Popen[bytes]]) -> None:
    if len(daemons) > 1 and daemons[1].poll() is None:  # jobs run in sessions of their own: Slurm has to end them
        with contextlib.suppress(subprocess.TimeoutExpired):
            _quiet(environment, "scancel", f"--user={getpass.getuser()}")
            until = time.monotonic() + 5.0
            while time.monotonic() < until:
                if not _quiet(environment, "squeue", "--noheader", "--states=RUNNING,COMPLETING").strip():
                    break
                time.sleep(0.1)
    for one in reversed(daemons):
        one.terminate()
    for one in reversed(daemons):
        try:
            one.wait(5)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def _quiet(environment: Mapping[str, str], *words: str) -> bytes:
    return subprocess.run(words, env=dict(environment), capture_output=True, timeout=10, check=False).stdout
