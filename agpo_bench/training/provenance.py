"""``provenance.json`` of a run: what it takes to tell whether two runs are comparable, and to make one again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agpo_bench import paths
from agpo_bench.config import fingerprint
from agpo_bench.files import write_whole
from agpo_bench.provenance import git_commit, host, is_git_dirty, versions
from agpo_bench.records import Prompt
from agpo_bench.training.session import Session


def write_provenance(directory: Path, session: Session) -> None:
    """Write it when a run starts or goes on; commits and versions of earlier starts that differ are kept beside."""
    file = directory / paths.PROVENANCE_FILE
    now: dict[str, Any] = {
        "git_commit": git_commit(),
        "is_git_dirty": is_git_dirty(),
        "versions": versions(),
        "host": host() | {"device": _device_name(session.device)},
        "config_sha256": fingerprint(session.config.model_dump(mode="json")),
        "recipe_sha256": fingerprint(session.method.model_dump(mode="json")),
        "model_sha256": session.reference_fingerprint,
        "training_data_sha256": _checksums(session.stream.prompts),
    }
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    earlier = found.pop("earlier", [])
    if found and found != now:
        earlier.append(found)
    write_whole(file, json.dumps(now | ({"earlier": earlier} if earlier else {}), indent=2) + "\n")


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _checksums(prompts: Sequence[Prompt]) -> dict[str, str]:
    """SHA-256 by benchmark of every training problem in use: name, text and reference answer, in order."""
    hashes: dict[str, Any] = {}
    for prompt in prompts:
        part = json.dumps([prompt.prompt_id, prompt.text, prompt.reference.gold], ensure_ascii=False)
        hashes.setdefault(prompt.task, hashlib.sha256()).update(part.encode())
    return {task: found.hexdigest() for task, found in sorted(hashes.items())}
