"""What the graders accept and reject, measured on real benchmark files: ``python -m agpo_bench.grading.evidence``.

Every function returns plain records, so that a test and the page read the same numbers. The page holds counts, row
numbers and short answers; it repeats no question and no response.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from agpo_bench.data.benchmarks import grader_for, load_task, open_source, task_names
from agpo_bench.data.rows import Item
from agpo_bench.grading.answer import GradingMode
from agpo_bench.grading.evidence_programs import Programs, Suite, program_evidence, render_programs, run_suites
from agpo_bench.grading.graders import get_grader
from agpo_bench.records import Reference, Verdict

NUM_PAIRS = 200_000
FORMS = ("bare", "dollars", "boxed", "sentence")
_TRAIN_SPLITS = {"gsm8k": ("train", "dev", "test"), "math": ("train", "test"), "cmath": ("train", "test")}


@dataclass(frozen=True, kw_only=True)
class Counted:
    """How many of ``total`` were accepted, and the others one by one."""

    name: str
    accepted: int
    total: int
    others: tuple[str, ...] = ()
    without_gold: tuple[str, ...] = ()
    """Items whose gold the data leave empty or unreadable: errors of the data, in no total."""


@dataclass(frozen=True, kw_only=True)
class CrossRejection:
    """Golds of one benchmark graded against other items' golds."""

    task: str
    pairs: int
    symmetric: int
    """Pairs that get the same verdict when gold and answer change places."""
    accepted: tuple[str, ...] = ()
    """``answer | gold``, spelled differently and graded equal."""


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """One collected verdict that ours is not."""

    source: str
    gold: str
    answer: str | None
    expected: bool
    score: float
    explanation: str


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Our verdicts beside those collected upstream, for one source."""

    benchmark: str
    source: str
    semantics: str
    total: int
    right: int
    disagreements: tuple[Disagreement, ...] = field(default=())


def _items(data_dir: Path, task: str, split: str, limit: int | None) -> tuple[Item, ...]:
    try:
        loaded = open_source(str(data_dir)).load(load_task(task), split)  # type: ignore[arg-type]
    except ValueError as error:
        if split == "test":
            raise
        del error  # a benchmark without this split has nothing to show for it
        return ()
    return loaded.items[:limit]


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """What of a training file is used."""

    name: str
    used: int
    asked_by_test: int
    without_gold: int


def training_rows(data_dir: Path) -> list[TrainingRows]:
    """Rows used and left out, for every training split of the folder."""
    source = open_source(str(data_dir))
    records = []
    for name in task_names():
        task = load_task(name)
        for split in ("train", "dev") if task.held_out_one_in else ("train",):
            if "train" not in source.splits(task):
                continue
            loaded = source.load(task, split)
            records.append(
                TrainingRows(
                    name=f"{name}/{split}",
                    used=len(loaded.items),
                    asked_by_test=loaded.num_removed,
                    without_gold=loaded.num_unreadable,
                )
            )
    return records


def _text_tasks(tasks: Sequence[str] | None) -> list[str]:
    return [task for task in tasks or task_names() if load_task(task).grader.kind != "program"]


def spell_gold(task: str, form: str, gold: str) -> str:
    """A response that states the gold in one of ``FORMS``; the sentence is that of the few-shot prompt."""
    spec = load_task(task)
    if form == "bare":
        return gold
    if form == "dollars":
        return f"${gold}$"
    if form == "boxed":
        return f"\\boxed{{{gold}}}"
    if spec.grader.kind == "expression":
        return f"Final Answer: The final answer is ${gold}$. I hope it is correct."
    if spec.grader.kind == "choice" and spec.language == "en":
        return f"Final Answer: The final answer is ({gold}). I hope it is correct."
    return f"所以答案是 {gold}。" if spec.language == "zh" else f"The answer is {gold}."


def gold_acceptance(data_dir: Path, *, tasks: Sequence[str] | None = None, limit: int | None = None) -> list[Counted]:
    """Every verbatim gold in every form: one record a benchmark, split and form."""
    records = []
    for task in _text_tasks(tasks):
        grader = grader_for(task)
        for split in _TRAIN_SPLITS.get(task, ("test",)):
            items = _items(data_dir, task, split, limit)
            for form in FORMS if items else ():
                pairs = [(spell_gold(task, form, item.reference.gold), item.reference) for item in items]
                records.append(_count(f"{task}/{split}/{form}", items, grader.grade_many(pairs)))
    return records


def solution_acceptance(
    data_dir: Path, *, tasks: Sequence[str] = ("gsm8k", "math"), limit: int | None = None
) -> list[Counted]:
    """Every worked reference solution graded as a response."""
    records = []
    for task in tasks:
        for split in _TRAIN_SPLITS[task]:
            items = [item for item in _items(data_dir, task, split, limit) if item.solution]
            if items:
                verdicts = grader_for(task).grade_many([(_solution(task, item), item.reference) for item in items])
                records.append(_count(f"{task}/{split}/solution", items, verdicts))
    return records


def _solution(task: str, item: Item) -> str:
    if task == "gsm8k" and "####" not in item.solution:
        return f"{item.solution}\n#### {item.reference.gold}"
    return item.solution


def _count(name: str, items: Sequence[Item], verdicts: Sequence[Verdict]) -> Counted:
    graded = list(zip(items, verdicts, strict=True))
    others = tuple(
        f"{item.prompt_id}: {_short(item.reference.gold)} -> {_short(verdict.answer)} ({verdict.reason})"
        for item, verdict in graded
        if verdict.score != 1 and verdict.reason != "gold_unreadable"
    )
    without_gold = tuple(item.prompt_id for item, verdict in graded if verdict.reason == "gold_unreadable")
    total = len(items) - len(without_gold)
    return Counted(name=name, accepted=total - len(others), total=total, others=others, without_gold=without_gold)


def reference_acceptance(data_dir: Path, *, limit: int | None = None) -> list[Counted]:
    """What the published rules, reproduced here as modes, accept of the same golds in the form that suits them best."""
    rules = [
        ("gsm8k", "deepseek", 8, "The answer is {}."),
        ("gsm8k", "lm_eval", 8, "The answer is {}."),
        ("math", "lm_eval", 4, "Final Answer: The final answer is ${}$. I hope it is correct."),
        ("ocw", "deepseek", 4, "Final answer: The final answer is {}. I hope it is correct."),
        ("ocw", "lm_eval", 4, "Final answer: The final answer is {}. I hope it is correct."),
        ("cmath", "deepseek", 6, "所以答案是：{}。"),
        ("gaokao_cloze", "deepseek", 5, "答案是 {}"),
        ("gaokao_qa", "deepseek", 5, "答案是 {}"),
    ]
    records = []
    for task, mode, num_few_shot, sentence in rules:
        grader = grader_for(task, mode, num_few_shot=num_few_shot)
        items = _items(data_dir, task, "test", limit)
        verdicts = grader.grade_many([(sentence.format(item.reference.gold), item.reference) for item in items])
        count = _count(f"{task}/{mode}", items, verdicts)
        records.append(Counted(name=count.name, accepted=count.accepted, total=count.total))
    return records


def cross_rejection(
    data_dir: Path, *, num_pairs: int = NUM_PAIRS, seed: int = 0, tasks: Sequence[str] | None = None
) -> list[CrossRejection]:
    """Seeded pairs of items with differently spelled golds: the gold of one as the answer to the other, both ways.

    The pairs are shared out equally among the benchmarks. Two spellings of one value are rightly graded equal; each
    accepted pair is returned, to be looked at.
    """
    names = _text_tasks(tasks)
    records = []
    for number, task in enumerate(names):
        items = _items(data_dir, task, "test", None)
        generator = random.Random(f"{seed}/{task}")
        share = num_pairs // len(names) + (number < num_pairs % len(names))
        grader = grader_for(task)
        accepted: dict[str, None] = {}
        symmetric = done = 0
        while done < share:
            first, second = generator.choice(items).reference, generator.choice(items).reference
            if first.gold.strip() == second.gold.strip():
                continue
            done += 1
            there, back = (
                grader.grade(f"\\boxed{{{answer.gold}}}", _question_free(gold))
                for answer, gold in ((first, second), (second, first))
            )
            symmetric += there.score == back.score
            if there.score or back.score:
                accepted[f"{_short(first.gold)} | {_short(second.gold)}"] = None
        records.append(CrossRejection(task=task, pairs=done, symmetric=symmetric, accepted=tuple(accepted)))
    return records


def _question_free(reference: Reference) -> Reference:
    """Without the question: the two items ask different ones, and a rule may read it."""
    return Reference(gold=reference.gold, options=reference.options)


def case_agreement(cases_dir: Path, *, benchmarks: Iterable[str] = ("gsm8k", "math", "mcq")) -> list[Agreement]:
    """Our verdicts on the graded answers collected upstream (``grader_cases.jsonl``), by source."""
    graders = {
        "gsm8k": get_grader("number", style="gsm8k"),
        "math": get_grader("expression", style="math"),
        "mcq": get_grader("choice"),
    }
    wanted = set(benchmarks)
    groups: dict[tuple[str, str, str], list[tuple[dict[str, Any], Verdict]]] = {}
    for line in (cases_dir / "grader_cases.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["benchmark"] not in wanted or case["benchmark"] not in graders:
            continue
        reference = Reference(gold=case["gold"] if isinstance(case["gold"], str) else json.dumps(case["gold"]))
        verdict = graders[case["benchmark"]].grade(str(case["response_or_pred"]), reference)
        source = str(case["source"]).partition("#")[0]
        groups.setdefault((case["benchmark"], source, case["semantics"]), []).append((case, verdict))
    records = []
    for (benchmark, source, semantics), graded in groups.items():
        disagreements = tuple(
            Disagreement(
                source=case["source"],
                gold=str(case["gold"]),
                answer=verdict.answer,
                expected=case["expected"],
                score=verdict.score,
                explanation=explain(case, verdict),
            )
            for case, verdict in graded
            if bool(verdict.score) != case["expected"]
        )
        records.append(
            Agreement(
                benchmark=benchmark,
                source=source,
                semantics=semantics,
                total=len(graded),
                right=len(graded) - len(disagreements),
                disagreements=disagreements,
            )
        )
    return records


@dataclass(frozen=True, kw_only=True)
class RuleAgreement:
    """One rule's verdicts on the real model outputs of one benchmark, beside those their authors published."""

    benchmark: str
    rule: str
    agree: int
    total: int


