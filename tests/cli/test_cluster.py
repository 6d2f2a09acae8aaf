from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bricolage import errors
from bricolage.cli.main import app

run = CliRunner()
CLUSTER = '[[group]]\nkind = "a100"\nnodes = 1\ndevices = 4\n'
JOBS = "name,submit,duration,devices\nfirst,0,1000,3\nsecond,10,500,4\nthird,20,100,1\n"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    return [str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.toml")]


def test_replay(files: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run.invoke(app, ["cluster", "replay", *files, "--policy", "fifo", "--policy", "easy", "-o", str(page)])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "3 jobs on 4 a100" and lines[2].startswith("easy") and lines[3].startswith("fifo")
    assert all(len(line) <= 80 for line in lines)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_replay_as_json_says_why(files: list[str]) -> None:
    done = run.invoke(app, ["cluster", "replay", *files, "--policy", "fifo", "--why", "third", "--json"])
    (result,) = json.loads(done.stdout)["results"]
    assert result["outcome"]["makespan_s"] == 1600
    assert [one["job"] for one in result["waits"]] == ["third"]
    told = run.invoke(app, ["cluster", "replay", *files, "--policy", "fifo", "--why", "third"]).stdout
    assert "third under fifo: submitted at 20 s, started at 25 min" in told


def test_whatif(files: list[str]) -> None:
    done = run.invoke(app, ["cluster", "whatif", *files, "--add", "a100=4", "--policy", "fifo"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("3 jobs on 8 a100") and "-60.7%" in done.stdout
    both = json.loads(
        run.invoke(app, ["cluster", "whatif", *files, "--add", "h100=8", "--policy", "fifo", "--json"]).stdout
    )
    assert both["before"]["devices"] == {"a100": 4} and both["after"]["devices"] == {"a100": 4, "h100": 8}
    assert both["after"]["results"][0]["outcome"]["makespan_s"] == 1000, "jobs of known run time run on new kinds, too"


def test_whatif_quotas_and_weights(files: list[str]) -> None:
    """Two jobs of an hour of each queue on two devices: with a quota of one each queue has one device, and three times the weight
    brings a queue's jobs to their end sooner."""
    lines = ["name,submit,duration,devices,queue", "a,0,3600,1,x", "b,0,3600,1,x", "c,0,3600,1,y", "d,0,3600,1,y"]
    Path(files[0]).write_text("\n".join(lines) + "\n")
    Path(files[2]).write_text('[[group]]\nkind = "a100"\nnodes = 1\ndevices = 2\n')
    words = ["cluster", "whatif", *files, "--policy", "gavel", "--quota", "x=2", "--weight", "x=3", "--json"]
    told = json.loads(run.invoke(app, words).stdout)
    mean = [told[when]["results"][0]["outcome"]["mean_jct_s"] for when in ("before", "after")]
    assert mean[1] < mean[0]
    assert run.invoke(app, [*words, "--quota", "z=1"]).exit_code == errors.USAGE


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "best"], "there is no policy 'best'"),
        (["--format", "excel"], "Use one of auto, table"),
        (["--why", "fourth"], "Give the name of a job of the history"),
        (["--rates", "none.json"], "there is no file 'none.json'"),
    ],
)
def test_bad_options(files: list[str], words: list[str], told: str) -> None:
    done = run.invoke(app, ["cluster", "replay", *files, *words])
    assert done.exit_code == errors.USAGE and told in done.output


@pytest.mark.parametrize(
    "add", [[], ["--add", "a100"], ["--add", "a100=x"], ["--add", "a100=-4"], ["--add", "h100=-4"]]
)
def test_bad_changes(files: list[str], add: list[str]) -> None:
    assert run.invoke(app, ["cluster", "whatif", *files, *add]).exit_code == errors.USAGE


