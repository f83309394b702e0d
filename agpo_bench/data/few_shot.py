"""Few-shot examples: from the train or dev split, from what lm-eval ships, or DeepSeek-Math's prompts in a data folder.

The first two never show the item asked. The published DeepSeek-Math prompts are fixed texts and two of their examples
are test items of OCW: ``leaks`` finds such items, and an evaluation reports its score also without them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from agpo_bench.data.benchmarks import TaskSpec
from agpo_bench.data.rows import Item
from agpo_bench.data.sources import FolderSource, LoadedSplit, question_key

FewShotSource = Literal["none", "train", "dev", "lm_eval", "deepseek"]

_DEEPSEEK_FILE = Path("few_shot") / "deepseek_math_few_shot.json"
_HEADS = {"en": ("Question: ", "\nAnswer: "), "zh": ("问题：", "\n答案：")}
_MAX_DUPLICATES = 16
"""Spare examples read, so that leaving out those that ask the same question still fills the prompt."""


@dataclass(frozen=True, kw_only=True)
class _Example:
    question: str
    """As it is shown: options included."""
    key: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Examples:
    """What stands before a question."""

    source_name: FewShotSource
    num: int
    task: TaskSpec
    pool: tuple[_Example, ...] = ()
    prefix: str = ""
    """A fixed published prompt; empty when the prompt is built from ``pool``."""
    frame: str = ""
    """What follows a fixed prompt; ``{question}`` is replaced."""

    @classmethod
    def find(cls, loaded: LoadedSplit, *, num_few_shot: int, source_name: str | None = None) -> Examples | None:
        """Examples for a split; None for zero-shot. ``source_name`` None takes the train or dev split."""
        if num_few_shot == 0:
            return None
        task = loaded.task
        if loaded.source.kind == "embedded":
            raise ValueError(f"{task.name}: the embedded sample has no few-shot prompt; use --few-shot 0")
        name = source_name or _default_source(task)
        if name == "deepseek":
            return _deepseek(loaded, num_few_shot)
        if name == "lm_eval":
            pool = _shipped(task)
        elif name == task.few_shot.source:
            split = loaded.source.load(task, name)
            pool = [
                _Example(question=_shown(item), key=question_key(item.question), answer=item.solution)
                for item in split.items[: num_few_shot + _MAX_DUPLICATES]
            ]
        else:
            raise ValueError(f"{task.name} has no few-shot examples from {name!r}; {_offered(task)}")
        if len(pool) < num_few_shot:
            raise ValueError(f"{task.name}: {name} has {len(pool)} few-shot examples, fewer than {num_few_shot}")
        return cls(source_name=name, num=num_few_shot, task=task, pool=tuple(pool))  # type: ignore[arg-type]

    def prompt(self, item: Item) -> str:
        """The examples, then the question in the same markup."""
        if self.prefix:
            return self.prefix + self.frame.replace("{question}", _shown_by_deepseek(item))
        asked = question_key(item.question)
        chosen = [example for example in self.pool if example.key != asked][: self.num]
        if len(chosen) < self.num:
            raise ValueError(f"{item.prompt_id}: only {len(chosen)} few-shot examples do not ask the same question")
        head, answer = _HEADS[self.task.language]
        shots = "".join(f"{head}{example.question}{answer}{example.answer}\n\n" for example in chosen)
        return f"{shots}{head}{_shown(item)}{answer.rstrip(' ')}"

    def shown(self) -> list[str]:
        """The questions of the examples, where they are not one fixed text."""
        return [example.question for example in self.pool[: self.num]]

    def leaks(self, item: Item) -> bool:
        """Whether a fixed prompt holds the very question asked."""
        return bool(self.prefix) and _without_breaks(item.question) in _without_breaks(self.prefix)


def _without_breaks(text: str) -> str:
    """A text up to white space and TeX line breaks, in which published prompts differ from the test file."""
    return question_key(text.replace("\\\\", ""))


def _default_source(task: TaskSpec) -> str:
    if task.few_shot.source:
        return task.few_shot.source
    raise ValueError(f"{task.name} has no split to take few-shot examples from; {_offered(task)}")


def _offered(task: TaskSpec) -> str:
    names = [name for name in (task.few_shot.source, "lm_eval" if task.few_shot.lm_eval else None) if name]
    return f"it offers {', '.join([*names, 'deepseek'])} (deepseek: a data folder with {_DEEPSEEK_FILE.as_posix()})"


def _shown(item: Item) -> str:
    options = "".join(f"\n({chr(ord('A') + i)}) {text}" for i, text in enumerate(item.reference.options))
    return item.question + options


def _shown_by_deepseek(item: Item) -> str:
    """The question as DeepSeek-Math's few-shot prompts spell it."""
    if not item.reference.options:
        return item.question
    letters = [chr(ord("A") + i) for i in range(len(item.reference.options))]
    pairs = list(zip(letters, item.reference.options, strict=True))
    if item.prompt_id.startswith("gaokao_qa/"):
        return f"{item.question}\n从以下选项中选择:    " + " ".join(f"({letter}){text}" for letter, text in pairs)
    listed = ", ".join(f"({letter}) {text}" for letter, text in pairs)
    return f"{item.question}\nWhat of the following is the right choice? Explain your answer.\n{listed}"


def _deepseek(loaded: LoadedSplit, num_few_shot: int) -> Examples:
    task, source = loaded.task, loaded.source
    path = source.folder / _DEEPSEEK_FILE if isinstance(source, FolderSource) else _DEEPSEEK_FILE
    if not path.is_file():
        raise ValueError(f"{task.name}: no {_DEEPSEEK_FILE.as_posix()} in {source.description}; {_offered(task)}")
    folder = Path(task.files["test"]).parent.name
    prompts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["prompts"]
    for prompt in prompts:
        if prompt["benchmark"] == folder:
            break
    else:
        raise ValueError(f"{task.name}: {path} has no prompt for {folder}")
    if prompt["shots"] != num_few_shot:
        raise ValueError(
            f"{task.name}: DeepSeek-Math's prompt is one text of {prompt['shots']} examples, not {num_few_shot}; "
            f"use --few-shot {prompt['shots']}"
        )
    return Examples(
        source_name="deepseek", num=num_few_shot, task=task, prefix=prompt["prefix"], frame=prompt["suffix_template"]
    )


def _shipped(task: TaskSpec) -> list[_Example]:
    """Examples inside lm-eval's own task folder, read without importing or running its code."""
    if task.few_shot.lm_eval is None:
        raise ValueError(f"{task.name}: lm-eval ships no few-shot examples for it; {_offered(task)}")
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "tasks" / task.few_shot.lm_eval
    text = path.read_text(encoding="utf-8")
    rows = _literal_list(ast.parse(text)) if path.suffix == ".py" else yaml.safe_load(text)["fewshot_config"]["samples"]
    return [_example(row) for row in rows]


def _literal_list(module: ast.Module) -> list[dict[str, str]]:
    """The list that ``list_fewshot_samples`` returns."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == "list_fewshot_samples":
            (returned,) = (part for part in ast.walk(node) if isinstance(part, ast.Return))
            assert returned.value is not None
            rows: list[dict[str, str]] = ast.literal_eval(returned.value)
            return rows
    raise ValueError("this lm-eval ships no list_fewshot_samples; use the examples of the train split")


def _example(row: dict[str, str]) -> _Example:
    question = row.get("question") or row["problem"]
    return _Example(question=question, key=question_key(question), answer=row.get("target") or row["solution"])
