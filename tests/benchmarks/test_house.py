"""Counts of the source that may only fall, and how they are taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.house import HELD, Module, arrows, circles, lowered, pages, read, survey, words

VARIANT = "class Variant:\n    amp: bool\n    batch: int\n    micro: int\n"


def write(folder: Path, files: dict[str, str]) -> list[Module]:
    """The modules of a package of these files."""
    for name, text in files.items():
        path = folder / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read(folder / "made")


def test_the_house_gets_no_worse() -> None:
    held, house = json.loads(HELD.read_text(encoding="utf-8")), survey(read(), pages())
    assert house.counts.keys() == held.keys(), "run python -m benchmarks.house --hold"
    worse = {name: (value, house.lists.get(name)) for name, value in house.counts.items() if value > held[name]}
    assert not worse, f"more than the {held} that are held"


def test_what_exists_twice_is_seen(tmp_path: Path) -> None:
    found = write(
        tmp_path,
        {
            "a.py": "class Link: pass\nclass _Own: pass\ndef simulate(): pass\n",
            "b/c.py": "class Link: pass\nclass _Own: pass\ndef race(): pass\nimport multiprocessing.connection\n",
            "b/d.py": "from made.a import simulate\ndef simulation(): return simulate()\n",
            "b/e.py": "import subprocess\ndef _turns(): return subprocess.Popen([])\n",
            "f.py": "import subprocess\ndef run(): return subprocess.run([])\n",
            "train/v.py": VARIANT,
        },
    )
    lists = survey(found).lists
    assert lists["links"] == ("a.py", "b/c.py")
    assert lists["double_class_names"] == ("Link: a.py b/c.py",)
    assert lists["simulators"] == ("a.py",), "d takes that of a"
    assert lists["races"] == ("b/c.py", "b/e.py")
    assert lists["process_systems"] == ("b",)


def test_what_is_long_is_seen(tmp_path: Path) -> None:
    body = "    x = 1\n" * 60
    found = write(tmp_path, {"a.py": f"def f():\n{body}\ndef g():\n{body[10:]}", "train/v.py": VARIANT + "\n" * 400})
    house = survey(found)
    assert house.lists["long_functions"] == ("a.py:1 f 61",)
    assert house.lists["long_files"] == ("train/v.py 404",)


def test_locals_that_say_nothing_are_seen(tmp_path: Path) -> None:
    text = "def f(made):\n    found = made\n    return [one for one in found]\ndef g(rows):\n    return rows.known\n"
    house = survey(write(tmp_path, {"a.py": text, "train/v.py": VARIANT}))
    assert house.lists["filler_locals"] == ("a.py:1 f found one",)


def test_any_counts_where_it_is_used(tmp_path: Path) -> None:
    text = "from typing import Any\ndef f(x: Any) -> list[Any]:\n    'Any of them.'\n    return [x]\n"
    house = survey(write(tmp_path, {"a.py": text, "train/v.py": VARIANT}))
    assert house.counts["any"] == 2 and house.any_per_1000 == 250.0


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "from made import b\n", "b.py": "def f():\n    from made.a import g\n"}, [["made.a", "made.b"]]),
        ({"a.py": "import made.b\n", "b.py": "import made.c\n", "c.py": ""}, []),
        ({"p/__init__.py": "from made.p.x import y\n", "p/x.py": "from made.p import z\n", "p/z.py": ""}, []),
        ({"p/__init__.py": "from made.p.x import y\n", "p/x.py": "from made.p import w\n"}, [["made.p", "made.p.x"]]),
    ],
)
def test_circles(tmp_path: Path, files: dict[str, str], expected: list[list[str]]) -> None:
    assert circles(arrows(write(tmp_path, files))) == expected


def test_places_that_list_the_changes(tmp_path: Path) -> None:
    text = f"{VARIANT}_KEYS = {{'a': 'amp', 'b': 'batch', 'm': 'micro'}}\n_TWO = ('amp', 'batch')\n"
    other = "def help():\n    'amp, batch and micro.'\n    return 'amp, batch=N or micro=N'\n"
    found = write(tmp_path, {"train/v.py": text, "cli/train/p.py": other, "other.py": other})
    assert survey(found).lists["what_if_places"] == ("cli/train/p.py:1", "train/v.py:1", "train/v.py:5")


def test_listed_words_are_counted_across_lines_and_cases() -> None:
    found = words(
        ["Nobody stands\n    for it, beside us.", "As many as there are: so many. Standing forward, besides."]
    )
    assert {name: count for name, count in found.items() if count} == {
        "beside": 2,
        "nobody": 1,
        "stands for": 1,
        "so many": 1,
    }


def test_held_counts_only_fall() -> None:
    assert lowered({"a": 2, "b": 1, "gone": 4}, {"a": 1, "b": 3, "new": 5}) == {"a": 1, "b": 1, "new": 5}


def test_a_module_that_does_not_parse_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SyntaxError):
        write(tmp_path, {"a.py": "def"})