def test_a_bad_line_is_left_out_and_named(files: list[str], tmp_path: Path) -> None:
    Path(files[0]).write_text(JOBS + "fourth,x,1,1\n")
    page = tmp_path / "page.html"
    words = ["cluster", "replay", *files, "--policy", "fifo", "-o", str(page)]
    done = run.invoke(app, words)
    told = "1 lines cannot be used (line 5, column submit: 'x' is no number): left out"
    assert done.exit_code == 0 and told in done.stderr and "line 5, column submit" in page.read_text(encoding="utf-8")
    assert run.invoke(app, ["cluster", "outlook", *files, "--at", "5"]).stderr.startswith(told)
    Path(files[0]).write_text("name,submit,duration,devices\nfourth,x,1,1\n")
    page.unlink()
    done = run.invoke(app, words)
    assert done.exit_code == errors.USAGE and "line 2 of" in done.output and "column submit" in done.output
    assert not page.exists(), "with no line left nothing is written"


def test_components_are_asked_about_by_their_names(files: list[str]) -> None:
    text = "JobID|Submit|Elapsed|State|AllocTRES\n299|0|00:01:40|COMPLETED|gres/gpu=2\n"
    text += "".join(f"300+{n}|1|00:00:50|COMPLETED|gres/gpu=2\n" for n in range(2))
    text += "".join(f"301+{n}|1|00:00:50|RUNNING|gres/gpu=1\n" for n in range(2))
    Path(files[0]).write_text(text)
    words = ["cluster", "replay", *files, "--policy", "fifo", "--why", "300+1", "--why", "300+0", "--why", "301+0"]
    done = run.invoke(app, [*words, "--json"])
    assert "301+0 is left out" in done.stderr
    told = json.loads(done.stdout)
    (result,) = told["results"]
    assert [(one["job"], one["start_s"]) for one in result["waits"]] == [("300+1", 100.0), ("300+0", 100.0)]
    assert told["jobs"] == 2 and sum(told["left_out"].values()) == 2 and "heterogeneous" in told["notes"][0]


def test_a_change_is_judged_on_the_same_jobs(files: list[str]) -> None:
    """A kind that goes takes jobs with it that stay on it."""
    Path(files[0]).write_text("name,submit,duration,devices,device\na,0,9,1,\nb,0,9,1,t4\n")
    Path(files[2]).write_text('[[group]]\nkind = "a100"\n[[group]]\nkind = "t4"\n')
    done = run.invoke(app, ["cluster", "whatif", *files, "--add", "t4=-1", "--policy", "fifo"])
    assert done.exit_code == errors.USAGE and "line 3 of" in done.output and "no devices of kind 't4'" in done.output


def test_outlook(files: list[str]) -> None:
    words = ["cluster", "outlook", *files, "--policy", "fifo", "--at", "50", "--error", "0", "--rate-error", "0"]
    done = run.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("3 jobs at 50 s, 2 of them waiting")
    assert "second waits for 3 more a100: 1 of 4 are free" in done.stdout.replace("\n", " ")
    (third,) = json.loads(run.invoke(app, [*words, "--job", "third", "--json"]).stdout)
    assert third["waits_for"] == "order" and third["change"] == "the place of second"
    assert third["expected"]["place"] == 2 and third["expected"]["start_s"] >= 1500
    assert run.invoke(app, [*words, "--job", "fourth"]).exit_code == errors.USAGE


