"""Responses already drawn: a line file that a killed evaluation continues, keyed by all that decides a response."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agpo_bench.files import write_whole

DRAWS_FILE = "draws.jsonl"
"""Beside ``results.json`` while a task is under way; what was asked for then moves into ``samples.jsonl``.

Draws of an earlier, other request for the same weights stay in it.
"""


class Draw(BaseModel):
    """One response. Extra keys of a sample line are passed over, so that finished samples can be drawn on again."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    draw_key: str
    text: str
    is_truncated: bool
    num_tokens: int
    model: str = ""
    """Hash of the weights it came from, while it waits; empty in a sample line."""


def draw_key(*parts: object) -> str:
    """A hash of what decides a response. Equal key, equal response."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class DrawFile:
    """Draws by key, kept in memory and appended to a file as they come."""

    def __init__(self, path: Path, *, model: str = "", earlier: Iterable[Path] = ()) -> None:
        """``model`` is a hash of the weights: lines of others answer nothing any more and are dropped in the end."""
        self._path, self._model = path, model
        _drop_torn_tail(path)
        own = {draw.draw_key: draw for draw in _read(path) if draw.model in {"", model}}
        self._draws = {draw.draw_key: draw for file in earlier for draw in _read(file)} | own
        self._written = set(own)

    def get(self, key: str) -> Draw | None:
        """The draw of a key, if it was ever made."""
        return self._draws.get(key)

    def add(self, draws: Iterable[Draw]) -> None:
        """Keep new draws, in memory and on disk."""
        lines = []
        for draw in draws:
            self._draws[draw.draw_key] = draw
            self._written.add(draw.draw_key)
            lines.append(self._line(draw))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def take_over(self, *, but: Collection[str]) -> None:
        """Write down what only the ``earlier`` files hold, which are about to be replaced by the draws ``but``."""
        if left := [draw for key, draw in self._draws.items() if key not in self._written and key not in but]:
            self.add(left)

    def close(self, *, taken: Collection[str]) -> None:
        """Leave out the draws that the samples have taken; delete the file when none is left."""
        if left := [draw for key, draw in self._draws.items() if key in self._written and key not in taken]:
            write_whole(self._path, "".join(map(self._line, left)))
        else:
            self._path.unlink(missing_ok=True)

    def _line(self, draw: Draw) -> str:
        return draw.model_copy(update={"model": self._model}).model_dump_json() + "\n"


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
