"""The nine benchmarks as their task files define them, and their items as prompts.

``tasks/<name>.yaml`` is the only place that names a data set, a prompt, a licence or a grader; this module reads it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agpo_bench import paths
from agpo_bench.records import Prompt

if TYPE_CHECKING:
    from agpo_bench.data.sources import DataSource, LoadedSplit
    from agpo_bench.grading.answer import Grader, GradingMode

Split = Literal["train", "dev", "test", "validation"]
SPLITS: tuple[Split, ...] = get_args(Split)
RowKind = Literal["worked_number", "boxed_solution", "stated_answer", "choice", "program"]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GraderSpec(BaseModel):
    """Which grader judges the task; further keys are the grader's own options."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Literal["number", "expression", "choice", "blanks", "program"]

    @property
    def options(self) -> dict[str, Any]:
        """Options for ``get_grader``."""
        return dict(self.model_extra or {})


class HubData(_Closed):
    """Where the hub has the data."""

    dataset: str
    configs: tuple[str, ...] = ()
    """Read in this order and joined; empty for a data set without configurations."""
    revision: str
    splits: dict[Split, str]
    """Our split -> theirs, or ``config/split`` where the split has a configuration of its own."""


class FewShotSpec(_Closed):
    """Where few-shot examples may come from."""

    source: Literal["train", "dev"] | None = None
    lm_eval: str | None = None
    """File under lm-eval's own task folder that ships examples."""


class TaskSpec(_Closed):
    """One benchmark, as ``tasks/<name>.yaml`` defines it."""

    name: str
    title: str
    version: int
    language: Literal["en", "zh"]
    licence: str
    grader: GraderSpec
    row: RowKind
    """How a row of the data set becomes a question and a reference (``data/rows.py``)."""
    hub: HubData
    files: dict[Split, str]
    """Our split -> file name or pattern in a folder of benchmark files."""
    columns: dict[Literal["question", "options", "gold", "solution"], tuple[str, ...]]
    """What each part of an item is called in the data; the first name a row has is taken."""
    held_out_one_in: int | None = Field(default=None, ge=2)
    """The ``dev`` split is the train items whose hash falls in one of this many; the rest is ``train``."""
    few_shot: FewShotSpec
    prompt: str
    """User text; ``{question}`` and ``{options}`` are replaced."""
    stop: tuple[str, ...] = ()
    """Stop strings; ``generation_kwargs.until`` of the file."""
    max_new_tokens: int

    @property
    def lm_eval_name(self) -> str:
        """The name lm-eval knows the task by."""
        return f"agpo_{self.name}"


@cache
def task_names() -> tuple[str, ...]:
    """Names of the benchmarks in the paper's column order, from ``tasks/agpo_all.yaml``."""
    group = _read_yaml(paths.definitions("tasks") / "agpo_all.yaml")
    return tuple(str(name).removeprefix("agpo_") for name in group["task"])


@cache
def load_task(name: str) -> TaskSpec:
    """Read one task file; an unknown name or a wrong field is a ``ValueError`` that says so."""
    name = name.removeprefix("agpo_")
    path = paths.definitions("tasks") / f"{name}.yaml"
    if name not in task_names() or not path.is_file():
        raise ValueError(f"no task {name!r}; tasks/ has {', '.join(task_names())}")
    content = _read_yaml(path)
    generation = content["generation_kwargs"]
    try:
        return TaskSpec.model_validate(
            {**content["metadata"], "stop": generation["until"], "max_new_tokens": generation["max_gen_toks"]}
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path.name}: metadata.{where}: {first['msg']} (found {first['input']!r})") from None


def select_tasks(names: str) -> list[str]:
    """Names from ``all`` or a list separated by commas; doubles are dropped, unknown ones refused."""
    if names.strip() == "all":
        return list(task_names())
    chosen = [part.strip() for part in names.split(",") if part.strip()]
    if not chosen:
        raise ValueError(f"no task in {names!r}; tasks/ has {', '.join(task_names())}")
    return list(dict.fromkeys(load_task(name).name for name in chosen))


@cache
def grader_for(task: str, mode: GradingMode = "official", *, num_few_shot: int = 0) -> Grader:
    """The grader of a task: the one object that is its reward, its metric and its vote key.

    ``num_few_shot`` matters to the published rules alone: some extract differently after a few-shot prompt.
    """
    from agpo_bench.grading.graders import get_grader

    spec = load_task(task)
    return get_grader(spec.grader.kind, mode=mode, num_few_shot=num_few_shot, **spec.grader.options)


def open_source(spec: str | Path) -> DataSource:
    """``embedded``, ``hub``, or a directory of benchmark files."""
    from agpo_bench.data import sources

    return sources.open_source(spec)


def load_prompts(
    task: str | TaskSpec,
    *,
    split: Split,
    source: DataSource,
    num_few_shot: int = 0,
    few_shot_source: str | None = None,
    limit: int | None = None,
) -> list[Prompt]:
    """Prompts of a split in the order of the data; ``limit`` takes the first so many.

    A task without the split, or a source without the files, is a ``ValueError`` that says what there is.
    """
    spec = load_task(task) if isinstance(task, str) else task
    return prompts_of(source.load(spec, split), num_few_shot=num_few_shot, few_shot_source=few_shot_source, limit=limit)


def prompts_of(
    loaded: LoadedSplit, *, num_few_shot: int = 0, few_shot_source: str | None = None, limit: int | None = None
) -> list[Prompt]:
    """Prompts of a split that is already read."""
    from agpo_bench.data.few_shot import Examples

    examples = Examples.find(loaded, num_few_shot=num_few_shot, source_name=few_shot_source)
    return [
        Prompt(
            prompt_id=item.prompt_id,
            task=loaded.task.name,
            text=examples.prompt(item) if examples else loaded.render(item),
            reference=item.reference,
        )
        for item in loaded.items[:limit]
    ]


class _PlainLoader(yaml.SafeLoader):
    """Reads lm-eval task files without importing what ``!function`` names."""


_PlainLoader.add_constructor("!function", lambda _, node: node.value)


def _read_yaml(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_PlainLoader)
    if "include" in content:
        content = {**_read_yaml(path.parent / content.pop("include")), **content}
    return content
