"""The fuzzer finds planted faults, makes them small, keeps them, and goes on where it ended; and a fast slice of each campaign."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from benchmarks.fuzz import __main__ as command
from benchmarks.fuzz import engines, mutants, nnsmith, pairs, regions, rules, sources
from benchmarks.fuzz.campaigns import Campaign, campaigns
from benchmarks.fuzz.findings import smaller
from benchmarks.fuzz.ledger import Block, Ledger
from bricolage.backends import quarantine, registry
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE
from bricolage.backends.quarantine import entries
from bricolage.errors import NoReference
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.isa import find_isa
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.rule import Operators, Result, Rule
from bricolage.testing import Truth
from tests.graph.models import parse
from tests.testing.liar import Liar

ROOT = Path(__file__).parents[2]
CHAIN = """<ir_version: 10, opset_import: ["" : 18]> chain (float[3,4] x) => (float[3,4] y, float[3,4] z) {
    a = Relu (x)
    b = Add (a, x)
    c = Tanh (b)
    d = Sigmoid (c)
    y = Neg (d)
    z = Abs (x)
}"""


class FalseRule(Rule):
    """Tanh(x) = x"""

    family = "identity"

    def patterns(self) -> Sequence[Op]:
        return [op.Tanh(AnyValue("x"))]

    def rewrite(self, op: Operators, match: Match) -> Result:  # noqa: ARG002
        return match["x"]


def sample(text: str) -> sources.Sample:
    model = parse(text)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    return sources.Sample(5, "by hand", ir.to_proto(model), {}, {"x": x})


def test_a_planted_fault_is_found_cut_down_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "installed", lambda _: (Liar(),))
    monkeypatch.setattr(registry, "version", lambda _: "1")
    done = Block(0, 1)
    engines.check("engines", sample(CHAIN), tmp_path, done)
    assert done.tested == 2 and len(done.findings) == 1
    folder = tmp_path / "findings" / done.findings[0]
    small = onnx.load(folder / "model.onnx")
    assert [node.op_type for node in small.graph.node] == ["Tanh"]
    assert json.loads((folder / "finding.json").read_text(encoding="utf-8"))["what"] == "value"
    assert (folder / "script.py").exists() and (folder / "inputs.npz").exists()


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    done = Block(0, 1)
    engines.check("engines", sample(CHAIN), tmp_path, done, ("onnxruntime", "native"))
    assert done.tested >= 1 and done.findings == []


def test_scripts_show_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of a finding runs in its folder, without bricolage where it is ONNX Runtime's, and prints both answers."""
    pytest.importorskip("onnxruntime")
    given = sample(CHAIN)
    told = engines.Finding("engines", 5, "onnxruntime 1", "value", 'a "quoted" text', {})
    text = engines.script("onnxruntime", told)
    folder = engines.store(tmp_path, told, given.model, given.feeds, text)
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("largest difference") == 2 and "bricolage" not in text


