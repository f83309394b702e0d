"""How a mistake is told."""

from __future__ import annotations


def in_one_sentence(error: ValueError | OSError) -> str:
    """What went wrong, on one line; a file that cannot be used is named with the system's reason."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename}: {error.strerror}"
    return " ".join(str(error).split())