def rule_agreement(cases_dir: Path) -> list[RuleAgreement]:
    """The official rule and the published ones on every real output that came with a verdict."""
    counts: dict[tuple[str, str], list[int]] = {}
    for line in (cases_dir / "grader_cases.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if not case.get("real_output") or case["benchmark"] not in ("gsm8k", "math"):
            continue
        reference = Reference(gold=case["gold"])
        # The outputs were written after a worked prompt (GSM8K) and in zero-shot boxed form (MATH).
        shots = 8 if case["benchmark"] == "gsm8k" else 0
        for rule in get_args(GradingMode):
            verdict = grader_for(case["benchmark"], rule, num_few_shot=shots).grade(case["response_or_pred"], reference)
            counted = counts.setdefault((case["benchmark"], rule), [0, 0])
            counted[0] += bool(verdict.score) == case["expected"]
            counted[1] += 1
    return [
        RuleAgreement(benchmark=benchmark, rule=rule, agree=agree, total=total)
        for (benchmark, rule), (agree, total) in counts.items()
    ]


def explain(case: dict[str, Any], verdict: Verdict) -> str:
    """Why our verdict on a collected case is not the collected one."""
    gold, answer, response = str(case["gold"]), verdict.answer or "", str(case["response_or_pred"])
    if verdict.is_error:
        return "the gold is not an answer of this kind"
    if case["benchmark"] == "mcq":
        return "no explicit statement: a letter in running text is not read"
    if verdict.reason == "no_answer":
        return "stated outside a box, Minerva's sentence and a bare answer: free text is not searched"
    if verdict.reason == "too_long":
        return "beyond the length limit"
    if verdict.score:
        if "," in gold and "(" not in gold:
            return "a list of values has no order here; upstream compares the text"
        return "equal in value; upstream compares the form"
    if not isinstance(case["gold"], str):
        return "upstream takes a list of alternative golds"
    if _is_prose(gold):
        return "upstream searches its gold for the answer as well; ours is the answer alone"
    if max(response.count("\\boxed"), response.count("$") // 2) > 1:
        return "upstream joins several boxes or formulas into one answer; ours is the last box"
    if "%" in gold + answer:
        return "a percent sign is part of the value where one side has it"
    if "=" in gold + answer or ":" in gold:
        return "upstream drops what stands before = or :, whatever it is"
    if "." in gold + answer or "approx" in answer:
        return "upstream rounds to a number of digits; ours is exact"
    return "upstream's rule is wider than equality of form or exact value"


def _is_prose(text: str) -> bool:
    return "\\boxed" in text or len([word for word in text.split() if word.isalpha() and len(word) > 1]) > 2


def _short(text: str | None, width: int = 48) -> str:
    if text is None:
        return "no answer"
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _code(text: str | None) -> str:
    return "`" + _short(text).replace("`", "'").replace("|", "\\|") + "`"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything the page states."""

    golds: Sequence[Counted]
    solutions: Sequence[Counted]
    references: Sequence[Counted]
    training: Sequence[TrainingRows]
    crossed: Sequence[CrossRejection]
    agreements: Sequence[Agreement]
    rules: Sequence[RuleAgreement]
    programs: Programs
    suites: Sequence[Suite]


def render(evidence: Evidence) -> str:
    """The page, in Markdown."""
    golds, solutions, crossed, rules = evidence.golds, evidence.solutions, evidence.crossed, evidence.rules
    lines = [
        "# What the graders accept and reject",
        "",
        "Made by `make grading-report DATA=… CASES=…` from the benchmarks' own files. One grader a kind of answer is",
        "reward, metric and vote key at once, so these figures hold for training as well.",
        "",
        *_summary(golds, solutions, crossed, rules),
        "",
        "## Golds accepted",
        "",
        "Each gold as the data set prints it, as a response: bare, in dollars, boxed, and in the sentence of the",
        "benchmark's few-shot prompt.",
        "",
        "| benchmark, split | " + " | ".join(FORMS) + " |",
        "| --- |" + " --- |" * len(FORMS),
    ]
    by_split: dict[str, list[Counted]] = {}
    for record in golds:
        by_split.setdefault(record.name.rpartition("/")[0], []).append(record)
    for name, records in by_split.items():
        lines.append(f"| {name} | " + " | ".join(f"{r.accepted:,} / {r.total:,}" for r in records) + " |")
    lines += _others(golds)
    lines += ["", "The published rules, as the modes `deepseek` and `lm_eval` reproduce them, on the same golds:", ""]
    lines += ["| benchmark, rule | accepted |", "| --- | --- |"]
    lines += [f"| {r.name} | {r.accepted:,} / {r.total:,} |" for r in evidence.references]
    lines += ["", "Rows of the training files, and those left out:", ""]
    lines += ["| split | used | left out: the test split asks the same | left out: no readable gold |"]
    lines += ["| --- | --- | --- | --- |"]
    lines += [f"| {r.name} | {r.used:,} | {r.asked_by_test:,} | {r.without_gold:,} |" for r in evidence.training]
    lines += ["", "## Reference solutions accepted", "", "| benchmark, split | accepted |", "| --- | --- |"]
    lines += [f"| {r.name.rpartition('/')[0]} | {r.accepted:,} / {r.total:,} |" for r in solutions]
    lines += _others(solutions)
    lines += [
        "",
        "## Other golds rejected",
        "",
        "Seeded pairs of items whose golds are spelled differently, each gold graded against the other, both ways.",
        "",
        "| benchmark | pairs | same verdict both ways | graded equal |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {r.task} | {r.pairs:,} | {r.symmetric:,} | {len(r.accepted):,} |" for r in crossed]
    for cross in crossed:
        if cross.accepted:
            lines += ["", f"{cross.task}, graded equal: " + "; ".join(map(_code, cross.accepted)) + "."]
    lines += [
        "",
        "Each accepted pair is two spellings of one value: a name before `=`, a unit, a sign, a separator.",
        "",
        "## Agreement with verdicts of others",
        "",
        "Real model outputs that were published with a verdict, graded by each rule:",
        "",
        "| benchmark | " + " | ".join(get_args(GradingMode)) + " |",
        "| --- |" + " --- |" * len(get_args(GradingMode)),
    ]
    for benchmark in dict.fromkeys(r.benchmark for r in rules):
        cells = [f"{r.agree:,} / {r.total:,}" for r in rules if r.benchmark == benchmark]
        lines.append(f"| {benchmark} | {' | '.join(cells)} |")
    lines += [
        "",
        "`deepseek` loses answers with a thousands comma and accepts answers 100 times too large or too small;",
        "`lm_eval` reads MATH answers in Minerva's closing sentence alone, and these outputs end in a box.",
        "",
        "By source. The test suites of other graders are written for their own extraction: most search free text,",
        "where ours reads a box, a final sentence, or a bare answer.",
        "",
        "| benchmark | source | their rule | agree |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r.benchmark} | {r.source} | {r.semantics.replace('|', '/')} | {r.right:,} / {r.total:,} |"
        for r in evidence.agreements
    ]
    lines += render_programs(evidence.programs, evidence.suites)
    listed = [d for record in evidence.agreements for d in record.disagreements]
    if listed:
        lines += [
            "",
            "## Every disagreement",
            "",
            "Theirs and ours: 1 accepts, 0 rejects.",
            "",
            "| source | gold | our answer | theirs | ours | why |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += map(_row, listed)
    return "\n".join(lines) + "\n"


def _summary(
    golds: Sequence[Counted],
    solutions: Sequence[Counted],
    crossed: Sequence[CrossRejection],
    rules: Sequence[RuleAgreement],
) -> list[str]:
    def share(records: Sequence[Counted]) -> str:
        return f"{sum(r.accepted for r in records):,} of {sum(r.total for r in records):,}"

    ours = [rule for rule in rules if rule.rule == "official"]
    pairs, equal = sum(c.pairs for c in crossed), sum(len(c.accepted) for c in crossed)
    return [
        f"- Golds accepted, every form of every set: {share(golds)}.",
        f"- Reference solutions accepted: {share(solutions)}.",
        f"- Golds of other items graded equal: {equal:,} spellings in {pairs:,} pairs, each one value; the verdict is",
        f"  the same both ways in {sum(c.symmetric for c in crossed):,} of {pairs:,}.",
        f"- Real outputs graded as published: {sum(r.agree for r in ours):,} of {sum(r.total for r in ours):,}.",
    ]


def _row(found: Disagreement) -> str:
    gold = "free text" if _is_prose(found.gold) else _code(found.gold)
    cells = (found.source.replace("|", "/"), gold, _code(found.answer), int(found.expected), f"{found.score:g}")
    return f"| {' | '.join(map(str, cells))} | {found.explanation} |"


def _others(records: Sequence[Counted]) -> list[str]:
    lines = []
    if others := [other for record in records for other in record.others]:
        lines += ["", "Not accepted: " + "; ".join(map(_code, others)) + "."]
    if missing := dict.fromkeys(name for record in records for name in record.without_gold):
        lines += ["", f"Without a gold in the data, counted nowhere: {', '.join(missing)}."]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write the page."""
    parser = argparse.ArgumentParser(prog="python -m agpo_bench.grading.evidence", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of benchmark files")
    parser.add_argument("--cases", type=Path, required=True, help="folder with grader_cases.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="Markdown page to write")
    parser.add_argument("--limit", type=int, help="only the first items of each split")
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS, help="pairs of golds to cross")
    parser.add_argument("--without-suites", action="store_true", help="do not run the hostile test files")
    given = parser.parse_args(arguments)
    page = render(
        Evidence(
            golds=gold_acceptance(given.data, limit=given.limit),
            solutions=solution_acceptance(given.data, limit=given.limit),
            references=reference_acceptance(given.data, limit=given.limit),
            training=training_rows(given.data),
            crossed=cross_rejection(given.data, num_pairs=given.pairs),
            agreements=case_agreement(given.cases),
            rules=rule_agreement(given.cases),
            programs=program_evidence(given.data, limit=given.limit),
            suites=() if given.without_suites else run_suites(),
        )
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    partial = given.out.with_suffix(given.out.suffix + ".partial")
    partial.write_text(page, encoding="utf-8")
    partial.replace(given.out)


if __name__ == "__main__":
    main()
