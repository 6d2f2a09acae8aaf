"""What is fuzzed: each target makes an input out of decisions, hands it to a loader, and says what it should not have done."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx

from benchmarks.fuzz_loaders import mutate
from benchmarks.fuzz_loaders.choices import Choices
from benchmarks.fuzz_loaders.language_files import LanguageFiles
from benchmarks.fuzz_loaders.onnx_decoders import OnnxDecoders
from benchmarks.fuzz_loaders.record import Finding
from benchmarks.fuzz_loaders.samples import WEIGHTS, samples
from bricolage.api.array_files import load_arrays
from bricolage.base.codec import DecodeError, decode, parse
from bricolage.errors import BricolageError, NotWritable
from bricolage.frontends.onnx_file import load_onnx
from bricolage.graph.extract import graph_of
from bricolage.graph.graph import Region
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.plan import artifact
from bricolage.plan.plan import FORMAT, Plan
from bricolage.runtime.load import foreign
from bricolage.runtime.programs import placement_of

SLOW_S = 5.0
"""Longest that a loader may compute for an input of some kilobytes; of the processor's time, since others use the machine."""


class Loaders:
    """The loaders with what they need, in a folder of their own."""

    def __init__(self, folder: Path, only: str | None = None) -> None:
        """`folder` is empty; on a file system in memory, where there is one, the fuzzer is some times as fast. `only`: the one
        loader that is tried."""
        self._folder = folder
        os.environ["BRICOLAGE_CACHE"] = str(folder / "cache")
        self._samples = samples(folder / "samples")
        self._file = folder / "given"
        self._model = folder / "model"
        self._model.mkdir()
        self._language = LanguageFiles(folder / "language")
        self._decoders = OnnxDecoders(folder / "decoders")
        (folder / mutate.CANARY).mkdir()
        (folder / mutate.CANARY / "secret").write_bytes(b"\0" * 65_536)
        self._reached: list[str] = []
        sys.addaudithook(self._watch)
        # What is cheap is tried more often: a decoded plan takes a millisecond, a model checked from top to bottom twenty.
        shares = {
            self._plan: 3, self._json: 2, self._artifact_of_plan: 3, self._artifact: 1, self._artifact_of_model: 1, self._onnx: 2,
            self._arrays: 1, self._language.gguf: 2, self._language.hugging_face: 1, self._decoders.onnx_decoder: 1,
        }  # fmt: skip
        self._targets = tuple(
            target
            for target, share in shares.items()
            for _ in range(share)
            if only in (None, target.__name__.strip("_"))
        )

    def remove(self) -> None:
        """Takes the folder away."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and mutate.CANARY in str(arguments[0]):
            self._reached.append(str(arguments[0]))

    def attempt(self, data: bytes) -> Finding | None:
        """One input. None where the loader took it, or refused it with one of bricolage's own errors, in time."""
        self._reached.clear()
        choose = Choices(data)
        target = choose.of(self._targets)
        start = time.process_time()
        try:
            target(choose)
        except (BricolageError, DecodeError) as error:
            if isinstance(error, NotWritable):
                return Finding("the input is blamed on the cache", traceback.format_exc(), data)
            if isinstance(error, BricolageError) and not str(error).isprintable():
                return Finding("the message is not fit for a terminal", traceback.format_exc(), data)
        except Exception as error:
            return Finding(f"{target.__name__}: {type(error).__name__}", traceback.format_exc(), data)
        if self._reached:
            return Finding(f"{target.__name__}: reads {self._reached[0]}", "", data)
        took = time.process_time() - start
        if took > SLOW_S:
            return Finding(f"{target.__name__}: took {took:.1f} s", "", data)
        return None

    def _plan(self, choose: Choices) -> None:
        """The codec alone, on a changed plan: cheap, so much is tried."""
        changed = mutate.json_value(choose.of(self._samples).plan, choose)
        plan = decode(Plan, parse(json.dumps(changed)))
        for bucket in plan.buckets:
            placement_of(bucket)
        foreign(plan)

    def _json(self, choose: Choices) -> None:
        """The codec alone, on changed text."""
        decode(Plan, parse(mutate.raw(json.dumps(choose.of(self._samples).plan).encode(), choose)))

    def _artifact_of_plan(self, choose: Choices) -> None:
        """An artifact with a changed plan, or a changed manifest."""
        sample = choose.of(self._samples)
        members = {"plan.json": json.dumps(mutate.json_value(sample.plan, choose)).encode(), **sample.members}
        manifest = _manifest(members)
        if choose.once_in(3):
            manifest = json.dumps(mutate.json_value(json.loads(manifest), choose)).encode()
        self._load({"manifest.json": manifest, **members}, choose)

    def _artifact(self, choose: Choices) -> None:
        """An artifact with changed members, and hashes made right for them."""
        sample = choose.of(self._samples)
        members = {"plan.json": json.dumps(sample.plan).encode(), **sample.members}
        for _ in range(choose.number(3)):
            name = choose.of(list(members))
            members[name] = mutate.raw(members[name], choose)
        self._load({"manifest.json": _manifest(members), **members}, choose)

    def _artifact_of_model(self, choose: Choices) -> None:
        """An artifact with a changed model or graph, and hashes made right for it."""
        sample = choose.of(self._samples)
        members = {"plan.json": json.dumps(sample.plan).encode(), **sample.members}
        name = choose.of([name for name in members if name.endswith(".onnx")])
        proto = onnx.ModelProto.FromString(members[name])
        mutate.message(proto, choose)
        members[name] = proto.SerializeToString()
        self._load({"manifest.json": _manifest(members), **members}, choose)

    def load_sample(self) -> None:
        """Loads artifacts and language models that nothing was changed in."""
        for sample in self._samples:
            members = {"plan.json": json.dumps(sample.plan).encode(), **sample.members}
            self._load({"manifest.json": _manifest(members), **members}, Choices(b""))
        self._language.load_sound()
        self._decoders.load_sound()

    def _load(self, members: dict[str, bytes], choose: Choices) -> None:
        self._file.write_bytes(mutate.archive(members, choose))
        try:
            plan, directory = artifact.load_artifact(self._file)
            foreign(plan)
            for bucket in plan.buckets:
                graph = graph_of(directory / bucket.program.graph)
                identities, store = Identities(graph), Store(directory)
                for one in placement_of(bucket):
                    region = Region(graph, one.region)
                    store.region(region, identities.key(region))
        finally:
            shutil.rmtree(self._folder / "cache", ignore_errors=True)

    def _onnx(self, choose: Choices) -> None:
        """A model as a user gives it, its protobuf changed by fields or by bytes."""
        sample = choose.of(self._samples)
        proto = onnx.ModelProto.FromString(sample.proto.SerializeToString())
        mutate.message(proto, choose)
        data = proto.SerializeToString()
        if choose.once_in(5):
            data = mutate.raw(data, choose)
        (self._model / "given.onnx").write_bytes(data)
        (self._model / WEIGHTS).write_bytes(sample.weights)
        load_onnx(self._model / "given.onnx")

    def _arrays(self, choose: Choices) -> None:
        """Inputs in a file of numpy's."""
        target = io.BytesIO()
        np.savez(target, x=np.ones((2, 3), np.float32), names=np.array(["a", "b"]))
        self._file.write_bytes(mutate.raw(target.getvalue(), choose))
        load_arrays(self._file)


def _manifest(members: dict[str, bytes]) -> bytes:
    facts = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()}
    return json.dumps({"format": FORMAT, "members": facts}).encode()


@contextmanager
def loaders(only: str | None = None) -> Iterator[Loaders]:
    """The loaders, or one of them, in a folder in memory, where there is one, which goes at the end."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="bricolage-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        yield Loaders(Path(folder), only)
