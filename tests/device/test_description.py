"""Files that describe devices: what is read, and what is refused with its reason."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest

from bricolage.device.description import read_devices
from bricolage.errors import BadDevices, MissingFile

GOOD = """
[[device]]
name = "cpu"
kind = "cpu"
cores = 2
memory_gb = 16

[[device]]
name = "gpu"
kind = "gpu"
scale = 0.2
operators.Conv = 0.1
ms.7 = 0.35
without = ["Loop"]

[[link]]
between = ["cpu", "gpu"]
gbytes = 10.0
latency_us = 5.0
"""


def written(folder: Path, text: str, name: str = "devices.toml") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    found = read_devices(written(tmp_path, GOOD))
    cpu, gpu = found.machine.devices
    assert (cpu.name, cpu.kind, cpu.threads, cpu.memory_bytes) == ("cpu", "cpu", 2, 16_000_000_000)
    assert (gpu.name, gpu.kind, gpu.threads, gpu.memory_bytes, gpu.peaks.gflops) == ("gpu", "gpu", 1, 0, math.inf)
    assert found.times["gpu"].ms == {"7": 0.35} and found.times["gpu"].without == {"Loop"}
    assert [found.times["gpu"].factor(one) for one in ("Conv", "Relu")] == [0.1, 0.2]
    peaks = (
        read_devices(written(tmp_path, GOOD.replace("scale = 0.2", "gflops = 500.0\ngbytes = 50.0")))
        .machine.devices[1]
        .peaks
    )
    assert (peaks.gflops, peaks.gbytes) == (500.0, 50.0) and found.times["cpu"].factor("Conv") is None
    assert found.machine.move_ms("cpu", "gpu", 10**7) == found.machine.move_ms("gpu", "cpu", 10**7) == 1.005
    assert read_devices(written(tmp_path, json.dumps(tomllib.loads(GOOD)), "devices.json")) == found


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('name = "gpu"', 'name = "cpu"', "several devices 'cpu'"),
        ('name = "gpu"', 'name = "a b"', "is no name of a device"),
        ('kind = "gpu"', 'kind = "abacus"', "none of cpu, gpu"),
        ("cores = 2", "cores = 0", "not between 1 and"),
        ("cores = 2", "cores = true", "is no int"),
        ("scale = 0.2", "scale = -1.0", "not between"),
        ("scale = 0.2", "scale = nan", "not between"),
        ("scale = 0.2", "speed = 5.0", "unknown field 'speed'"),
        ("ms.7 = 0.35", "ms.first = 0.35", "number of a sub-graph"),
        ("scale = 0.2", "gflops = 10.0", "device 'gpu' has only one of gflops and gbytes"),
        ("scale = 0.2", "gflops = 0.0\ngbytes = 1.0", "not between"),
        ("memory_gb = 16", "memory_gb = 0", "device 'cpu' has no memory .*leave it out"),
        ("memory_gb = 16", "memory_gb = -1.5", "device 'cpu' has no memory"),
        ("memory_gb = 16", "memory_gb = nan", "not between"),
        ('["cpu", "gpu"]', '["cpu", "tpu"]', "a link ends at 'tpu', and there is no such device, only cpu, gpu"),
        ('["cpu", "gpu"]', '["cpu", "cpu"]', "a link joins 'cpu' to itself"),
        ('["cpu", "gpu"]', '["cpu"]', "1 items instead of 2"),
        ("gbytes = 10.0", "gbytes = 0.0", "not between"),
        ("latency_us = 5.0", 'latency_us = "5"', "is no float"),
        ("[[link]]", "[[link]", "is not TOML"),
        (GOOD, "", "lacks the field 'device'"),
        (GOOD, "device = []", "0 items, not 1 to 8"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(BadDevices, match=reason) as found:
        read_devices(path)
    assert "docs/manual/schedule.md" in str(found.value)


def test_two_links_between_the_same_devices_are_refused(tmp_path: Path) -> None:
    link = GOOD[GOOD.index("[[link]]") :]
    with pytest.raises(BadDevices, match="several links"):
        read_devices(written(tmp_path, GOOD + link.replace('"cpu", "gpu"', '"gpu", "cpu"')))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        read_devices(tmp_path / "devices.toml")
    with pytest.raises(BadDevices, match="not JSON"):
        read_devices(written(tmp_path, "{", "devices.json"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadDevices, match="cannot be read"):
        read_devices(tmp_path / "binary.toml")
