"""Networks out of sample: published architectures that no decision was made, tuned or tested on, with random weights.

    pip install -c constraints.txt '.[unseen]'
    python -m benchmarks.unseen                           # exports all of them, checks each file and prints a table
    python -m benchmarks.unseen --only pit-xs,gat --json
    python -m benchmarks.unseen --list

`export(name)` gives the path of an ONNX file and its inputs. Files are kept in the folder of the workloads
(`BRICOLAGE_WORKLOADS`); once they are there, the libraries of the extra are not needed. `overlaps()` says which networks are not
out of sample any more; a study asks it before it begins.

PyTorch and torchvision are built for each other: PyTorch for CPUs alone needs the torchvision of the same index. With another one
`transformers` cannot be imported by anything but this package, so that the extra then belongs in a folder of its own (`pip install
--no-deps --target FOLDER timm torchvision torch-geometric xxhash -c constraints.txt`, and FOLDER in `PYTHONPATH` for the export).
"""

from benchmarks.unseen.names import overlaps, seen_names
from benchmarks.unseen.networks import NETWORKS, UnseenNetwork, export

__all__ = ["NETWORKS", "UnseenNetwork", "export", "overlaps", "seen_names"]
