"""Makes `history.csv`, the jobs of the demo: `python -m examples.demo_cluster.make_history`. All of it is drawn; nobody ran it.

Users repeat their jobs, as in real histories: each has a few names with a typical length, which is what lets `qssf` predict. Short
jobs are many and long ones take most of the devices' time; days are busier than nights.
"""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

JOBS, SEED = 160, 7
FILE = Path(__file__).with_name("history.csv")
COLUMNS = ("name", "user", "submit", "duration", "devices", "deadline", "limit")


def rows() -> list[dict[str, object]]:
    """The jobs, in order of submission."""
    random_ = random.Random(SEED)
    habits = {
        f"user{u}": [(f"user{u}-{kind}", random_.lognormvariate(8.6, 1.4)) for kind in ("train", "tune", "test")]
        for u in range(8)
    }
    found: list[dict[str, object]] = []
    now = 0.0
    for _ in range(JOBS):
        busy = 1.0 + 0.8 * math.sin(2 * math.pi * now / 86400)
        now += random_.expovariate(busy / 300)
        user = random_.choice(sorted(habits))
        name, typical = random_.choice(habits[user])
        seconds = round(min(max(typical * random_.lognormvariate(0.0, 0.3), 30.0), 3 * 86400))
        devices = random_.choices((1, 2, 4, 8), (0.6, 0.15, 0.2, 0.05))[0]
        due = round(now + seconds * random_.uniform(1.5, 6.0)) if random_.random() < 0.3 else ""
        limit = math.ceil(seconds * random_.uniform(1.1, 4.0) / 3600) * 3600
        found.append(dict(zip(COLUMNS, (name, user, round(now), seconds, devices, due, limit), strict=True)))
    return found


if __name__ == "__main__":
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())
