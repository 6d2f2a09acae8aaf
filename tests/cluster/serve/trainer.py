"""A tiny training, by the contract of docs/manual/cluster-serve.md: one weight, one step after another. What comes out tells
whether a step was lost or done twice. `python -I -S trainer.py SECONDS_A_STEP [FAIL_AT]`."""

from __future__ import annotations

import os
import signal
import sys
import time


def step(weight: float, number: int) -> float:
    """One step of descent on data that its number gives."""
    x = (number * 7919 % 1000) / 1000.0
    return weight - 0.1 * 2.0 * x * (weight * x - 3.0 * x - 0.1 * (number % 5))


def trained(steps: int) -> float:
    """The weight after an undisturbed run."""
    weight = 0.0
    for number in range(steps):
        weight = step(weight, number)
    return weight


def put(path: str, text: str) -> None:
    with open(f"{path}.{os.getpid()}", "w") as file:
        file.write(text)
    os.replace(f"{path}.{os.getpid()}", path)


def main() -> None:
    pause, fail_at = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1
    folder, progress = os.environ["BRICOLAGE_CHECKPOINT"], os.environ["BRICOLAGE_PROGRESS"]
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    done, weight = 0, 0.0
    if os.path.exists(f"{folder}/weight"):
        with open(f"{folder}/weight") as file:
            word, _, count = file.read().partition(" ")
        done, weight = int(count), float.fromhex(word)

    def save() -> None:
        if os.environ["RANK"] == "0":
            put(f"{folder}/weight", f"{weight.hex()} {done}")
            put(f"{folder}/steps", str(done))

    put(progress, str(done))
    while done < int(os.environ["BRICOLAGE_STEPS"]) and not asked:
        if done == fail_at:
            sys.exit("the loss is NaN")
        time.sleep(pause)
        weight, done = step(weight, done), done + 1
        put(progress, str(done))
        if done % 10 == 0:
            save()
    save()


if __name__ == "__main__":
    main()
