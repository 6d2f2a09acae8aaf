"""The page of results and the picture of README are those of the data; README's sentences of figures count what the data hold."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.tools.results_page import (
    DATA,
    PAGE,
    PICTURE,
    format_ratio,
    geometric_mean,
    read_rows,
    render_page,
    render_picture,
)

README = Path(__file__).parents[2] / "README.md"
INDEX = tomllib.loads((DATA / "index.toml").read_text(encoding="utf-8"))
PICTURE_ROWS = read_rows(INDEX["picture"]["run"])
NUMBERS = {2: "two", 4: "four", 12: "twelve", 16: "sixteen"}


def test_the_page_is_that_of_the_data() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(INDEX), "python -m benchmarks.tools.results_page"


def test_the_picture_is_that_of_the_data() -> None:
    picture = render_picture(PICTURE_ROWS, INDEX["processors"][INDEX["picture"]["processor"]])
    assert PICTURE.read_text(encoding="utf-8") == picture, "python -m benchmarks.tools.results_page"


def test_every_run_has_its_file_and_every_file_of_an_index_its_rows() -> None:
    runs = [run for table in INDEX["table"] for run in table["runs"].values()]
    assert [run for run in runs if not read_rows(run)] == []


def test_the_page_is_short() -> None:
    words = [word for word in PAGE.read_text(encoding="utf-8").split() if re.search("[A-Za-z]", word)]
    assert len(words) <= 1500


def test_readme_counts_what_the_data_hold() -> None:
    steady = [row for row in PICTURE_ROWS if row["pattern"] == "steady"]
    sparse = [row for row in PICTURE_ROWS if row["pattern"] == "sparse"]
    engine = sum(row["ships"].startswith("native ") for row in steady)
    unclear = [row["network"] for row in steady if float(row["low"]) <= 1 <= float(row["high"])]
    (slower,) = [row for row in steady if float(row["high"]) < 1]
    (slower_sparse,) = [row for row in sparse if float(row["high"]) < 1]
    text = " ".join(README.read_text(encoding="utf-8").split())
    for sentence in (
        f"On the {NUMBERS[len(steady)]} networks above it ships on {NUMBERS[engine]}",
        f"Call after call, the difference is within the noise on {NUMBERS[len(unclear)]} of the {NUMBERS[len(steady)]}, and the "
        f"artifact is {100 / float(slower['ratio']) - 100:.1f} % slower on one.",
        f"After pauses, one of those {NUMBERS[len(unclear)]} is {100 / float(slower_sparse['ratio']) - 100:.0f} % slower.",
    ):
        assert sentence in text
    assert slower_sparse["network"] in unclear
    assert not any("plan" in row["ships"] for row in steady), "README says that no mixture ships"


def test_readme_is_read_in_a_minute() -> None:
    assert len(re.findall(r"[A-Za-z][\w'-]*", re.sub(r"\]\([^)]*\)", "]", README.read_text(encoding="utf-8")))) <= 450


@pytest.mark.parametrize(
    ("low", "shown"), [("1.1", "**1.20** [1.10, 1.30]"), ("0.9", "1.20 [0.90, 1.30]"), ("", "1.2")]
)
def test_a_ratio_is_bold_where_its_interval_lies_above_one(low: str, shown: str) -> None:
    assert format_ratio({"ratio": "1.2", "low": low, "high": "1.3"}) == shown


def test_geometric_means_are_of_all_rows() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_readme_says_what_the_unseen_networks_show() -> None:
    rows = read_rows("2026-11-28-unseen-highest-zen3.csv")
    shipped = [row["everything"] for row in rows]
    assert (len(rows), sum("rewritten" in plan for plan in shipped)) == (16, 1) and not any(
        "plan" in plan for plan in shipped
    )
    assert sum(plan.split()[0] in ("inductor", "xla", "tvm", "iree") for plan in shipped) == 1
    losses = sorted((float(row["regret"].rstrip("%")), float(row["low"].rstrip("%"))) for row in rows)[-3:]
    assert [round(loss) for loss, _ in losses] == [6, 15, 27] and [low > 0 for _, low in losses] == [False, False, True]
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert "a rewritten graph ships on one, a compiler on one, no mixture" in text
    assert "27 % of the default's time on one network; on two others (6 %, 15 %) the interval reaches zero" in text


def test_readme_says_how_fast_texts_are() -> None:
    ratios = list[float]()
    for run in ("2026-11-29-generate-zen3.csv", "2026-11-30-generate-zen3.csv"):
        rates = {
            row["contestant"]: [float(row[length]) for length in ("at_16", "at_512", "at_2048")]
            for row in read_rows(run)
        }
        peers = [rates[name] for name in ("onnxruntime genai", "llama.cpp", "openvino genai")]
        ratios += [ours / max(others) for ours, *others in zip(rates["highest"], *peers, strict=True)]
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as the best other tool" in text
