"""Plans for an Arm device that a file describes: predicted for time, compared with float64 for answers, exported and emulated."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import bricolage
from bricolage.api.export_library import export_model, find_export_target
from bricolage.api.optimize_target import TargetPlan, TargetRequest, optimize_for_target
from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.options import Options
from bricolage.cli.main import app
from bricolage.device.arm_cores import LANES, core_named
from bricolage.device.host import unlimited
from bricolage.errors import BadOption, BadTargets, NoTarget
from bricolage.native.cpu.isa import described_instructions
from bricolage.report.html import render
from bricolage.report.summary import target_summary
from bricolage.report.tables import decision, render_text
from tests.graph.models import parse

pytestmark = pytest.mark.usefixtures("light_reference")
NET = """<ir_version: 8, opset_import: ["" : 18]> net (float[16,64] x) => (float[16,48] y) {
    h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"""
OPTIONS = Options(backends=("native",), effort="instant", budget_s=6.0, threads=1)
PI = 'name = "pi5"\ncore = "cortex-a76"\nthreads = 4\nghz = 2.4\ngbytes = 10.0\nl2_kb = 512\n'
QEMU = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")


def net() -> ir.Model:
    rng = np.random.default_rng(0)
    return parse(
        NET, w=rng.normal(0, 0.2, (64, 96)).astype(np.float32), v=rng.normal(0, 0.2, (96, 48)).astype(np.float32)
    )


def write(folder: Path, *targets: str) -> Path:
    path = folder / "device.toml"
    path.write_text("".join(f"[[target]]\n{target}" for target in targets), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not isinstance(registry.find_status("native"), Available):
        pytest.skip("no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("target")
        patch.setenv("BRICOLAGE_CACHE", str(path / "cache"))
        yield path


@pytest.fixture(scope="module")
def decided(folder: Path) -> TargetPlan:
    ir.save(net(), folder / "net.onnx")
    return optimize_for_target(TargetRequest(folder / "net.onnx", write(folder, PI), folder / "pi5.bricolage"), OPTIONS)


def test_nothing_of_the_plan_is_called_measured(decided: TargetPlan, folder: Path) -> None:
    """The table, the page, JSON and the plan say what is predicted, and no time is there that was taken."""
    plan, entry = decided.plan, decided.entry
    (bucket,) = plan.buckets
    assert bucket.race.decided_by == "predicted costs" and entry.emulated and entry.measured_on == ""
    for contestant in bucket.race.contestants:
        assert contestant.median_ms is None and contestant.predicted_ms is not None
        assert contestant.predicted_ci_ms is not None
        assert contestant.predicted_ci_ms[0] <= contestant.predicted_ms <= contestant.predicted_ci_ms[1]
    assert entry.median_ms == pytest.approx(bucket.race.winner.predicted_ms)
    least = min(c.predicted_ms or 0.0 for c in bucket.race.contestants if not c.reason or c.error is not None)
    assert bucket.race.winner.predicted_ms == least
    text = render_text(decision(bucket, 300), 300)
    assert "is predicted to take ~" in text and "Nothing was timed there" in text and "Median" not in text
    page = render(plan, [None], "")
    assert "predicted to take ~" in page and "Predicted</th>" in page and "95 % interval</th>" not in page
    summary = json.loads(json.dumps(target_summary(plan, entry)))
    assert summary["predicted"]["timed"] is False and "without the device's instructions" in str(summary["predicted"])
    assert summary["contestants"][0]["median_ms"] is None and summary["contestants"][0]["predicted_ms"] > 0
    assert plan.provenance.hardware.startswith("predicted for pi5: cortex-a76, described")


def test_the_device_is_the_files(decided: TargetPlan) -> None:
    """Four threads, whatever this machine has; instructions of the core, and a peak by its clock."""
    core = core_named("cortex-a76")
    assert core is not None and decided.entry.target.peaks is not None
    assert decided.entry.target.peaks.gflops == pytest.approx(2 * LANES * core.products_a_cycle * 2.4 * 4)
    assert decided.plan.provenance.options.threads == 4 == decided.entry.threads
    assert set(decided.entry.instructions) == described_instructions("dotprod") == core.instructions
    assert (decided.entry.architecture, decided.entry.system) == ("aarch64", "Linux")


def test_this_machine_does_not_take_it(decided: TargetPlan, folder: Path) -> None:
    if "asimddp" in unlimited().instructions:
        pytest.skip("a processor without dot products of Arm")
    with pytest.raises(NoTarget):
        bricolage.load(folder / "pi5.bricolage")
    with pytest.raises(BadOption, match="The plan is for the device 'pi5'"):
        export_model(folder / "pi5.bricolage", folder / "here")


def test_its_export_is_right_in_an_emulator_and_refused_without_the_instructions(
    decided: TargetPlan, folder: Path
) -> None:
    """Answers are those of the model in float64. A Cortex-A72 has no dot products, and gets a code, not a signal."""
    for tool in ("cmake", "aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    target = find_export_target(str(write(folder, PI)))
    exported = export_model(folder / "pi5.bricolage", folder / "c", "net", target=target)
    assert exported.sets == ("dotprod",)
    build = folder / "build"
    for words in (
        ["-S", str(exported.folder), "-B", str(build), "--toolchain", "toolchain.cmake"],
        ["--build", str(build), "--target", "net_test"],
    ):
        subprocess.run(["cmake", *words], check=True, capture_output=True)
    words = [str(build / "net_test"), str(exported.folder / "share" / "net")]
    ran = subprocess.run([*QEMU, "-cpu", "cortex-a76", *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "dotprod" in ran.stdout, ran.stderr
    lacking = subprocess.run([*QEMU, "-cpu", "cortex-a72", *words], capture_output=True, text=True, check=False)
    assert lacking.returncode > 0 and "lacks the instructions" in lacking.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PI.replace("cortex-a76", "cortex-a1"), "none of cortex-a53"),
        (PI.replace("ghz = 2.4\n", ""), "either ghz or gflops"),
        (PI.replace("threads = 4\n", ""), "takes threads, gbytes"),
        (PI + "scale = 2.0\n", "leave ray and scale out"),
        ('name = "a"\nghz = 2.0\n', "no core that they are of"),
        ('name = "a"\nisa = "sse"\n', "isa"),
        (PI.replace("ghz = 2.4", "ghz = -1"), "ghz"),
        (PI.replace("l2_kb = 512", "l2_kb = 0"), "l2_kb"),
    ],
)
def test_files_that_describe_no_device(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(BadTargets, match=told):
        optimize_for_target(TargetRequest(net(), write(tmp_path, text), tmp_path / "x.bricolage"), OPTIONS)
    assert not (tmp_path / "x.bricolage").exists()


def test_what_target_takes(tmp_path: Path, decided: TargetPlan, folder: Path) -> None:
    with pytest.raises(BadOption, match="lists 2 targets"):
        optimize_for_target(TargetRequest(net(), write(tmp_path, PI, PI.replace("pi5", "pi")), tmp_path / "x"), OPTIONS)
    with pytest.raises(BadOption, match="describes no device"):
        optimize_for_target(TargetRequest(net(), write(tmp_path, 'name = "here"\n'), tmp_path / "x"), OPTIONS)
    for name in ("threads", "isa", "objective"):
        with pytest.raises(BadOption, match=f"--{name}"):
            optimize_for_target(TargetRequest(net(), write(tmp_path, PI), tmp_path / "x"), OPTIONS, {name})
    x86 = find_export_target(str(write(tmp_path, 'name = "a"\nisa = "avx512"\ngflops = 9.0\ngbytes = 9.0\n')))
    with pytest.raises(BadOption, match="describes no Arm device"):
        export_model(folder / "pi5.bricolage", tmp_path / "c", "net", target=x86)
    with pytest.raises(BadOption, match="or a file that describes a device"):
        export_model(folder / "pi5.bricolage", tmp_path / "c", "net", target="riscv")
    with pytest.raises(BadOption, match="--portable"):
        export_model(
            folder / "pi5.bricolage", tmp_path / "c", "net", target=replace(decided.entry.target), portable=True
        )


def test_the_command_says_predicted(folder: Path, decided: TargetPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = ["optimize", "net.onnx", "-o", "cli.bricolage", "--target", str(write(folder, PI)), "--report", "cli.html"]
    words += ["--backend", "native", "--effort", "instant", "--budget", "6s"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["predicted"]["device"].startswith("predicted for pi5")
    assert "predicted to take ~" in (folder / "cli.html").read_text(encoding="utf-8")
    explained = CliRunner().invoke(app, ["explain", "cli.bricolage"])
    assert "predicted ~" in explained.stdout and "not measured" in explained.stdout, explained.stdout
    refused = CliRunner().invoke(app, [*words, "--require-gain"])
    assert refused.exit_code == 2
