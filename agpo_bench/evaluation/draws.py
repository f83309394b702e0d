"""Responses already drawn: a line file that a killed evaluation continues, keyed by all that decides a response."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

DRAWS_FILE = "draws.jsonl"
"""Beside ``results.json`` while a task is under way; its content then moves into ``samples.jsonl``."""


class Draw(BaseModel):
    """One response. Extra keys of a sample line are passed over, so that finished samples can be drawn on again."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    draw_key: str
    text: str
    is_truncated: bool
    num_tokens: int


def draw_key(*parts: object) -> str:
    """A hash of what decides a response. Equal key, equal response."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class DrawFile:
    """Draws by key, kept in memory and appended to a file as they come."""

    def __init__(self, path: Path, *, earlier: Iterable[Path] = ()) -> None:
        self._path = path
        _drop_torn_tail(path)
        self._draws = {draw.draw_key: draw for file in (*earlier, path) for draw in _read(file)}

    def get(self, key: str) -> Draw | None:
        """The draw of a key, if it was ever made."""
        return self._draws.get(key)

    def add(self, draws: Iterable[Draw]) -> None:
        """Keep new draws, in memory and on disk."""
        lines = []
        for draw in draws:
            self._draws[draw.draw_key] = draw
            lines.append(draw.model_dump_json() + "\n")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Delete the file: its draws are in the samples now."""
        self._path.unlink(missing_ok=True)


def _read(path: Path) -> Iterable[Draw]:
    if not path.is_file():
        return
    for line in path.read_bytes().split(b"\n"):
        # A line that cannot be read (torn, or of another version) is a draw to be made again, never one to trust.
        try:
            yield Draw.model_validate_json(line)
        except ValidationError:
            continue


def _drop_torn_tail(path: Path) -> None:
    if path.is_file():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
