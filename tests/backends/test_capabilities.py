"""Capability tables: consistent in themselves, and true of the backends that are installed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.capabilities import __main__ as making
from benchmarks.capabilities.document import document
from benchmarks.capabilities.lowerings import RESTS_ON, changed, changed_operators, digest, digests
from benchmarks.capabilities.tabulate import make_table, merged, to_json
from bricolage.backends import capabilities, registry
from bricolage.backends.capabilities import (
    EVERYTHING,
    FOLDER,
    CapabilityTable,
    accepts,
    command,
    committed_table,
    engine_claims,
    find_avoided,
    is_current,
)
from bricolage.backends.claim_matching import Matcher
from bricolage.backends.interface import Available, Resources
from bricolage.backends.operator_features import operator_features, type_key
from bricolage.conformance.attempt import Result, attempt_trial
from bricolage.conformance.expected_outputs import difference
from bricolage.conformance.suite import suite_cases
from bricolage.conformance.trial_cases import OperatorTrial, trials
from bricolage.graph.graph import Graph
from tests.graph.models import graph

TABLES = sorted(path.stem for path in FOLDER.glob("*.json"))
SAMPLES = (
    "test_add test_conv_with_strides_padding test_cast_DOUBLE_to_FLOAT16 test_gather_0 test_reshape_reduced_dims "
    "test_softmax_axis_1 test_layer_normalization_2d_axis0 test_matmul_3d test_reduce_mean_keepdims_random test_where_example "
    "test_split_equal_parts_1d_opset18 test_resize_upsample_scales_linear test_concat_2d_axis_1 test_slice test_top_k "
    "test_maxpool_2d_pads test_averagepool_2d_ceil test_gelu_tanh_1 test_lstm_defaults test_if test_identity_sequence"
)
SAMPLED = (
    "Add Conv Cast Gather Reshape Softmax LayerNormalization MatMul ReduceMean Where Split Resize Concat Slice TopK MaxPool "
    "AveragePool Gelu LSTM If Identity"
)
"""Their operators."""


@cache
def sampled() -> tuple[OperatorTrial, ...]:
    names = set(SAMPLES.split())
    found = [case for case in suite_cases(SAMPLED.split()) if case.name in names]
    assert len(found) == len(names)
    made = trials(found, generated_too=False)
    return tuple(trial for trial in made if "@" not in trial.name)  # which types are made up depends on the whole suite


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_for_known_backends_and_add_up(name: str) -> None:
    found = committed_table(name)
    assert found is not None
    assert found.backend == name in registry.names()
    counted: dict[str, int] = dict.fromkeys(found.counts, 0)
    for versions in found.outcomes.values():
        for kinds in versions.values():
            for outcome in kinds.values():
                for word in outcome.split(", "):
                    kind, number = word.split()
                    counted[kind] += int(number)
    assert counted == dict(found.counts)
    assert found.counts["passes"] > 500


@pytest.mark.parametrize("name", TABLES)
def test_what_was_wrong_is_avoided(name: str) -> None:
    found = committed_table(name)
    assert found is not None
    for operator, versions in found.outcomes.items():
        for version, kinds in versions.items():
            for kind, outcome in kinds.items():
                harmful = any(word in outcome for word in ("wrong", "crashes", "times-out"))
                assert harmful == bool(found.avoid.get(operator, {}).get(version, {}).get(kind)), (
                    operator,
                    version,
                    kind,
                )


def of_record(name: str) -> CapabilityTable:
    found = committed_table(name)
    assert found is not None
    return found


def harmful(found: CapabilityTable, trial: OperatorTrial) -> bool:
    """Whether the table says of a case that it does not pass: all of its kind did not, or its features are warned of."""
    outcome = found.outcomes.get(trial.operator, {}).get(trial.version, {}).get(trial.kind, "passes 0")
    kind = (trial.operator, trial.version, trial.kind)
    return not outcome.startswith("passes") or find_avoided(found, kind, trial.traits) is not None


@cache
def harmful_cases(name: str) -> tuple[OperatorTrial, ...]:
    """Cases of some operators that the table warns of, and of some that did not pass."""
    found = of_record(name)
    refused = [
        operator
        for operator, versions in found.outcomes.items()
        if any(not outcome.startswith("passes") for kinds in versions.values() for outcome in kinds.values())
    ]
    operators = {key.rpartition("::")[2] for key in (*sorted(found.avoid)[:2], *refused[:2])}
    own = [trial for trial in trials(suite_cases(operators), generated_too=False) if harmful(found, trial)]
    if found.avoid and not any(warned(found, trial) for trial in own):
        own += [trial for trial in trials(suite_cases(sorted(found.avoid)[:2])) if warned(found, trial)]
    return tuple(own)


def warned(found: CapabilityTable, trial: OperatorTrial) -> bool:
    """Whether the table warns of a case by its features."""
    return find_avoided(found, (trial.operator, trial.version, trial.kind), trial.traits) is not None


def claimed(name: str) -> set[str]:
    """Those of the harmful cases that are accepted all the same."""
    check, names = accepts(name), set()
    for trial in harmful_cases(name):
        made = Graph(ir.from_proto(trial.model))
        if len(made) and check(made, made.operators[0]) is None:
            names.add(trial.name)
    return names


def altered(monkeypatch: pytest.MonkeyPatch, name: str, found: CapabilityTable) -> None:
    """Makes `found` the table of a backend."""
    real = committed_table
    monkeypatch.setattr(capabilities, "committed_table", lambda backend: found if backend == name else real(backend))


@pytest.mark.parametrize("name", TABLES)
def test_a_case_that_came_out_wrong_is_never_claimed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators with the features that the table warns of, or of a kind that did not pass, are declined. A table in which the
    warnings, or the outcomes that did not pass, are missing would be noticed."""
    found = of_record(name)
    assert harmful_cases(name)
    assert not claimed(name)
    if any(
        found.outcomes[operator][version][kind].startswith("passes")
        for operator, versions in found.avoid.items()
        for version, kinds in versions.items()
        for kind in kinds
    ):
        altered(monkeypatch, name, replace(found, avoid={}))
        assert claimed(name)
    passing = {
        operator: {version: dict.fromkeys(kinds, "passes 1") for version, kinds in versions.items()}
        for operator, versions in found.outcomes.items()
    }
    altered(monkeypatch, name, replace(found, outcomes=passing))
    assert claimed(name)


