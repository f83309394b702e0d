"""From a row of a data set to a question and a reference: one function a kind of row."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agpo_bench.data.benchmarks import RowKind, TaskSpec
from agpo_bench.records import ProgramTest, Reference

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question of a benchmark."""

    prompt_id: str
    reference: Reference
    solution: str = ""
    """A worked answer where the data have one: for few-shot examples, never shown for the item asked."""
    prompt: str | None = None
    """The whole user text where the item brings its own (embedded problems); None renders the task's template."""

    @property
    def question(self) -> str:
        """The bare question."""
        return self.reference.question


def read_row(task: TaskSpec, row: Row, *, prompt_id: str) -> Item:
    """One row as an item. A missing column or an unreadable value is a ``ValueError`` that names row and column."""
    try:
        item = _READERS[task.row](_Columns(task, row))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = error.args[0] if error.args else type(error).__name__
        raise ValueError(
            f"{prompt_id}: the row cannot be read ({reason}); it has {', '.join(map(str, row))}"
        ) from error
    return replace(item, prompt_id=prompt_id)


def boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{}`` or ``\fbox{}`` with balanced braces, or of ``\boxed 5``; None without one."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix("\\boxed").removeprefix("\\fbox")
    if rest.startswith(" "):
        return rest[1:].split("$")[0]
    depth = 0
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:position] if rest.startswith("{") else None
    return None


class _Columns:
    """A row seen through the names a task file allows for each part."""

    def __init__(self, task: TaskSpec, row: Row) -> None:
        self.row = row
        self._names = task.columns

    def get(self, part: str) -> Any:
        """The first named column that the row has and fills; None without one."""
        for name in self._names.get(part, ()):  # type: ignore[call-overload]
            if self.row.get(name) is not None:
                return self.row[name]
        return None

    def need(self, part: str) -> Any:
        value = self.get(part)
        if value is None:
            raise ValueError(f"no {part}: none of the columns {', '.join(self._names[part])}")  # type: ignore[index]
        return value

    @property
    def question(self) -> str:
        """The question; the passage before it where there is one; AGIEval's own frame around it taken off."""
        question = str(self.need("question"))
        if match := _AGIEVAL_QUERY.fullmatch(question):
            question = match["question"]
        passage = self.row.get("passage")
        return f"{passage}\n{question}".strip() if passage else question.strip()


# The hub copies of AGIEval keep only a rendered query: the question in a frame, options and an instruction after it.
_AGIEVAL_QUERY = re.compile(
    r"\s*(?:问题[：:]|Q:)\s*(?P<question>.*?)\s*(?:选项[：:].*|Answer Choices:.*)?(?:\n\s*(?:答案[：:]|A:).*)?",
    re.DOTALL,
)


def _worked_number(columns: _Columns) -> Item:
    """GSM8K: the gold is what follows ``####``; calculator notes ``<<…>>`` belong to neither."""
    solution, marker, gold = str(columns.need("gold")).rpartition("####")
    if not marker:
        raise ValueError("the answer has no ####")
    solution = re.sub(r"<<.*?>>", "", solution).strip()
    reference = Reference(gold=gold.strip(), question=columns.question)
    return Item(prompt_id="", reference=reference, solution=f"{solution}\nThe answer is \\boxed{{{gold.strip()}}}.")


def _boxed_solution(columns: _Columns) -> Item:
    """MATH: the gold is the last box of the solution."""
    solution = str(columns.need("solution"))
    gold = boxed(solution)
    if gold is None:
        raise ValueError("the solution has no \\boxed{}")
    if not gold.strip():
        raise ValueError("the box of the solution is empty")
    return Item(prompt_id="", reference=Reference(gold=gold, question=columns.question), solution=solution)


def _stated_answer(columns: _Columns) -> Item:
    gold = str(columns.need("gold"))
    return Item(prompt_id="", reference=Reference(gold=gold, question=columns.question), solution=f"\\boxed{{{gold}}}")


