"""The command line as a user starts it."""

from __future__ import annotations

import subprocess
import sys


def run_command(*words: str, timeout: float = 1500) -> str:
    """What ``agpo-bench`` with these words prints; it must end well within ``timeout`` seconds."""
    command = [sys.executable, "-m", "agpo_bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
