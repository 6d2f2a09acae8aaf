"""A Debian for 64-bit Arm in a folder, whose programs QEMU runs: nothing of the machine is changed.

`debootstrap` fetches the packages, and they are unpacked, not configured. A namespace of its own tells Linux to give programs for
Arm to QEMU (binfmt_misc, which each user namespace has for itself since Linux 6.7), and has a `/proc/cpuinfo` of an Arm
processor: ONNX Runtime ends with a signal where that file is of another one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.device.arm_cores import core_named

QEMU = "qemu-aarch64-static"
TOOLS = ("debootstrap", "dpkg-deb", QEMU, "unshare")
_PACKAGES = "python3,python3-venv,gcc,libc6-dev,libgomp1,ca-certificates"
_RELEASE, _MIRROR = "bookworm", "http://deb.debian.org/debian"
_PLATFORMS = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 37)))
"""Of wheels that Debian 12 takes, whose C library is 2.36."""
_PYTHON = "3.11"
_CORES = 2
_FORKING = {"G_SLICE": "always-malloc"}
"""QEMU 7.2 keeps code in trees of GLib's. Their allocator's lock stays locked in a forked process where another thread of QEMU held
it, and the process waits for ever. This makes GLib use malloc, whose locks the C library releases in the child."""
_ENTER = r"""
set -e
root=$1; shift
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":aarch64:M::$head:$mask:$(command -v qemu-aarch64-static):F" > /proc/sys/fs/binfmt_misc/register
for folder in proc dev sys; do mount --rbind /$folder "$root/$folder"; done
mount --bind "$root/opt/cpuinfo" "$root/proc/cpuinfo"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class EmulatedDebian:
    """A Debian in a folder, with an environment of Python in it."""

    root: Path
    core: str = "neoverse-n1"
    """That QEMU emulates."""

    def make(self) -> None:
        """Fetches and unpacks the system, if it is not there, and says which processor it has."""
        if not (self.root / "usr/bin/gcc").exists():
            shutil.rmtree(self.root, ignore_errors=True)
            self.root.mkdir(parents=True)
            words = ["debootstrap", "--arch=arm64", "--foreign", "--variant=minbase", f"--include={_PACKAGES}"]
            subprocess.run([*words, _RELEASE, str(self.root), _MIRROR], check=True, stdout=sys.stderr)
            for package in sorted((self.root / "var/cache/apt/archives").glob("*.deb")):
                subprocess.run(["dpkg-deb", "-x", str(package), str(self.root)], check=True)
        (self.root / "opt/wheels").mkdir(parents=True, exist_ok=True)
        # Nothing is configured, and the namespace has one user and one group.
        (self.root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n", encoding="ascii")
        (self.root / "etc/group").write_text("root:x:0:\n", encoding="ascii")
        (self.root / "opt/cpuinfo").write_text(_describe_processor(self.core), encoding="ascii")
        if not (self.root / "opt/venv/bin/python").exists():
            self.run("python3", "-m", "venv", "/opt/venv").check_returncode()

    def run(self, *words: str, folder: str = "/", path: str = "") -> subprocess.CompletedProcess[str]:
        """A command in it, in one of its folders, as this user with root's rights in there. What it prints is captured.
        Python finds packages in `path` as well."""
        variables = {
            "PATH": "/opt/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "QEMU_CPU": self.core,
            **_FORKING,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": path,
        }
        outside = [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--fork",
            "sh",
            "-c",
            _ENTER,
            "enter",
            str(self.root),
        ]
        inside = ["/usr/bin/env", "-i", "-C", folder, *(f"{k}={v}" for k, v in variables.items()), *words]
        return subprocess.run(
            [*outside, *inside], capture_output=True, text=True, check=False, errors="replace", env={**os.environ}
        )

    def install(self, source: Path, requirements: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Copies the tracked files of a checkout to `/opt/bricolage`, and installs them there with what they need. Wheels are
        fetched here, and pip in there chooses among them."""
        wheels = self.root / "opt/wheels"
        fetch = [*_for_arm("download"), "-d", str(wheels), "-c", str(source / "constraints.txt")]
        needs = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
        subprocess.run([*fetch, *needs, *requirements, "setuptools>=77"], check=True, stdout=sys.stderr)
        copied = self.root / "opt/bricolage"
        shutil.rmtree(copied, ignore_errors=True)
        copied.mkdir()
        archive = self.root / "opt/bricolage.tar"
        subprocess.run(["git", "archive", "HEAD", "-o", str(archive.resolve())], cwd=source, check=True)
        with tarfile.open(archive) as files:
            files.extractall(copied, filter="data")
        pip = ["pip", "install", "--quiet", "--no-compile", "--no-index", "--find-links", "/opt/wheels"]
        self.run(*pip, "--upgrade", "setuptools>=77")
        return self.run(
            *pip,
            "-c",
            "constraints.txt",
            "--no-build-isolation",
            ".[onnxruntime]",
            *requirements,
            folder="/opt/bricolage",
        )

    def unpack(self, folder: str, requirements: Sequence[str]) -> None:
        """Unpacks exactly these wheels, without what they need, into a folder there: pip here does it, in a tenth of the time.

        Raises:
            subprocess.CalledProcessError: one cannot be fetched.
        """
        target = self.root / folder.strip("/")
        shutil.rmtree(target, ignore_errors=True)
        words = [*_for_arm("install"), "--no-deps", "--no-compile", "--target", str(target), *requirements]
        subprocess.run(words, check=True, stdout=sys.stderr)


def _for_arm(command: str) -> list[str]:
    """A command of pip here for wheels of the Debian."""
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_aarch64")]
    words = [sys.executable, "-m", "pip", command, "--quiet", "--only-binary=:all:", "--python-version", _PYTHON]
    return [*words, "--implementation", "cp", *platforms]


def find_lacking_tools() -> list[str]:
    """Names of programs that are missing here, and what else forbids it."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not lacking and os.geteuid() != 0:
        lacking.append("the rights of root, which debootstrap needs")
    return lacking


def _describe_processor(name: str) -> str:
    """The table of Linux for a processor of such cores."""
    core = core_named(name)
    assert core is not None, name
    flags = " ".join(["fp", "evtstrm", "cpuid", *sorted(core.instructions)])
    lines = [f"Features\t: {flags}", f"CPU implementer\t: {core.implementer:#x}", "CPU architecture: 8"]
    lines += ["CPU variant\t: 0x3", f"CPU part\t: {core.part:#x}", "CPU revision\t: 1"]
    return "".join("\n".join([f"processor\t: {number}", *lines, "\n"]) for number in range(_CORES))
