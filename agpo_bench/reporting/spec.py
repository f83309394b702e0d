"""What a file in ``reports/`` may say: a table or a figure, closed and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from agpo_bench import paths

Measure = Literal["greedy", "avg", "pass", "maj"]
"""Greedy score; mean score of all sampled draws; unbiased pass@k and Maj@k over them."""
Better = Literal["higher", "lower", "neither"]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AccuracyColumns(_Closed):
    """One column a task, in percent."""

    use: Literal["accuracy"]
    group: str
    """Heading above the columns."""
    tasks: tuple[str, ...]
    measure: Measure = "greedy"
    k: int | None = Field(default=None, ge=1)
    """Of pass@k and Maj@k."""
    minus: str | None = None
    """Print the difference to this method's row."""

    @model_validator(mode="after")
    def _check(self) -> AccuracyColumns:
        if (self.measure in ("pass", "maj")) != (self.k is not None):
            raise ValueError(f"measure {self.measure} " + ("needs a k" if self.k is None else "takes no k"))
        return self


class FamilyColumns(_Closed):
    """One column a model that runs were started from: one task's greedy score across model families."""

    use: Literal["families"]
    task: str


class AverageColumn(_Closed):
    """The unweighted mean of the row's accuracy cells, taken seed by seed; empty when one of them is."""

    use: Literal["average"]
    title: str = "Average"
    tasks: tuple[str, ...] = ()
    """Tasks to average; empty for those of the table's accuracy columns of the same measure."""
    measure: Measure = "greedy"
    k: int | None = Field(default=None, ge=1)
    minus: str | None = None


class RunColumn(_Closed):
    """A figure of the training runs themselves, one value a run (see ``run_statistics.py`` for the definitions)."""

    use: Literal["run"]
    statistic: str
    title: str
    decimals: int = 1
    better: Better = "neither"
    metric: str | None = None
    """Of ``hours_to_target``: the metric that has to reach the target."""
    target: float | Literal["common"] | None = None
    """Of ``hours_to_target``: a level, or ``common``: the highest that every run of the table reaches."""
    normalise_to: str | None = None
    """Print multiples of this method's mean."""


class RecipeColumn(_Closed):
    """A field of the recipe, such as ``clip.high``; with ``equals`` a tick where it has this value."""

    use: Literal["recipe"]
    field: str
    title: str
    equals: str | None = None


Columns = Annotated[
    AccuracyColumns | FamilyColumns | AverageColumn | RunColumn | RecipeColumn, Field(discriminator="use")
]


class Comparison(_Closed):
    """One row of a table of comparisons: a method minus another."""

    method: str
    minus: str


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
    comparisons: tuple[Comparison, ...] = ()
    """Rows that are differences of two methods; takes the place of ``methods``."""
    columns: tuple[Columns, ...]
    difference_to: str | None = None
    """Print each row minus this method's row (differences of unrounded means) instead of the values."""
    relative: bool = False
    """Print differences as gains: 100 (a / b - 1), in percent."""
    decimals: int = 1
    """Digits of percentages."""
    spread: Literal["std", "ci95", "none"] = "std"
    """After each mean: sample deviation over seeds, half-width of the Student-t 95 % interval, or nothing."""
    test: Literal["none", "seeds", "items"] = "none"
    """Stars on differences: Welch's test over seeds, or a paired test on the same items."""
    paper: str | None = None
    """File in ``reports/paper/`` to compare with: rows are methods, columns are tasks."""
    caption: str = ""
    """A sentence of its own before the generated caption."""

    @model_validator(mode="after")
    def _check(self) -> TableSpec:
        if self.test != "none" and not self.comparisons and self.difference_to is None:
            raise ValueError("test stars differences; add comparisons or difference_to")
        if self.comparisons and (self.methods or self.difference_to):
            raise ValueError("comparisons take the place of methods and difference_to")
        return self


class Panel(_Closed):
    """One panel of a figure of training metrics."""

    metrics: tuple[str, ...]
    """Names in ``metrics.jsonl``, a line each; one ending in ``*`` is drawn over its numeric ending."""
    label: str
    window: int = Field(default=1, ge=1)
    """Steps of the centred running mean; 1 draws what was logged."""

    @property
    def is_over_suffix(self) -> bool:
        """Whether the horizontal axis is the metric's numeric ending."""
        return self.metrics[0].endswith("*")


class FigureSpec(_Closed):
    """Training metrics over tokens used; a line a method, a band of one sample deviation over seeds."""

    kind: Literal["figure"]
    title: str
    methods: tuple[str, ...] = ()
    only_named: bool = False
    panels: tuple[Panel, ...]
    caption: str = ""


class CurveSpec(_Closed):
    """Maj@k or pass@k over k, a panel a task, a line a method, a band of one sample deviation over seeds."""

    kind: Literal["curve"]
    title: str
    methods: tuple[str, ...] = ()
    measure: Literal["maj", "pass"]
    tasks: tuple[str, ...]
    caption: str = ""


class HeatmapSpec(_Closed):
    """Solve-rate difference to a baseline by difficulty: bins of items down (easiest on top), methods across."""

    kind: Literal["heatmap"]
    title: str
    methods: tuple[str, ...] = ()
    baseline: str
    task: str | Literal["all"]
    bins: int = Field(default=20, ge=2)
    caption: str = ""


AnySpec = TableSpec | FigureSpec | CurveSpec | HeatmapSpec
_ADAPTER: TypeAdapter[AnySpec] = TypeAdapter(Annotated[AnySpec, Field(discriminator="kind")])


def spec_names() -> list[str]:
    """Names of the specs that ship with the project (a spec's file name)."""
    return sorted(path.stem for path in paths.definitions("reports").glob("*.yaml"))


def load_spec(name_or_path: str) -> AnySpec:
    """Read one spec; a wrong field is one sentence that names the file and the field."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = paths.definitions("reports") / f"{name_or_path}.yaml"
    if not path.is_file():
        raise ValueError(f"no report {name_or_path!r}; reports/ has {', '.join(spec_names())}")
    try:
        return _ADAPTER.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path.name}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