def test_cutting_stops_where_the_finding_goes() -> None:
    """What needs two operators keeps both."""
    given = sample(CHAIN)

    def shows(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
        return {"Add", "Tanh"} <= {node.op_type for node in model.graph.node} and set(feeds) == {
            value.name for value in model.graph.input
        }

    small, feeds = smaller(given.model, given.feeds, shows)
    assert [node.op_type for node in small.graph.node] == ["Add", "Tanh"]
    assert Truth(ir.from_proto(small), feeds).expected


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "one.jsonl")
    ledger.add(Block(0, 8, tested=7, refused=1, findings=["a"]))
    with (tmp_path / "one.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"first": 8, "cou')  # the end of a run that was killed
    again = Ledger(tmp_path / "one.jsonl")
    assert again.next == 8 and again.total.tested == 7 and again.total.findings == ["a"]


WORKER = """
import json, os, sys
first, size = map(int, sys.argv[1:])
for start in range(first, first + 3 * size, size):
    print(json.dumps({"trying": [start, size]}), flush=True)
    if 3 in range(start, start + size):
        os.abort()
    told = {"first": start, "count": size, "tested": size, "refused": 0, "void": 0, "findings": [], "notes": {}}
    print(json.dumps(told), flush=True)
"""


def test_what_ends_the_process_is_a_finding_of_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that aborts at seed 3: its block is tried again seed by seed, and the others go on."""

    def start(campaign: Campaign, first: int, size: int, folder: Path) -> subprocess.Popen[str]:
        (folder / f"{campaign.name}.log").write_text("Aborted", encoding="utf-8")
        words = [sys.executable, "-I", "-c", WORKER, str(first), str(size)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    monkeypatch.setattr(command, "_start", start)
    ledger = Ledger(tmp_path / "crash.jsonl")
    while ledger.next < 6:
        command.run(Campaign("crash", regions.block, 2, 1.0), ledger, tmp_path, 0.5)
    assert ledger.total.findings == ["crash-3-process"]
    assert ledger.total.tested == ledger.next
    assert "worker crash 3 1 1" in (tmp_path / "findings" / "crash-3-process" / "script.sh").read_text(encoding="utf-8")


# --- a fast slice of each campaign


@pytest.mark.parametrize("isa", ["avx2", "generic", "split-avx512"])
def test_regions(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_isa(isa) is None:
        pytest.skip(f"{isa} does not run here")
    monkeypatch.setenv(FORCED_ISA_VARIABLE, isa)
    done = regions.block("test", range(1_000_000, 1_000_008), tmp_path)
    assert done.findings == [] and done.tested >= 5


def test_regions_with_another_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    monkeypatch.setenv(toolchain.FORCED_COMPILER_VARIABLE, "zig")
    toolchain.compiler.cache_clear()
    try:
        assert "ziglang" in (toolchain.compiler() or ())
        done = regions.block("test", range(1_000_020, 1_000_022), tmp_path)
    finally:
        monkeypatch.undo()
        toolchain.compiler.cache_clear()
    assert done.findings == [] and done.tested


def test_rules_in_contexts(tmp_path: Path) -> None:
    done = Block(0, 8)
    for seed in range(8):
        rules.check("test", seed, tmp_path, done)
    assert done.findings == [] and done.notes["the rule applied"] >= 2
    assert any("near miss" in note for note in done.notes)


def test_a_false_rule_is_found(tmp_path: Path) -> None:
    proto = ir.to_proto(parse(CHAIN))
    rule = FalseRule()
    _, text = rules.compare(proto, sample(CHAIN).feeds, rule)
    assert "the error is" in text


def test_engines(tmp_path: Path) -> None:
    done = Block(0, 3)
    for seed in (8, 9, 10):
        engines.check("test", sources.own(seed), tmp_path, done, ("onnxruntime", "native"))
    assert done.findings == [] and done.tested >= 3


def test_nnsmith_where_it_is_installed(tmp_path: Path) -> None:
    if (reason := nnsmith.missing()) is not None:
        with pytest.raises(sources.NoSample, match="not installed"):
            nnsmith.sample(0)
        pytest.skip(reason)
    done = Block(0, 1)
    engines.check("test", nnsmith.sample(2), tmp_path, done, ("onnxruntime", "native"))
    assert done.findings == [] and done.tested


def test_mutants_are_valid_and_differ_from_their_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network at hand instead of an export, which takes its time."""
    from tests.graph.models import graph

    network = graph(
        "c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w) r = Relu (c) p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (r)"
        " d = Conv <kernel_shape=[1,1]> (p, v) a = Add (d, p) y = GlobalAveragePool (a)",
        "float[1,4,12,12] x",
        "float[1,4,1,1] y",
        w=np.ones((4, 4, 3, 3), np.float32),
        v=np.ones((4, 4, 1, 1), np.float32),
    )
    monkeypatch.setattr(mutants, "_network", lambda _: network)
    texts = set[bytes]()
    for seed in range(12):
        try:
            found = mutants.sample(seed)
        except (sources.NoSample, NoReference):
            continue
        onnx.checker.check_model(found.model, full_check=True)
        texts.add(found.model.SerializeToString(deterministic=True))
    assert len(texts) >= 6


def test_campaigns_name_what_this_processor_has() -> None:
    names = set(campaigns())
    assert {"optimize", "optimize-every", "engines", "rules", "nnsmith", "mutants", "opinion", "pairs"} <= names
    assert ("regions-avx512-gcc" in names) == (find_isa("avx512") is not None)


def test_pairs_are_valid_and_of_every_kind() -> None:
    """Every kind of pairs gives models that can be prepared."""
    kinds: dict[str, list[int]] = {}
    for seed in range(42):
        kind, proto = pairs.pair(seed)
        kinds.setdefault(kind, []).append(len(prepare(to_model(proto), {})))
    assert len(kinds) == 21 and all(max(sizes) >= 1 for sizes in kinds.values())


@pytest.mark.parametrize("quarantined", [False, True])
def test_a_pair_that_a_runtime_merges_wrongly_is_found(
    quarantined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The known fault of ONNX Runtime 1.31.1, without its entry in the quarantine; with it, the pair is right."""
    pytest.importorskip("onnxruntime")
    if not entries("onnxruntime", registry.version("onnxruntime")):
        pytest.skip("this version of ONNX Runtime is not in quarantine")
    if not quarantined:
        (tmp_path / "empty.json").write_text("[]", encoding="utf-8")
        monkeypatch.setattr(quarantine, "FILE", tmp_path / "empty.json")
    entries.cache_clear()
    try:
        done = Block(0, 1)
        pairs.check("pairs", 21, tmp_path, done, ("onnxruntime",))
    finally:
        entries.cache_clear()
    assert done.tested == 1 and len(done.findings) == (0 if quarantined else 1)
    for name in done.findings:
        told = json.loads((tmp_path / "findings" / name / "finding.json").read_text(encoding="utf-8"))
        assert "0.0e+00 without its optimisations" in told["text"]


def test_an_operator_that_is_wrong_alone_is_not_told_as_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "installed", lambda _: (Liar(),))
    network = prepare(to_model(sample(CHAIN).model), {})
    assert pairs._told(Liar(), network, {"first": sample(CHAIN).feeds}) == ()
