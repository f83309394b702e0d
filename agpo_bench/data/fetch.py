"""Benchmark files from the hub into a folder that every command reads, with checksums; a second call continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agpo_bench.data.benchmarks import Split, TaskSpec, load_task
from agpo_bench.data.sources import HubSource
from agpo_bench.files import write_whole

_MANIFEST = "MANIFEST.json"


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What became of one split."""

    task: str
    split: Split
    file: str
    num_items: int
    was_there: bool
    """True when the file was complete already."""
    error: str = ""
    """Why it could not be fetched; empty when it was."""


def fetch(
    tasks: Iterable[str], folder: Path, *, source: HubSource, on_file: Callable[[Fetched], None] = lambda one: None
) -> list[Fetched]:
    """Write every split of the benchmarks as JSON lines below ``folder``, where ``--data FOLDER`` finds them.

    Each file is whole or absent, and its SHA-256 is in MANIFEST.json once it is there; files that agree with the
    manifest are left alone, so an interrupted call is continued by the same call. A split that cannot be had is told
    of and the next is tried; when nothing at all could be had, that is a ``ValueError``.
    """
    manifest = _read_manifest(folder)
    results: list[Fetched] = []
    for task in map(load_task, tasks):
        for split in task.hub.splits:
            if split not in task.files:
                continue
            one = _fetch_split(task, split, folder, manifest, source)
            results.append(one)
            on_file(one)
    if results and all(one.error for one in results):
        raise ValueError(f"nothing was fetched into {folder}: {results[0].error}")
    return results


def _fetch_split(
    task: TaskSpec, split: Split, folder: Path, manifest: dict[str, list[dict[str, Any]]], source: HubSource
) -> Fetched:
    name = task.files[split].replace("*", "")
    directory, _, file = name.partition("/")
    entries = manifest.setdefault(directory, [])
    listed = next((entry for entry in entries if entry["file"] == file), None)
    path = folder / name
    if listed is not None and path.is_file() and _sha256(path.read_bytes()) == listed["sha256"]:
        return Fetched(task=task.name, split=split, file=name, num_items=listed.get("items", 0), was_there=True)
    try:
        read = source.rows(task, split)
    except ValueError as error:
        return Fetched(task=task.name, split=split, file=name, num_items=0, was_there=False, error=str(error))
    lines = [json.dumps(dict(row), ensure_ascii=False, default=str) + "\n" for row in read.rows]
    content = "".join(lines)
    write_whole(path, content)
    entries[:] = [entry for entry in entries if entry["file"] != file]
    entries.append(
        {
            "file": file,
            "split": split,
            "items": len(lines),
            "sha256": _sha256(content.encode()),
            "licence": task.licence,
            "source": dict(read.files),
        }
    )
    write_whole(folder / _MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    return Fetched(task=task.name, split=split, file=name, num_items=len(lines), was_there=False)


def _read_manifest(folder: Path) -> dict[str, list[dict[str, Any]]]:
    path = folder / _MANIFEST
    if not path.is_file():
        return {}
    try:
        content: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); restore the file or choose another folder") from None
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
