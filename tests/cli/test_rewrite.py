"""`bricolage rewrite` and `bricolage rules` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

from bricolage.cli.main import app
from bricolage.rewrite.catalogue import FAMILIES, rules
from bricolage.rewrite.rule import Example

pytestmark = pytest.mark.usefixtures("light_reference")
DOCS = Path(__file__).parents[2] / "docs"

MODEL = Example("float[batch,3] x", "t = Transpose(x) u = Relu(t) v = Transpose(u) y = Mul(v, c)", {"c": 1.0})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.onnx"
    onnx.save(ir.to_proto(MODEL.model()), str(path))
    return path


def run(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def test_a_table_and_a_file(source: Path, tmp_path: Path) -> None:
    code, out, err = run("rewrite", source, "-o", tmp_path / "better.onnx")
    assert code == 0 and f"wrote {tmp_path / 'better.onnx'}" in err
    assert "compose-transposes" in out and "batch=2" in out and "equal to the original" in out
    assert [node.op_type for node in onnx.load(str(tmp_path / "better.onnx")).graph.node] == ["Relu"]


def test_json(source: Path, tmp_path: Path) -> None:
    _, out, _ = run(
        "rewrite",
        source,
        "-o",
        tmp_path / "better.onnx",
        "--json",
        "--max-rewrites",
        1,
        "--skip",
        "identity",
        "--skip",
        "layout",
    )
    found = json.loads(out)
    assert found["before"]["operators"] == 4 and len(found["applications"]) == 1
    assert found["applications"][0]["rule"] == "move-transpose-behind-function"


def test_opset(source: Path, tmp_path: Path) -> None:
    assert run("rewrite", source, "-o", tmp_path / "better.onnx", "--opset", 23)[0] == 0
    assert onnx.load(str(tmp_path / "better.onnx")).opset_import[0].version == 23
    code, _, err = run("rewrite", source, "-o", tmp_path / "other.onnx", "--opset", 999)
    assert code == 2 and "999" in err and not (tmp_path / "other.onnx").exists()


@pytest.mark.parametrize("method", ["backtrack", "saturate"])
def test_a_search(source: Path, tmp_path: Path, method: str) -> None:
    code, out, _ = run("rewrite", source, "-o", tmp_path / "better.onnx", "--search", method)
    assert code == 0 and "predicted" in out and ("graphs seen" in out) == (method == "backtrack")
    assert [node.op_type for node in onnx.load(str(tmp_path / "better.onnx")).graph.node] == ["Relu"]
    _, out, _ = run("rewrite", source, "-o", tmp_path / "better.onnx", "--search", method, "--json")
    found = json.loads(out)["search"]
    assert found["predicted_ms"][0] < found["predicted_before_ms"]
    assert (found["statistics"]["lower_bound"] is None) == (method == "backtrack")


def test_a_model_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.measure.reference_worker.SHORTEST_S", 0.5)
    monkeypatch.setattr("bricolage.measure.pool._START_GRACE_S", 0.0)
    text = f"""<ir_version: 8, opset_import: ["" : 18]> t (float[2,3] x) => (float[2,3] y)
        <int64 n = {{{2**63 - 1}}}, bool yes = {{1}}, float one = {{1}}> {{
        y = Loop<body = b (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] s) {{ d = Identity(c) s = Add(a,one) }}>(n,yes,x)
    }}"""
    path, out = tmp_path / "endless.onnx", tmp_path / "better.onnx"
    onnx.save(onnx.parser.parse_model(text), str(path))
    code, _, err = run("rewrite", path, "-o", out, "--budget", "2s")
    assert code == 4 and "more than 2 s; a loop in the model may not end" in " ".join(err.split()), err
    assert not out.exists()


def test_a_policy_is_learned_and_used(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    policy, better = tmp_path / "policy.json", tmp_path / "better.onnx"
    code, out, _ = run("rules", "learn", source, "-o", policy, "--rounds", 2, "--json")
    assert code == 0 and json.loads(out)["rounds"] == 2 and json.loads(out)["names"] > 0
    code, _, _ = run("rewrite", source, "-o", better, "--search", "learned-keys", "--policy", policy)
    assert code == 0 and [node.op_type for node in onnx.load(str(better)).graph.node] == ["Relu"]
    code, _, err = run("rules", "learn", better, "-o", tmp_path / "other.json")
    assert code == 2 and "rule applies" in err and not (tmp_path / "other.json").exists()
    code, _, err = run("rules", "learn", tmp_path / "missing.onnx", "-o", tmp_path / "other.json")
    assert code == 2 and "no file" in err


def test_wrong_usage(source: Path, tmp_path: Path) -> None:
    for words, said in (
        ((source, "-o", source), "overwrite"),
        ((source, "-o", tmp_path / "b.onnx", "--only", "nonsense"), "no rule or family"),
        ((tmp_path / "missing.onnx", "-o", tmp_path / "b.onnx"), "no file"),
        ((source, "-o", tmp_path / "b.onnx", "--shape", "batch=1,2"), "one size"),
        ((source, "-o", tmp_path / "b.onnx", "--search", "guess"), "backtrack, saturate"),
        ((source, "-o", tmp_path / "b.onnx", "--search", "saturate", "--max-rewrites", 1), "no order"),
        ((source, "-o", tmp_path / "b.onnx", "--policy", source), "learned-keys"),
        ((source, "-o", tmp_path / "b.onnx", "--search", "learned-keys", "--policy", source), "rules learn"),
        ((source, "-o", tmp_path / "b.onnx", "--search", "learned-keys", "--policy", tmp_path / "p.json"), "no file"),
    ):
        code, _, err = run("rewrite", *words)
        assert code == 2 and said in err
    assert not (tmp_path / "b.onnx").exists()


def test_rules_are_listed_by_family() -> None:
    code, out, _ = run("rules", "list")
    assert code == 0 and all(rule.name in out for rule in rules()) and all(family in out for family in FAMILIES)
    _, out, _ = run("rules", "list", "--only", "transpose", "--json")
    found = json.loads(out)
    assert list(found) == ["transpose"]
    assert {"name", "equation", "conditions", "since_opset", "cost_based"} == set(found["transpose"][0])


def test_the_page_of_rules_is_up_to_date() -> None:
    _, out, _ = run("rules", "list", "--markdown")
    assert out == (DOCS / "reference" / "rules.md").read_text(encoding="utf-8"), (
        "make it again: bricolage rules list --markdown > docs/reference/rules.md"
    )


def test_why_a_rule_does_not_apply(source: Path) -> None:
    code, out, _ = run("rules", "why", "compose-transposes", source)
    assert code == 0 and "'u' is not computed by Transpose" in out
    assert run("rules", "why", "nonsense", source)[0] == 2


def test_rules_of_a_model_are_explained(source: Path) -> None:
    code, out, _ = run("explain", source, "--rules")
    assert code == 0 and "compose-transposes" in out and "remove-neutral" in out
    _, out, _ = run("explain", source, "--rules", "--json")
    found = {use["rule"]: use for use in json.loads(out)}
    assert len(found["compose-transposes"]["applied"]) == 1
    assert run("explain", "absent.onnx", "--rules")[0] == 2


def test_rules_are_verified() -> None:
    code, out, _ = run("rules", "verify", "--only", "transpose")
    assert code == 0 and "compose-transposes" in out and "proved" in out
    code, out, _ = run("rules", "verify", "--only", "product-of-absolutes", "--json")
    (found,) = json.loads(out)
    assert code == 0 and found["status"] == "proved"
    assert all(example["error_bound"] < 1e-9 and example["functions"] == ["abs"] for example in found["examples"])


def test_substitutions_are_listed() -> None:
    code, out, err = run("rules", "list", "--instances")
    assert code == 0 and len(out.splitlines()) >= 743 and "distinct substitutions" in err


def test_rules_of_ones_own_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"rule": "relu(relu(x)) = relu(x)"}\n', encoding="utf-8")
    code, out, _ = run("rules", "verify", "--file", path)
    assert code == 0 and "mine-1" in out and "proved" in out
    path.write_text('{"rule": "relu(add(x, y)) = add(relu(x), relu(y))"}\n', encoding="utf-8")
    code, _, err = run("rules", "verify", "--file", path)
    assert code == 4 and "mine-1 is false" in err and "becomes" in err
    path.write_text('{"rule": "relu(x"}\n', encoding="utf-8")
    code, _, err = run("rules", "verify", "--file", path)
    assert code == 2 and "line 1" in err
    assert run("rules", "verify", "--file", tmp_path / "none")[0] == 2


def test_rules_are_generated(tmp_path: Path) -> None:
    code, out, _ = run("rules", "generate", "-o", tmp_path / "rules.jsonl", "--max-operators", "1")
    assert code == 0 and "rules" in out
    assert run("rules", "verify", "--file", tmp_path / "rules.jsonl")[0] == 0


def test_for_a_backend(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    words = ["--for", "onnxruntime", "--threads", 1, "--budget", "2s", "--shape", "batch=2"]
    code, out, err = run("rewrite", source, "-o", tmp_path / "better.onnx", *words)
    assert code == 0, err
    assert "Measured" in out and "graph variants were made for onnxruntime f32 with 1 thread" in " ".join(out.split())
    onnx.checker.check_model(str(tmp_path / "better.onnx"))


@pytest.mark.slow
def test_for_a_backend_as_json(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    words = ["--for", "onnxruntime", "--threads", 1, "--budget", "2s", "--shape", "batch=2"]
    code, out, _ = run("rewrite", source, "-o", tmp_path / "again.onnx", "--json", *words)
    found = json.loads(out)["tailored"]
    assert (
        code == 0 and found["backend"] == "onnxruntime" and {f["name"] for f in found["graph_variants"]} >= {"original"}
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--for", "onnxruntime", "--search", "backtrack"], "--search"),
        (["--for", "onnxruntime", "--max-rewrites", 3], "--max-rewrites"),
        (["--threads", 2], "without --for"),
        (["--for", "no-such", "--shape", "batch=2"], "no-such"),
    ],
)
def test_options_that_do_not_go_together(source: Path, tmp_path: Path, words: list[object], expected: str) -> None:
    code, _, err = run("rewrite", source, "-o", tmp_path / "better.onnx", *words)
    assert code != 0 and expected in err and not (tmp_path / "better.onnx").exists()


def test_rules_of_ones_own_are_proved_and_used(tmp_path: Path) -> None:
    example = Example("float[2,4] x, float[2,4] z", "a = Tanh(x) b = Mul(a, a) c = Mul(a, z) y = Add(b, c)")
    onnx.save(ir.to_proto(example.model()), str(tmp_path / "model.onnx"))
    own, better = tmp_path / "mine.jsonl", tmp_path / "better.onnx"
    own.write_text('{"rule": "add(mul(x, x), mul(x, z)) = mul(x, add(x, z))"}\n', encoding="utf-8")
    code, out, err = run("rewrite", tmp_path / "model.onnx", "-o", better, "--rules", own, "--skip", "algebra")
    assert code == 0 and "mine-1" in out, err
    assert [node.op_type for node in onnx.load(str(better)).graph.node] == ["Tanh", "Add", "Mul"]
    own.write_text('{"rule": "add(x, mul(x, z)) = mul(x, add(x, z))"}\n', encoding="utf-8")
    code, _, err = run("rewrite", tmp_path / "model.onnx", "-o", tmp_path / "false.onnx", "--rules", own)
    assert code != 0 and "false" in err and not (tmp_path / "false.onnx").exists()
    code, _, err = run("rewrite", tmp_path / "model.onnx", "-o", better, "--rules", tmp_path / "none")
    assert code == 2 and "no file" in err
