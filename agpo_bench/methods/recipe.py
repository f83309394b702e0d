"""Recipes: the listing of ``trainers/`` is the registry of methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from agpo_bench.methods.method import Method
from agpo_bench.methods.registry import recipe_path
from agpo_bench.methods.slots import SLOTS
from agpo_bench.paths import definitions


def load_method(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> Method:
    """The method of that name, or of that recipe file (a path that ends in ``.yaml`` or ``.yml``).

    ``overrides`` maps ``slot.field`` (or a plain recipe field such as ``group_size``) to a value; a string is read as
    YAML. ``slot.use`` changes the part and forgets the old part's fields. ValueError names what is wrong and what is
    valid.
    """
    path = recipe_path(name_or_path)
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not readable YAML: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path.name} must be a mapping of recipe fields such as name, title, source, clip")
    recipe.setdefault("name", path.stem)
    changed = dict(overrides or {})
    try:
        method = Method.model_validate(override(recipe, changed))
    except ValidationError as error:
        raise ValueError(f"{path.name}: {_sentence(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    if "title" not in changed:
        method = method.model_copy(update={"title": method.title + _remark(path, method, changed)})
    return method


def _remark(path: Path, method: Method, overrides: Mapping[str, Any]) -> str:
    """What a table must add to the title, so that a changed recipe never stands under the name of the one it was."""
    remarks = [f"{key}={str(value).rpartition('/')[2]}" for key, value in overrides.items()]
    shipped = definitions("trainers")
    if path.resolve().parent != shipped.resolve():
        recipes = [yaml.safe_load(one.read_text(encoding="utf-8")) for one in shipped.glob("*.yaml")]
        namesakes = [recipe for recipe in recipes if recipe["title"] == method.title]
        if namesakes and all(Method.model_validate(override(recipe, overrides)) != method for recipe in namesakes):
            remarks.insert(0, path.stem)
    return f" ({', '.join(remarks)})" if remarks else ""


def override(recipe: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with the overrides applied, ``slot.use`` first."""
    result = dict(recipe)
    for key, given in sorted(overrides.items(), key=lambda item: not item[0].endswith(".use")):
        value = yaml.safe_load(given) if isinstance(given, str) else given
        slot, _, field = key.partition(".")
        if not field:
            if key not in Method.model_fields:
                raise ValueError(f"no field {key!r} to set; a recipe has {', '.join(Method.model_fields)}")
            result[key] = value
            continue
        if slot not in SLOTS:
            raise ValueError(f"no slot {slot!r} to set ({key}); slots are {', '.join(SLOTS)}")
        part = result.get(slot, Method.model_fields[slot].default.use)
        part = {"use": part} if isinstance(part, str) else dict(part or {"use": "none"})
        result[slot] = {"use": value} if field == "use" else part | {field: value}
    return result


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, as one sentence."""
    first = error.errors()[0]
    where = ".".join(str(item) for item in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"no field {where!r} in a recipe; it has {', '.join(Method.model_fields)}"
    message = first["msg"].removeprefix("Value error, ")
    if not where:
        return message
    if first["type"] in ("value_error", "missing"):
        return f"{where}: {message}"
    return f"{where} = {first['input']!r}: {message[0].lower()}{message[1:]}"
