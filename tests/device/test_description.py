"""Files that describe devices: what is read, and what is refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bricolage.codec import encode
from bricolage.device.description import read_devices
from bricolage.errors import BadDevices, MissingFile

GOOD = """
[[device]]
name = "cpu"
kind = "cpu"
cores = 2

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
    assert [one.name for one in found.device] == ["cpu", "gpu"]
    assert found.device[1].operators == {"Conv": 0.1} and found.device[1].ms == {"7": 0.35}
    assert found.machine.move_ms("cpu", "gpu", 10**7) == found.machine.move_ms("gpu", "cpu", 10**7) == 1.005
    assert read_devices(written(tmp_path, json.dumps(encode(found)), "devices.json")) == found


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
        ('["cpu", "gpu"]', '["cpu", "tpu"]', "not two of the devices"),
        ('["cpu", "gpu"]', '["cpu", "cpu"]', "not two of the devices"),
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
    assert "docs/scheduling.md" in str(found.value)


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