def test_why_says_what_was_to_be_predicted(files: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["cluster", "replay", *files, "--policy", "fifo", "--why", "second"]
    (result,) = json.loads(run.invoke(app, [*words, "--json"]).stdout)["results"]
    assert result["waits"][0]["expected"]["start_s"] == pytest.approx(1000)
    told = run.invoke(app, [*words, "-o", str(page)]).stdout.replace("\n", " ")
    assert "predicted when it came: start at 17 min" in told
    assert "Predicted start" in page.read_text(encoding="utf-8")


def test_estimates_are_rates_of_a_replay(tmp_path: Path) -> None:
    """Rates of a kind, as `estimate -o` writes them: its jobs run on kinds that their history does not name."""
    from bricolage.cluster.history.rates import PredictedRate, read_rates, write_rates

    table = tmp_path / "rates.csv"
    write_rates(table, "other", [PredictedRate("t4", 1, (1.0, 1.0, 1.0))])
    for _ in range(2):  # the second time its rows take the place of the first ones
        rows = [PredictedRate("a100", 1, (8.0, 4.0, 16.0)), PredictedRate("t4", 1, (2.0, 1.0, 4.0))]
        write_rates(table, "bert", rows)
    found = read_rates(table, ["a100", "t4"])
    assert found.of("bert", 1) == {"a100": 8.0, "t4": 2.0} and found.of("other", 1) == {"t4": 1.0}
    assert found.error == pytest.approx(0.4214, abs=1e-3), "a factor of four is 3.29 standard deviations"
    history = tmp_path / "jobs.csv"
    history.write_text("name,submit,duration,devices,kind,device\na,0,100,1,bert,t4\nb,0,100,1,bert,t4\n")
    (tmp_path / "cluster.toml").write_text('[[group]]\nkind = "a100"\n[[group]]\nkind = "t4"\n')
    words = ["cluster", "replay", str(history), "--cluster", str(tmp_path / "cluster.toml"), "--policy", "fifo"]
    words += ["--rates", str(table)]
    told = json.loads(run.invoke(app, [*words, "--json"]).stdout)
    assert told["results"][0]["outcome"]["makespan_s"] == 100.0, "one on each kind: 25 and 100 s"
    assert told["rate_error"] == pytest.approx(0.4214, abs=1e-3)
    exact = json.loads(run.invoke(app, [*words, "--rate-error", "0", "--json"]).stdout)
    assert exact["rate_error"] == 0.0
    history.write_text("name,submit,duration,devices,kind,device\na,0,100,1,other,a100\n")
    wrong = run.invoke(app, words)
    assert wrong.exit_code == errors.USAGE
    assert "its run time is of 'a100', and --rates has it on t4" in wrong.output.replace("\n", " ")
    table.write_text("kind,device,devices,steps_per_s,low,high\nbert,t4,1,5,6,7\n")
    assert "line 2" in run.invoke(app, words).output


def test_estimate_from_history(files: list[str]) -> None:
    done = run.invoke(app, ["cluster", "estimate", "--history", files[0], *files[1:], "--name", "first"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("17 min, the mean of 1 job of the same name")
    assert run.invoke(app, ["cluster", "estimate", *files[1:]]).exit_code == errors.USAGE
    step = ["cluster", "estimate", "none.toml", *files[1:], "--measured", "a100"]
    assert run.invoke(app, step).exit_code == errors.USAGE


def test_the_catalogue_says_of_which_policies_only_the_abstract_was_known() -> None:
    done = run.invoke(app, ["cluster", "catalogue", "--json"])
    assert done.exit_code == 0, done.output
    sources = {entry["name"]: entry["source"] for entry in json.loads(done.stdout)}
    abstracts = {name for name, source in sources.items() if source == "abstract"}
    assert abstracts == {"least-laxity", "harmony", "horus", "cynthia", "side-car"}
    lines = run.invoke(app, ["cluster", "catalogue"]).stdout.splitlines()
    rows = {line.split()[0]: line for line in lines[1 : len(sources) + 1]}
    assert rows.keys() == sources.keys() and all(len(line) <= 80 for line in rows.values())
    assert all(rows[name].split()[-1] == source for name, source in sources.items())
    assert "abstract: only the abstract of its paper was known" in "\n".join(lines)


def test_policies_of_comparisons_are_reached_by_replay(files: list[str]) -> None:
    names = ["gandiva-fair", "max-sum", "allox-shares"]
    words = [word for name in names for word in ("--policy", name)]
    told = json.loads(run.invoke(app, ["cluster", "replay", *files, *words, "--json"]).stdout)
    assert {result["outcome"]["policy"] for result in told["results"]} == set(names)
