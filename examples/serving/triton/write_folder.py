"""Writes the folder of a model for Triton's Python backend: `config.pbtxt`, `1/model.py` and the artifact.

    python -m examples.serving.triton.write_folder digits.bricolage -o models
    tritonserver --model-repository models

The Python of the backend needs bricolage. The artifact's streams make the batches: Triton's batching stays off.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from bricolage.plan import artifact
from bricolage.plan.plan import Plan, TensorSpec
from bricolage.runtime.inference_protocol.datatypes import check_servable, datatype, protocol_shape

MODEL = Path(__file__).with_name("model.py")


def describe_tensor(spec: TensorSpec) -> str:
    """A tensor in the text form of Triton's settings."""
    name = datatype(spec)
    if name == "BF16":
        raise SystemExit(f"'{spec.name}' is bfloat16, which Triton's Python backend cannot read")
    sizes = protocol_shape(spec)
    dims = f"dims: {sizes}" if sizes else "dims: [1], reshape: { shape: [] }"
    return f"  {{ name: {json.dumps(spec.name)}, data_type: TYPE_{'STRING' if name == 'BYTES' else name}, {dims} }}"


def settings(name: str, plan: Plan) -> str:
    """The text of `config.pbtxt`."""
    parts = [f"name: {json.dumps(name)}", 'backend: "python"', "max_batch_size: 0"]
    for kind, specs in (("input", plan.inputs), ("output", plan.outputs)):
        parts.append(f"{kind} [\n" + ",\n".join(map(describe_tensor, specs)) + "\n]")
    parts.append("instance_group [ { kind: KIND_CPU, count: 1 } ]")
    return "\n".join(parts) + "\n"


def write_folder(path: Path, repository: Path) -> Path:
    """Writes the folder of an artifact into a repository of models, and returns it."""
    plan, _ = artifact.load_artifact(path)
    check_servable(path.stem, (*plan.inputs, *plan.outputs))
    folder = repository / path.stem
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(settings(path.stem, plan), encoding="utf-8")
    shutil.copy(MODEL, version / "model.py")
    shutil.copy(path, version / "model.bricolage")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.serving.triton.write_folder")
    parser.add_argument("artifact", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the repository of models")
    given = parser.parse_args()
    print(f"wrote {write_folder(given.artifact, given.output)}")


if __name__ == "__main__":
    main()