@pytest.mark.parametrize("name", [name for name in ("onnxruntime", "openvino") if name in TABLES])
def test_sampled_cases_still_come_out_as_in_the_table(name: str) -> None:
    backend, found = registry.get(name), committed_table(name)
    assert found is not None
    status = backend.status()
    if not isinstance(status, Available) or not is_current(backend):
        pytest.skip(f"the table was made with {name} {found.version}")
    for trial in sampled():
        expected = found.outcomes[trial.operator][trial.version][trial.kind]
        assert attempt_trial(backend, trial, Resources(threads=1)).outcome in expected, trial.name


def test_a_table_names_the_command_that_makes_it_again() -> None:
    assert command(of_record("torch")) == "python -m benchmarks.capabilities --backend torch --docs"
    restricted = command(of_record("inductor"))
    assert restricted.endswith("--backend inductor --docs --single-only --types float32,int64 --per-kind 1")


# --- older than our lowerings ---------------------------------------------------------------------------------------


def test_the_page_names_the_tables_that_are_older_than_our_lowerings() -> None:
    """A lowering that changes makes the tables that rest on it older: make them again (`command`), or say so on the page with
    `python -m benchmarks.capabilities --docs`."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "capabilities.md"
    assert page.read_text(encoding="utf-8") == document()


def test_what_a_table_rests_on_is_there() -> None:
    for name in RESTS_ON:
        assert digests(name), name
        assert set(registry.names()) >= {name}
    assert not changed(replace(CapabilityTable("openvino", "1", "1", 20))), "it reads operators itself"


def test_a_lowering_that_changes_comes_or_goes_makes_its_tables_older(tmp_path: Path) -> None:
    folder = tmp_path / "lowering" / "jax"
    folder.mkdir(parents=True)
    (folder / "pooling.py").write_text("def pool(x):\n    return x + 1\n", encoding="utf-8")
    made = CapabilityTable("xla", "1", "1", 20, lowerings=digests("xla", tmp_path))
    assert list(made.lowerings) == ["lowering/jax/pooling.py"] and not changed(made, tmp_path)
    (folder / "pooling.py").write_text(
        '"""Pools."""\n\n\ndef pool(x):  # of anything\n    return x + 1\n', encoding="utf-8"
    )
    assert not changed(made, tmp_path), "a docstring and a comment change no answer"
    (folder / "pooling.py").write_text("def pool(x):\n    return x + 2\n", encoding="utf-8")
    (folder / "arrays.py").write_text("", encoding="utf-8")
    assert changed(made, tmp_path) == ["lowering/jax/arrays.py", "lowering/jax/pooling.py"]
    (folder / "pooling.py").unlink()
    assert "lowering/jax/pooling.py" in changed(made, tmp_path)
    assert changed(replace(made, lowerings={}), tmp_path) == ["lowering/jax/arrays.py"], "one that does not say"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("f(a, b)", "f(\n    a,\n    b,\n)", True),
        ("x = 1\n", "x = 1  # one\n\n\n", True),
        ("def f():\n    'text'\n    return 'a'", "def f():\n    return 'a'", True),
        ("x = 'a'", "x = 'b'", False),
        ("if a:\n    b()\nc()", "if a:\n    b()\n    c()", False),
        ("f(a)(b)", "f(a, b)", False),
        ("def f(a: int) -> int:\n    b: int = a\n    return b", "def f(a):\n    total = a\n    return total", True),
        ("def f(a):\n    b, c = a\n    return b", "def f(a):\n    b, c = a\n    return c", False),
        ("def f(a):\n    return [b for b in a]", "def f(a):\n    return [part for part in a]", True),
        ("def f(a):\n    return a", "def f(b):\n    return b", False),  # parameters may be the names of attributes
        (
            "def f():\n    a = 1\n    def g():\n        return a",
            "def f():\n    b = 1\n    def g():\n        return b",
            True,
        ),
        ("def f():\n    global a\n    a = 1", "def f():\n    global b\n    b = 1", False),
        ("a = 1", "b = 1", False),
        ("f'{a:.3}'", "f'{a:.4}'", False),
        ("f(a=1)", "f(b=1)", False),
        ("x = a < b", "x = a <= b", False),
    ],
)
def test_a_digest_is_of_what_a_file_says(one: str, other: str, same: bool) -> None:
    assert (digest(one) == digest(other)) is same


def test_a_change_of_one_family_concerns_its_operators_and_those_of_families_that_use_it(tmp_path: Path) -> None:
    texts = {
        "lowering/common.py": "def operator(name): ...\n",
        "lowering/operators/convolution.py": '@operator("Conv", since=1)\ndef conv(x): ...\n',
        "lowering/operators/quantization.py": "from bricolage.lowering.operators.convolution import conv\n"
        '@operator("ConvInteger")\ndef f(x): ...\n',
        "lowering/operators/pooling.py": '@operator("MaxPool")\ndef f(x): ...\n',
        "lowering/operators/movement.py": '@operator("Pad")\ndef f(x): ...\n',
        "lowering/jax/interpreter.py": "from bricolage.lowering.operators import movement\nmovement.f(1)\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    made = CapabilityTable("xla", "1", "1", 20, lowerings=digests("xla", tmp_path))

    def after(*names: str) -> frozenset[str] | None:
        return changed_operators(replace(made, lowerings={**made.lowerings, **dict.fromkeys(names, "0")}), tmp_path)

    assert after() == frozenset()
    assert after("lowering/operators/convolution.py") == {"Conv", "ConvInteger"}
    assert after("lowering/operators/quantization.py", "lowering/operators/pooling.py") == {"ConvInteger", "MaxPool"}
    assert after("lowering/common.py") is None, "all share it"
    assert after("lowering/operators/movement.py") is None, "what runs every operator calls it"
    assert after("lowering/operators/gone.py") is None


def test_tables_older_than_their_lowerings_fail_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh, older = of_record("iree"), replace(of_record("iree"), lowerings={})
    monkeypatch.setattr("sys.argv", ["capabilities", "--stale"])
    monkeypatch.setattr(making.registry, "names", lambda: ["iree"])
    monkeypatch.setattr(making, "committed_table", lambda _: replace(fresh, lowerings=digests("iree")))
    assert making.main() == 0 and not capsys.readouterr().out
    monkeypatch.setattr(making, "committed_table", lambda _: older)
    assert making.main() == 1
    sentence = capsys.readouterr().out
    assert "table of iree" in sentence and "older than lowerings that it rests on: backends/iree_compile.py" in sentence
    assert f"`{command(older)} --changed`" in sentence


def test_a_table_of_some_operators_counts_as_made_on_todays_lowerings() -> None:
    old = CapabilityTable(
        "xla", "1", "1", 20, lowerings={"a.py": "0"}, outcomes={"Add": {"14": {"float32": "passes 1"}}}
    )
    new = CapabilityTable(
        "xla", "1", "1", 20, lowerings={"a.py": "1"}, outcomes={"Conv": {"11": {"float32": "passes 2"}}}
    )
    both = merged(old, new, ["Conv"])
    assert both.lowerings == {"a.py": "1"} and set(both.outcomes) == {"Add", "Conv"} and both.counts["passes"] == 3


def test_the_native_table_holds_for_a_version_of_bricolage() -> None:
    native = registry.get("native")
    assert native.table_version() == of_record("native").version and is_current(native)
    assert "+" in registry.version("native")  # costs belong to the generator's own code


def test_common_operators_are_accepted() -> None:
    made = graph("a = MatMul (x, w) \n y = Relu (a)", "float[2, 4] x", "float[2, 4] y", w=np.eye(4, dtype=np.float32))
    for name in ("onnxruntime", "openvino"):
        assert [accepts(name)(made, operator) for operator in made.operators] == [None, None]


def test_reasons_against() -> None:
    def reason(made: Graph, name: str = "onnxruntime") -> str | None:
        return accepts(name)(made, made.operators[0])

    custom = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 18, "mine" : 1, "com.microsoft" : 1]> '
        "g (float[4] x) => (float[4] y, float[4] z) { y = mine.Gizmo (x) \n z = com.microsoft.QuickGelu (x) }"
    )
    gizmo, gelu = sorted(Graph(custom).operators, key=lambda operator: operator.op_type)
    assert accepts("onnxruntime")(Graph(custom), gizmo) == "mine::Gizmo is a custom operator"
    assert accepts("onnxruntime")(Graph(custom), gelu) is None
    assert accepts("openvino")(Graph(custom), gelu) == "QuickGelu belongs to com.microsoft"
    few = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g (float[1, 32] x, uint8[4, 1, 16] w, float[4] s) '
    few += "=> (float[1, 4] y) { y = com.microsoft.MatMulNBits <K=32, N=4, block_size=32, bits=4> (x, w, s) }"
    products = Graph(ir.from_onnx_text(few))
    assert [reason(products, name) for name in ("native", "onnxruntime")] == [None, None]
    assert reason(products, "openvino") == "MatMulNBits belongs to com.microsoft"
    assert reason(graph("y = Relu (x)"), "nobody") == "nobody has no capability table"
    strings = graph("y = StringNormalizer (x)", "string[4] x", "string[4] y")
    assert "string" in (accepts("openvino")(strings, strings.operators[0]) or "")


def test_bodies_are_checked_too() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "mine" : 1]> g (bool c, float[4] x) => (float[4] y) {{
        y = If (c) <then_branch = t () => (float[4] p) {{ p = {operator} (x) }},
                    else_branch = e () => (float[4] q) {{ q = Neg (x) }}> }}"""
    for operator, accepted in (("Relu", True), ("mine.Gizmo", False)):
        made = Graph(ir.from_onnx_text(text.format(operator=operator)))
        reason = accepts("onnxruntime")(made, made.operators[0])
        assert (reason is None) is accepted, reason


