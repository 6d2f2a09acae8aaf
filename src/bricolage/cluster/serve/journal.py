"""The log of a served cluster: what the loop was told and what it decided, in order.

A line is a record and a seal: the SHA-256 of the seal before and the record. A line is on disk before anything of it is carried
out. So a line that is torn at the end of the file was never carried out, and is cut off; anything else that does not fit its seal
is an error, since what comes after it would be built on sand.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from bricolage.base.codec import DecodeError, JsonObject, parse
from bricolage.errors import BrokenJournal, NotWritable

_FIRST = "0" * 64


class Journal:
    """Open to be read once and then to be appended to.

    Raises:
        BrokenJournal: a line is not what was written.
        NotWritable: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seal = _FIRST
        self.records: list[JsonObject] = []
        end = 0
        try:
            raw = path.read_bytes() if path.exists() else b""
            for record, until in self._read(raw):
                self.records.append(record)
                end = until
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            if end < len(raw):
                os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
        except OSError as error:
            raise NotWritable(path=path, reason=error.strerror or error) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def append(self, record: JsonObject) -> None:
        """Writes a record, and returns when it is on disk.

        Raises:
            NotWritable: the disk is full.
        """
        body = _body(record)
        seal = _compute_seal(self._seal, body)
        line = f'{{"record":{body},"seal":"{seal}"}}\n'.encode()
        at = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, at)
            os.lseek(self._file, at, os.SEEK_SET)
            raise NotWritable(path=self.path, reason=error.strerror or error) from error
        self._seal = seal

    def _read(self, raw: bytes) -> Iterator[tuple[JsonObject, int]]:
        end = 0
        lines = raw.split(b"\n")
        for number, line in enumerate(lines[:-1], 1):
            try:
                record = self._check_line(line)
            except ValueError as error:
                if number == len(lines) - 1 and not lines[-1]:
                    return  # torn
                raise BrokenJournal(path=self.path, line=number, reason=str(error)) from error
            end += len(line) + 1
            yield record, end

    def _check_line(self, line: bytes) -> JsonObject:
        try:
            entry = parse(line)
            record, seal = entry["record"], entry["seal"]
        except (DecodeError, TypeError, KeyError) as error:
            raise ValueError("it is no record") from error
        if not isinstance(record, dict) or _compute_seal(self._seal, _body(record)) != seal:
            raise ValueError("it does not fit its seal")
        self._seal = seal
        return record


def _body(record: JsonObject) -> str:
    return json.dumps(record, separators=(",", ":"), sort_keys=True)


def _compute_seal(before: str, body: str) -> str:
    return hashlib.sha256(f"{before}{body}".encode()).hexdigest()
