"""Which methods there are: the listing of ``trainers/``. Imports no torch, so planning can ask too."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from agpo_bench.paths import definitions


def method_names() -> list[str]:
    """Every method that has a recipe, in alphabetical order."""
    return sorted(path.stem for path in definitions("trainers").glob("*.yaml"))


def recipe_path(name_or_path: str | Path) -> Path:
    """The recipe of a name, or the file that a path ending in ``.yaml`` or ``.yml`` names; ValueError without one."""
    text = str(name_or_path)
    path = Path(text) if text.endswith((".yaml", ".yml")) else definitions("trainers") / f"{text}.yaml"
    if not path.is_file():
        near = get_close_matches(text.lower().replace("-", "_"), method_names(), n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"no method {text!r}; {hint}trainers/ has {', '.join(method_names())}, or give a recipe's .yaml path"
        )
    return path