def test_engines_claim_single_operators_grown_anchors_and_maximal_regions() -> None:
    made = graph(
        "a = MatMul (x, w) \n b = Add (a, v) \n y = Relu (b)",
        "float[2, 4] x",
        "float[2, 4] y",
        w=np.eye(4, dtype=np.float32),
        v=np.ones(4, dtype=np.float32),
    )
    matcher = Matcher(made)
    claims = engine_claims(registry.get("onnxruntime"))
    assert matcher.regions(claims) == {0b001, 0b010, 0b100, 0b011, 0b111}
    assert matcher.accepted(claims) == 0b111


def test_type_keys_and_features() -> None:
    made = graph("y = Less (x, z)", "float[2, 3] x, float[2, 3] z", "bool[2, 3] y")
    assert type_key(made.operators[0].node) == "float32>bool"
    pooled = graph("y = AveragePool <kernel_shape = [2, 2]> (x)", "float[1, 1, 4, 4] x", "float[1, 1, 3, 3] y")
    assert operator_features(pooled.operators[0].node, 18) >= {
        "ceil_mode=0",
        "kernel_shape=other",
        "rank=4",
        "shrinks",
        "inputs=1",
    }


def test_the_table_tells_wrong_cases_apart() -> None:
    def trial(name: str, *traits: str) -> OperatorTrial:
        return OperatorTrial(
            name,
            "Pool",
            "11",
            "float32",
            frozenset(traits),
            ir.to_proto(graph("y = Relu (x)").model),
            (),
            (),
            0,
            0,
            False,
        )

    told = Result("wrong", "1 of 2 elements differ")
    pairs = [
        (trial("a", "mode=avg", "ceil=0"), Result("passes")),
        (trial("b", "mode=avg", "ceil=1"), Result("passes")),
        (trial("c", "mode=max", "ceil=0"), Result("passes")),
    ]

    def made(*more: tuple[OperatorTrial, Result]) -> object:
        return make_table("x", "1", "1", 18, "2026-01-31", {}, [*pairs, *more]).avoid.get("Pool")

    assert made() is None
    assert made((trial("d", "mode=lp", "ceil=0"), told)) == {"11": {"float32": ["mode=lp"]}}
    assert made((trial("d", "mode=max", "ceil=1"), told)) == {"11": {"float32": ["ceil=1 & mode=max"]}}
    assert made((trial("d", "mode=avg", "ceil=0"), told)) == {"11": {"float32": [EVERYTHING]}}
    first, second = (to_json(make_table("x", "1", "1", 18, "2026-01-31", {}, order)) for order in (pairs, pairs[::-1]))
    assert '"made": "2026-01-31"' in first
    assert first == second


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        (np.float32([1, 2]), np.float32([1, 2.0001]), True),
        (np.float32([1, 2]), np.float32([1, 2.1]), False),
        (np.float32([1]), np.float64([1]), False),
        (np.float32([1]), np.float32([[1]]), False),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), True),
        (np.float32([100, 0]), np.float32([100, 1e-5]), True),
        (np.float32([100, 0]), np.float32([100, 1e-3]), False),
        (np.int16([-32768]), np.int16([-32768]), True),
        (np.array(["a"], object), np.array(["b"], object), False),
        ([np.float32(1)], [np.float32(1), np.float32(2)], False),
        (None, None, True),
        (None, np.float32(1), False),
    ],
)
def test_comparison(expected: object, actual: object, same: bool) -> None:
    assert (difference([expected], [actual], 1e-3, 1e-7) is None) is same
