"""What a file in ``reports/`` may say: a table or a figure, closed and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agpo_bench import paths


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AccuracyColumns(_Closed):
    """One column a task: mean score over its items, in percent."""

    use: Literal["accuracy"]
    group: str
    """Heading above the columns."""
    tasks: tuple[str, ...]


class AverageColumn(_Closed):
    """The unweighted mean of the row's accuracy cells, taken seed by seed; empty when one of them is."""

    use: Literal["average"]
    title: str = "Average"


class RunColumn(_Closed):
    """A figure of the training runs themselves, one value a run (see ``run_statistics.py`` for the definitions)."""

    use: Literal["run"]
    statistic: str
    title: str
    decimals: int = 1
    better: Literal["higher", "lower", "neither"] = "neither"


Columns = Annotated[AccuracyColumns | AverageColumn | RunColumn, Field(discriminator="use")]


class TableSpec(_Closed):
    """A table: methods down, columns across."""

    kind: Literal["table"]
    title: str
    methods: tuple[str, ...] = ()
    """Rows in order; methods that were not run are left out, methods run but not named follow. Empty: all that ran."""
    only_named: bool = False
    """Leave out methods that are not named in ``methods``."""
    initial_row: bool = True
    """The model before training as first row."""
    columns: tuple[Columns, ...]
    difference_to: str | None = None
    """Print each row minus this method's row (differences of unrounded means) instead of the values."""
    decimals: int = 1
    """Digits of percentages."""
    show_std: bool = True
    caption: str = ""
    """A sentence of its own before the generated caption."""


class Panel(_Closed):
    """One panel of a figure: a metric of ``metrics.jsonl`` over tokens used."""

    metric: str
    label: str


class FigureSpec(_Closed):
    """A figure of training metrics over tokens used; a line a method, a band of one standard deviation over seeds."""

    kind: Literal["figure"]
    title: str
    methods: tuple[str, ...] = ()
    panels: tuple[Panel, ...]
    caption: str = ""


Spec = Annotated[TableSpec | FigureSpec, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[TableSpec | FigureSpec] = TypeAdapter(Spec)


def spec_names() -> list[str]:
    """Names of the specs that ship with the project, in printing order (a spec's file name)."""
    return sorted(path.stem for path in paths.definitions("reports").glob("*.yaml"))


def load_spec(name_or_path: str) -> TableSpec | FigureSpec:
    """Read one spec; a wrong field is one sentence that names the file and the field."""
    path = Path(name_or_path)
    if path.suffix != ".yaml":
        path = paths.definitions("reports") / f"{name_or_path}.yaml"
    if not path.is_file():
        raise ValueError(f"no report {name_or_path!r}; reports/ has {', '.join(spec_names())}")
    try:
        return _ADAPTER.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path.name}: {where}: {first['msg']}") from None
