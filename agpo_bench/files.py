"""Files that are whole or absent, and line files that survive a torn tail."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Write to a temporary file beside ``path`` and rename it: a reader sees the old file or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def json_line(record: Any) -> str:
    """One line of strict JSON: a NaN or infinity is refused, because no reader agrees on how to read it."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def append_lines(path: Path, records: Iterable[Any]) -> None:
    """Append one JSON line a record in a single write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write("".join(json_line(record) for record in records).encode())


def read_lines(path: Path) -> Iterator[Any]:
    """The records of a line file; a last line without its line break was torn by a kill and is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def truncate(path: Path, size: int) -> None:
    """Cut a line file back to ``size`` bytes, the length a checkpoint recorded."""
    if not path.exists():
        if size:
            raise ValueError(f"{path} is missing but the checkpoint recorded {size} bytes of it; start the run anew")
        return
    if path.stat().st_size < size:
        raise ValueError(
            f"{path} holds {path.stat().st_size} bytes, fewer than the {size} the checkpoint recorded; "
            "it was changed from outside: start the run anew"
        )
    os.truncate(path, size)


@contextlib.contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Hold a folder, made if needed, against other processes; the system lets go when this one ends, however it ends.

    Folders made here that stayed empty are removed again. Raises ValueError while another process holds the folder.
    """
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    lock = directory / ".lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        opened = lock.open("ab")
    except OSError as error:
        raise OSError(f"cannot write into {directory}: {error.strerror}; choose another --out") from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is writing into {directory}; wait for it to end, or choose another --out"
            ) from None
        try:
            yield
        finally:
            if made and directory.is_dir() and list(directory.iterdir()) == [lock]:
                lock.unlink()
                with contextlib.suppress(OSError):
                    for folder in made:
                        folder.rmdir()
