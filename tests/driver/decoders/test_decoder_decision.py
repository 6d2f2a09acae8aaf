"""Who runs a language model: races of prompts and steps, and what follows from them."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.fuzz_loaders.language_files import sound_gguf
from bricolage.api import optimize_decoder as api_module
from bricolage.api.optimize_decoder import DecoderOptions, check_decoder_options, optimize_decoder, parse_contexts
from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.generation_options import LanguageSettings
from bricolage.base.options import Options
from bricolage.cli.main import app
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.driver.decoders import decoder_decision
from bricolage.driver.decoders.part_choice import choose_part, settle_pair
from bricolage.errors import ArtifactFails, BadArtifact, BadOption, ModelBeyondMemory, NewerArtifact, NoBackend
from bricolage.frontends.decoders import decoder_memory
from bricolage.frontends.decoders.decoder_files import DECODER_PLAN, is_language_model, read_decoder
from bricolage.language.decoder_trial import KL_BOUNDS
from bricolage.language.planned_decoder import choose_precision
from bricolage.measure.race_record import Race
from bricolage.plan.decoder_plan import DecoderPlan, read_decoder_plan
from bricolage.plan.disturbance_record import Disturbance
from bricolage.report.decoder_page import decoder_page
from bricolage.report.decoder_sentences import decoder_sentences
from bricolage.report.decoder_tables import decoder_race
from bricolage.work.implementation import Implementation, KernelConfig

OURS = Implementation("native", KernelConfig("f32-alike"))
OTHER = Implementation("onnxruntime")
OPTIONS = Options(effort="instant", backends=("native", "onnxruntime"), threads=1, budget_s=2.0)
NAMES = {str(each): each for each in (OURS, OTHER)}


def race_of(ms: Mapping[Implementation, float | None], jitter: float = 0.001) -> Race:
    """Ten rounds in which each takes about so long; None is wrong."""
    timed = {str(name): value for name, value in ms.items() if value is not None}
    rounds = tuple(
        {name: (value * (1 + jitter * ((i + j) % 3)),) for j, (name, value) in enumerate(timed.items())}
        for i in range(10)
    )
    costs = {str(name): Cost("wrong", error=1.0) for name in ms}
    costs |= {name: Cost("ok", Latency.of_rounds([list(each[name]) for each in rounds])) for name in timed}
    return Race(rounds, costs, {}, incumbent=str(OURS))


def test_the_fastest_over_all_lengths_that_may_ship() -> None:
    races = [race_of({OURS: 10.0, OTHER: 11.0}), race_of({OURS: 10.0, OTHER: 5.0})]
    free = choose_part(races, NAMES, list(NAMES))
    assert free is not None
    assert free.chosen == free.fastest == OTHER
    kept = choose_part(races, NAMES, [str(OURS)])
    assert kept is not None
    assert (kept.chosen, kept.fastest) == (OURS, OTHER)
    assert kept.ahead is not None
    assert kept.ahead.value == pytest.approx((10 / 11 * 2) ** 0.5, rel=0.01)


def test_a_tie_goes_to_what_keeps_bits() -> None:
    choice = choose_part([race_of({OURS: 10.0, OTHER: 9.9})], NAMES, list(NAMES))
    assert choice is not None
    assert choice.chosen == OURS


def test_who_is_wrong_at_one_length_runs_nothing() -> None:
    races = [race_of({OURS: 10.0, OTHER: 1.0}), race_of({OURS: 10.0, OTHER: None})]
    choice = choose_part(races, NAMES, list(NAMES))
    assert choice is not None
    assert choice.fastest == OURS
    assert choose_part([race_of({OURS: None, OTHER: None})], NAMES, list(NAMES)) is None
    without = choose_part([race_of({OURS: None, OTHER: 3.0})], NAMES, [str(OURS)])
    assert without is not None
    assert without.chosen == OTHER, "where nothing that keeps bits is right, the rest may ship"


def test_the_untouched_file_is_fastest_and_does_not_ship() -> None:
    file = Implementation("onnxruntime", KernelConfig("as-it-comes"))
    names = {str(each): each for each in (OURS, file)}
    choice = choose_part([race_of({OURS: 10.0, file: 1.0})], names, [str(OURS)])
    assert choice is not None
    assert (choice.chosen, choice.fastest) == (OURS, file)
    assert choose_part([race_of({OURS: None, file: 1.0})], names, [str(OURS)]) is None


def test_a_prompt_pays_for_the_cache_that_it_hands_over() -> None:
    races = {"prompt": [race_of({OURS: 10.0, OTHER: 9.0})], "step": [race_of({OURS: 1.0, OTHER: 2.0})]}
    prompt, step = (choose_part(races[part], NAMES, list(NAMES)) for part in ("prompt", "step"))
    assert prompt is not None
    assert step is not None
    assert settle_pair(prompt, step, races, 0.1).chosen == OTHER
    assert settle_pair(prompt, step, races, 1.5).chosen == OURS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    file = sound_gguf("llama", 0, "gpt2")
    draw = np.random.default_rng(0)
    for place, (name, shape, kind, offset, _) in enumerate(file.tensors):
        numbers = 0.2 * draw.standard_normal(math.prod(shape)) + name.endswith("norm.weight")
        file.tensors[place] = (name, shape, kind, offset, numbers.astype("<f4").tobytes())
    path.write_bytes(file.to_bytes())
    return path


@pytest.fixture(scope="module")
def artifact(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decided between ONNX Runtime and our engine."""
    if not isinstance(registry.get("onnxruntime").status(), Available):
        pytest.skip("onnxruntime")
    folder = tmp_path_factory.mktemp("decided") / "small.bricolage"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRICOLAGE_CACHE", str(folder.parent / "cache"))
        optimize_decoder(model, folder, OPTIONS, DecoderOptions((8,)))
    return folder


