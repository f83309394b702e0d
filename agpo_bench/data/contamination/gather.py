"""Texts to compare: benchmark splits, few-shot prompts, and training files of any common shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agpo_bench.data.benchmarks import Split, load_task
from agpo_bench.data.contamination.batch import Text
from agpo_bench.data.few_shot import Examples

if TYPE_CHECKING:
    from agpo_bench.data.rows import Item
    from agpo_bench.data.sources import DataSource
    from agpo_bench.records import Prompt

_QUESTIONS = ("problem", "question", "prompt", "input", "query", "instruction", "description", "text")
_RESPONSES = ("response", "completion", "output", "chosen")
_CHATS = ("messages", "conversations", "conversation")
_DEEPSEEK_SHOTS = {"gsm8k": 8, "cmath": 6, "gaokao_cloze": 5, "gaokao_qa": 5}


def text_of(item: Item) -> Text:
    """A benchmark item; an embedded one is its prompt."""
    return Text(
        text_id=item.prompt_id, question=item.question or item.prompt or "", options=tuple(item.reference.options)
    )


def text_of_prompt(prompt: Prompt) -> Text:
    """A training problem."""
    reference = prompt.reference
    return Text(text_id=prompt.prompt_id, question=reference.question or prompt.text, options=reference.options)


def split_texts(source: DataSource, task: str, split: Split) -> list[Text]:
    """A split as it is stored."""
    return [text_of(item) for item in source.stored(load_task(task), split)]


def evaluation_texts(source: DataSource, tasks: Iterable[str]) -> tuple[list[Text], dict[str, str]]:
    """The test items of several benchmarks, and why each benchmark that could not be read was not."""
    texts: list[Text] = []
    missing: dict[str, str] = {}
    for task in tasks:
        try:
            texts += split_texts(source, task, "test")
        except ValueError as error:
            missing[task] = str(error)
    return texts, missing


def few_shot_texts(source: DataSource, task: str, name: str | None = None) -> list[Text]:
    """What a few-shot prompt shows before a question of the task: one fixed text, or one text an example."""
    if source.kind == "embedded":
        return []
    loaded = source.load(load_task(task), "test")
    num = _DEEPSEEK_SHOTS.get(task, 4) if name == "deepseek" else 4
    examples = Examples.find(loaded, num_few_shot=num, source_name=name)
    assert examples is not None
    where = f"few_shot/{task}/{examples.source_name}"
    if examples.prefix:
        return [Text(text_id=where, question=examples.prefix)]
    return [Text(text_id=f"{where}/{i}", question=shown) for i, shown in enumerate(examples.shown())]


def file_texts(path: Path) -> list[Text]:
    """Training texts of a file, or of the files of a folder: those named ``train*`` where there are any, else all.

    JSON lines, a JSON list, or Parquet. The question is the first of the usual columns that a row fills; options,
    answers written by a model, and the turns of a chat are compared as well.
    """
    files = _files(path)
    texts: list[Text] = []
    for file in files:
        for number, row in enumerate(_rows(file)):
            texts += _row_texts(row, f"{file.stem}/{number}")
    if not texts:
        raise ValueError(f"{path}: no row has a text; a column must be named {', '.join((*_QUESTIONS, *_CHATS))}")
    return texts


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"no training data in {str(path)!r}; pass a file, a folder, embedded or hub")
    found = [file for kind in ("jsonl", "json", "parquet") for file in sorted(path.glob(f"*.{kind}"))]
    found = [file for file in found if file.name != "MANIFEST.json"]
    train = [file for file in found if file.stem.startswith("train")]
    if not found:
        raise ValueError(
            f"{path} holds no .jsonl, .json or .parquet file; pass the folder or file with the training data"
        )
    return train or found


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    if file.suffix == ".parquet":
        import pandas as pd

        yield from pd.read_parquet(file).to_dict("records")  # type: ignore[misc]
        return
    content = file.read_bytes()
    if file.suffix == ".json":
        rows = _parsed(content, str(file))
        if not isinstance(rows, list):
            raise ValueError(f"{file}: not a JSON list of rows")
    else:
        lines = enumerate(content.split(b"\n"), start=1)
        rows = [_parsed(line, f"{file}, line {number}") for number, line in lines if line.strip()]
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"{file}: row {number} is not a JSON object")
        yield row


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error})") from None


def _row_texts(row: Mapping[str, Any], text_id: str) -> Iterator[Text]:
    question = next((row[name] for name in _QUESTIONS if isinstance(row.get(name), str) and row[name].strip()), None)
    chat = next((row[name] for name in _CHATS if isinstance(row.get(name), Sequence)), None)
    if question is not None:
        options = row.get("options", row.get("choices"))
        listed = tuple(map(str, options)) if isinstance(options, list | tuple) else ()
        yield Text(text_id=text_id, question=question, options=listed)
    for number, turn in enumerate(chat or ()):
        content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else turn
        if isinstance(content, str) and content.strip():
            yield Text(text_id=f"{text_id}/turn-{number}", question=content)
    for name in _RESPONSES:
        if question is not None and isinstance(row.get(name), str) and row[name].strip():
            yield Text(text_id=f"{text_id}/{name}", question=row[name])
