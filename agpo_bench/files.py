"""Files that survive a crash: written whole or not at all, and lines that tolerate a torn tail."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write through a temporary file in the same folder and rename: a reader sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode() if isinstance(content, str) else content
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a last line without its newline (a killed writer) is left out."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line.strip()]


def drop_torn_tail(path: Path) -> None:
    """Cut a last line that was never finished, so that appending to the file is safe again."""
    if not path.is_file():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