def test_a_decision_says_who_runs_what_and_why(artifact: Path, model: Path) -> None:
    plan = read_decoder_plan(artifact)
    assert plan is not None
    assert [(each.part, each.context, each.rows) for each in plan.races] == [("prompt", 8, 8), ("step", 8, 1)]
    for each in plan.races:
        assert {contestant.name for contestant in each.race.contestants} == set(NAMES)
        assert all(contestant.accepted for contestant in each.race.contestants)
        assert all((contestant.median_ms or 0.0) > 0.0 for contestant in each.race.contestants)
    assert plan.prompt == plan.step == OURS, "only our engine keeps the bits"
    assert plan.same_bits
    assert plan.check is not None
    assert plan.check.kl <= plan.check.kl_bound
    assert KL_BOUNDS["highest"] <= plan.check.kl_bound < 1e-4, (
        "a multiple of what a cache in float16 does to this model"
    )
    assert (artifact / "model.gguf").read_bytes() == model.read_bytes()


def test_commands_read_an_artifact(artifact: Path) -> None:
    result = CliRunner().invoke(app, ["explain", str(artifact)])
    assert result.exit_code == 0, result.output
    assert "the same bits" in result.output
    assert is_language_model(artifact)
    assert read_decoder(artifact).vocabulary == read_decoder(artifact / "model.gguf").vocabulary