def _choice(columns: _Columns) -> Item:
    """Options as a list, a mapping of letters, or one string; the label as letters, an index, or a list of indices."""
    options = _options(columns.need("options"))
    letters = _letters(columns.need("gold"))
    if not letters or any(ord(letter) - ord("A") >= len(options) for letter in letters):
        raise ValueError(f"label {letters!r} is not among {len(options)} options")
    reference = Reference(gold=letters, question=columns.question, options=options)
    return Item(prompt_id="", reference=reference, solution=f"\\boxed{{{letters}}}")


def _options(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return tuple(str(value[letter]) for letter in sorted(value))
    if isinstance(value, str):
        return _split_options(value)
    texts = [str(option) for option in value]
    # AGIEval writes the letter into the text.
    prefixed = [re.fullmatch(rf"\s*\({chr(ord('A') + i)}\)\s*(.*)", text, re.DOTALL) for i, text in enumerate(texts)]
    return tuple(match[1] for match in prefixed if match) if all(prefixed) else tuple(texts)


def _split_options(text: str) -> tuple[str, ...]:
    """``A) … B) …`` or ``A. … B. …``: each marker is looked for after the one before it."""
    starts: list[re.Match[str]] = []
    while match := re.compile(rf"(?:^|(?<=\s))\(?{chr(ord('A') + len(starts))}[).]\s").search(
        text, starts[-1].end() if starts else 0
    ):
        starts.append(match)
    if len(starts) < 2:
        raise ValueError(f"options {text[:60]!r} are not of the form 'A) … B) …'")
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return tuple(text[match.end() : end].strip() for match, end in zip(starts, ends, strict=True))


def _letters(value: Any) -> str:
    if isinstance(value, str):
        return "".join(sorted(set(re.sub(r"[\s,]", "", value))))
    indices: Iterable[int] = [value] if isinstance(value, int) else value
    return "".join(sorted({chr(ord("A") + int(index)) for index in indices}))


def _program(columns: _Columns) -> Item:
    """CodeContests: all pools of tests in the order public, private, generated; or one merged pool ``tests``."""
    row = columns.row
    pools = [row.get(pool) for pool in ("public_tests", "private_tests", "generated_tests", "tests")]
    tests = tuple(
        ProgramTest(stdin=stdin, expected_stdout=stdout)
        for pool in pools
        if pool
        for stdin, stdout in zip(pool["input"], pool["output"], strict=True)
    )
    if row.get("input_file") or row.get("output_file"):
        raise ValueError("the problem reads or writes a named file, which no standard-input grader can judge")
    reference = Reference(
        gold="",
        question=columns.question,
        tests=tests,
        time_limit_seconds=_seconds(row.get("time_limit")),
        memory_limit_bytes=int(row["memory_limit_bytes"]) if row.get("memory_limit_bytes") else None,
    )
    return Item(prompt_id="", reference=reference)


def _seconds(limit: Any) -> float | None:
    """``{seconds, nanos}`` or a number; None or zero when the data give none."""
    if not limit:
        return None
    if isinstance(limit, Mapping):
        return float(limit.get("seconds") or 0) + float(limit.get("nanos") or 0) * 1e-9 or None
    return float(limit)


_READERS: dict[RowKind, Callable[[_Columns], Item]] = {
    "worked_number": _worked_number,
    "boxed_solution": _boxed_solution,
    "stated_answer": _stated_answer,
    "choice": _choice,
    "program": _program,
}


def reference_to_json(reference: Reference) -> str:
    """A reference as one JSON text: a document column of lm-eval, and what checksums are taken of."""
    return json.dumps(
        {
            "gold": reference.gold,
            "question": reference.question,
            "options": list(reference.options),
            "tests": [[test.stdin, test.expected_stdout] for test in reference.tests],
            "time_limit_seconds": reference.time_limit_seconds,
            "memory_limit_bytes": reference.memory_limit_bytes,
        },
        ensure_ascii=False,
    )


def reference_from_json(text: str) -> Reference:
    """The reverse of ``reference_to_json``."""
    content = json.loads(text)
    return Reference(
        gold=content["gold"],
        question=content["question"],
        options=tuple(content["options"]),
        tests=tuple(ProgramTest(stdin=stdin, expected_stdout=stdout) for stdin, stdout in content["tests"]),
        time_limit_seconds=content["time_limit_seconds"],
        memory_limit_bytes=content["memory_limit_bytes"],
    )