def test_the_same_question_is_decided_once(
    artifact: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(artifact.parent / "cache"))

    def refuse(*_: object) -> None:
        raise AssertionError("it is raced again")

    first = read_decoder_plan(artifact)
    assert first is not None
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(model.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(decoder_decision, "race_decoder", refuse)
        patch.setattr(decoder_decision, "share_taken", lambda _: 1.0)
        again = optimize_decoder(renamed, tmp_path / "again", OPTIONS, DecoderOptions((8,)), provisional=True)
        assert again == replace(first, model="renamed")
        assert read_decoder_plan(tmp_path / "again") == again
        for options, wanted, replan in (
            (replace(OPTIONS, precision="low"), DecoderOptions((8,)), False),
            (OPTIONS, DecoderOptions((9,)), False),
            (OPTIONS, DecoderOptions((8,)), True),
        ):
            with pytest.raises(AssertionError, match="raced again"):
                optimize_decoder(model, tmp_path / "other", options, wanted, replan=replan)
    with pytest.raises(BadOption, match="--provisional"):
        optimize_decoder(model, tmp_path / "other", OPTIONS, replan=True, provisional=True)


def test_a_decision_whose_artifact_is_wrong_is_not_kept(
    artifact: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    first = read_decoder_plan(artifact)
    assert first is not None
    raced: list[DecoderPlan] = []

    def race_again(*_: object) -> tuple[DecoderPlan, bool]:
        raced.append(replace(first, check=None))
        return raced[-1], True

    def fail(kind: type[BaseException]) -> None:
        raise kind(where="on a text", reason="wrong") if kind is ArtifactFails else kind

    monkeypatch.setattr(decoder_decision, "race_decoder", race_again)
    for kind, races in ((KeyboardInterrupt, 1), (ArtifactFails, 1), (ArtifactFails, 2)):
        monkeypatch.setattr(api_module, "try_artifact", lambda *_, kind=kind: fail(kind))
        with pytest.raises(kind):
            optimize_decoder(model, tmp_path / "none", OPTIONS, DecoderOptions((8,)), provisional=True)
        assert len(raced) == races
        assert not (tmp_path / "none" / DECODER_PLAN).exists()


def test_what_load_disturbed_is_decided_again_in_quiet(
    artifact: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    first, raced = read_decoder_plan(artifact), []
    assert first is not None

    def race_disturbed(*_: object) -> tuple[DecoderPlan, bool]:
        busy = replace(first.races[0].race, disturbance=Disturbance(others=0.5))
        raced.append(replace(first, races=(replace(first.races[0], race=busy), *first.races[1:])))
        return raced[-1], True

    monkeypatch.setattr(decoder_decision, "race_decoder", race_disturbed)
    for share, races in ((1.0, 1), (1.0, 1), (0.0, 2)):
        monkeypatch.setattr(decoder_decision, "share_taken", lambda _, share=share: share)
        plan = optimize_decoder(model, tmp_path / "small.bricolage", OPTIONS, DecoderOptions((8,)))
        assert len(raced) == races
        assert any(line.startswith("provisional") for line in decoder_sentences(plan))


def test_bench_races_afresh_what_an_artifact_ships(artifact: Path) -> None:
    result = CliRunner().invoke(app, ["bench", str(artifact), "--budget", "1s"])
    assert result.exit_code == 0, result.output
    assert "> the artifact: prompts run on native f32-alike" in result.output
    assert "Over tool: how many times as fast as the best other tool" in result.output.replace("\n", " ")
    for words in (["--rival", str(artifact)], ["--contexts", "none"]):
        refused = CliRunner().invoke(app, ["bench", str(artifact), *words])
        assert refused.exit_code == 2
        assert words[0] in refused.output


def test_the_page_of_a_language_model_has_its_races(artifact: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", str(artifact), "-o", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    for words in ("Prompt at 8 tokens", "Step at 8 tokens", "native f32-alike", "onnxruntime f32", "Over tool"):
        assert words in text
    assert "://" not in text, "nothing is loaded from outside"
    assert text.count('class="ships"') == 2
    plan = read_decoder_plan(artifact)
    assert plan is not None
    refused = tuple(
        replace(c, median_ms=None, ci_ms=None, accepted=False, reason="<wrong>") if str(OTHER) == c.name else c
        for c in plan.races[0].race.contestants
    )
    race = replace(plan.races[0], race=replace(plan.races[0].race, contestants=refused, best_other=""))
    changed = decoder_page(replace(plan, model="<script>", races=(race,)))
    assert "&lt;wrong&gt;" in changed
    assert "<script>" not in changed


def test_a_long_name_cuts_no_number(artifact: Path) -> None:
    plan = read_decoder_plan(artifact)
    assert plan is not None
    race = plan.races[0]
    long = replace(race.race.contestants[0], name="onnxruntime as-it-comes-values", median_ms=0.56, error=9.5e-7)
    console = Console(width=80, file=io.StringIO(), color_system=None)
    with console.capture() as shown:
        console.print(
            decoder_race(
                replace(
                    plan, races=(replace(race, race=replace(race.race, contestants=(*race.race.contestants, long))),)
                ),
                None,
            )
        )
    assert "0.56 ms" in shown.get() and "9.5e-07" in shown.get()


def test_the_precision_that_is_not_written_is_the_artifacts(artifact: Path) -> None:
    plan = read_decoder_plan(artifact)
    assert plan is not None
    ours, other = (
        Implementation("native", KernelConfig("int8-alike")),
        Implementation("onnxruntime", KernelConfig("int8-blocks")),
    )
    low = replace(plan, provenance=replace(plan.provenance, options=replace(OPTIONS, precision="low")))

    def choose(shipped: Implementation, decided: DecoderPlan, precision: str | None) -> Implementation:
        return choose_precision(shipped, decided, LanguageSettings(precision=precision), artifact)

    assert choose(ours, low, None) == choose(ours, low, "low") == ours
    assert choose(ours, low, "highest") == OURS, "our engine has the same weights at any precision"
    assert choose(other, low, None) == other
    assert choose(OTHER, low, "highest") == OTHER, "it computes in float32 as it is"
    assert choose(OURS, plan, None) == choose(OURS, plan, "highest") == OURS
    for shipped, decided, precision in ((other, low, "highest"), (OURS, plan, "low")):
        with pytest.raises(BadOption, match=f"bricolage optimize .* --precision {precision}"):
            choose(shipped, decided, precision)


def test_damaged_and_newer_artifacts_are_refused(artifact: Path, tmp_path: Path) -> None:
    text = (artifact / DECODER_PLAN).read_text()
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for damaged, error in (
        (text[:-40], BadArtifact),
        (text.replace('"format": 1', '"format": 2'), NewerArtifact),
        (text, BadArtifact),  # the model has another size
    ):
        (tmp_path / DECODER_PLAN).write_text(damaged)
        with pytest.raises(error):
            read_decoder_plan(tmp_path)


def test_a_decision_that_cannot_be_made_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = read_decoder(model)
    needed = decoder_memory.count_race_bytes(decoder, ["onnxruntime"])
    assert needed >= decoder_memory.count_race_bytes(decoder, [])  # our engine alone
    assert decoder_memory.count_race_bytes(decoder, [], 1 << 30) >= 2 << 30  # an untouched file, read and packed
    assert needed > decoder_memory.count_compiling_bytes(decoder) > decoder_memory.count_packed_bytes(decoder)
    monkeypatch.setattr(decoder_memory, "available_bytes", lambda: needed - 1)
    with pytest.raises(ModelBeyondMemory):
        optimize_decoder(model, tmp_path / "none", Options(backends=("native", "onnxruntime")))
    monkeypatch.setattr(decoder_memory, "available_bytes", lambda: 1 << 60)
    with pytest.raises(NoBackend, match="torch unpack"):
        monkeypatch.setattr(registry, "available", lambda _: (registry.get("torch"),))
        optimize_decoder(model, tmp_path / "none", Options(backends=("torch",)))
    with pytest.raises(BadOption, match="overwrite"):
        optimize_decoder(model, model)
    assert not (tmp_path / "none").exists()


def test_options_that_say_nothing_of_a_language_model_are_refused() -> None:
    check_decoder_options(Options(precision="low", threads=1))
    for options in (replace(Options(), objective="throughput"), replace(Options(), shapes={"n": (1,)})):
        with pytest.raises(BadOption, match="language model"):
            check_decoder_options(options)
    with pytest.raises(BadOption, match="--target"):
        check_decoder_options(Options(), [("--target", Path("device.toml"))])
    for text in ("", "16,", "-3", "many"):
        with pytest.raises(BadOption):
            parse_contexts(text)
    for contexts in ((), (0,), tuple(range(1, 20))):
        with pytest.raises(BadOption):
            DecoderOptions(contexts)
    assert DecoderOptions((2048, 16, 16)).contexts == (16, 2048)
