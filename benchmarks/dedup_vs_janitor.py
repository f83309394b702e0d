"""De-duplication beside lm-eval's 13-gram janitor: seconds on the same texts, precision and recall on planted copies.

``--page FILE`` writes the project's page on contamination from the figures of one run, without any text of a data set.
``--million`` adds the run on 1,000,000 training texts.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import random
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measure import Comparison, Measurement

from agpo_bench.data.benchmarks import open_source, task_names
from agpo_bench.data.contamination.batch import Text
from agpo_bench.data.contamination.check import REMOVALS, STAGES, Report, check_texts
from agpo_bench.data.contamination.gather import evaluation_texts, split_texts
from agpo_bench.data.contamination.index import Settings
from agpo_bench.data.contamination.planted import KINDS, NEGATIVES, Planted, plant, score
from agpo_bench.data.contamination.survey import survey
from agpo_bench.files import write_whole
from agpo_bench.threads import limit_threads

with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    from lm_eval.decontamination.janitor import Janitor

PER_KIND = 400
NUM_COMPARED = 50_000
NUM_NEGATIVES = 20_000
SEED = 0

Figures = dict[str, float]


class FlaggingJanitor(Janitor):
    """The janitor asked only whether a text has a contaminated 13-gram; its cutting of texts is left out."""

    def _split_chunks(self, dirty_string: str, dirty_parts: Iterator[tuple]) -> list[str]:
        return [dirty_string] if next(iter(dirty_parts), None) is not None else []


def janitor_of(items: Sequence[Text]) -> FlaggingJanitor:
    """A janitor that knows the items."""
    janitor = FlaggingJanitor()
    for item in items:
        janitor.register_contaminant_python(full(item))
    return janitor


def full(text: Text) -> str:
    """Question and options as one text, which is all the janitor takes."""
    return "\n".join([text.question, *text.options])


def corpus_of(data: str) -> list[Text]:
    """Every training text of a source."""
    source = open_source(data)
    return [
        text
        for task in ("gsm8k", "math", "codecontests", "cmath")
        if "train" in source.splits(_spec(task))
        for text in split_texts(source, task, "train")
    ]


def _spec(task: str):
    from agpo_bench.data.benchmarks import load_task

    return load_task(task)


def many_texts(corpus: Sequence[Text], count: int) -> list[Text]:
    """``count`` different texts with the corpus' words and lengths: halves of two texts, and their numbers changed."""
    rng = random.Random(SEED)
    made = []
    for number in range(count):
        first, second = rng.choice(corpus).question, rng.choice(corpus).question
        question = first[: len(first) // 2] + second[len(second) // 2 :]
        made.append(Text(text_id=f"made/{number}", question=question.replace("2", str(rng.randint(2, 99)))))
    return made


def speed(corpus: Sequence[Text], items: Sequence[Text], count: int, *, rounds: int, with_janitor: bool) -> Figures:
    """Seconds and memory of both on the same texts, turn by turn; each side reads the test items anew every time.

    Seconds are the median of the rounds, and the ratio is the median of the rounds' ratios of processor time: wall time
    hangs on what else the machine does.
    """
    texts = many_texts(corpus, count)
    figures: Figures = {"texts": count, "characters": sum(len(text.question) for text in texts)}
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        # As before a training run: what must go, and variants that differ in numbers alone. The janitor has no
        # variants.
        with timed(times, "ours"):
            figures["removed"] = check_texts(texts, items, align_variants=False).num_removed
        if with_janitor:
            with timed(times, "janitor"):
                janitor = janitor_of(items)
                figures["janitor_flagged"] = sum(bool(janitor.clean_python(full(text))) for text in texts)
    figures |= {name: statistics.median(seconds) for name, seconds in times.items()}
    if with_janitor:
        for clock in ("cpu", "wall"):
            ratios = [a / b for a, b in zip(times[f"janitor_{clock}"], times[f"ours_{clock}"], strict=True)]
            figures |= {f"{clock}_ratio": statistics.median(ratios), f"least_{clock}_ratio": min(ratios)}
    figures["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return figures


@contextlib.contextmanager
def timed(times: dict[str, list[float]], side: str) -> Iterator[None]:
    """Add the wall and the processor seconds of a block."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    times.setdefault(f"{side}_wall", []).append(time.perf_counter() - wall)
    times.setdefault(f"{side}_cpu", []).append(time.process_time() - cpu)


def planted_table(items: Sequence[Text], corpus: Sequence[Text]) -> list[str]:
    """Precision and recall of both by kind of copy."""
    planted: list[Planted] = plant(items, corpus, per_kind=PER_KIND, num_negatives=NUM_NEGATIVES, seed=SEED)
    report = check_texts([one.text for one in planted], items, max_variants=10**7)
    ours = score(planted, report)
    janitor = janitor_of(items)
    flagged = {one.text.text_id for one in planted if janitor.clean_python(full(one.text))}
    rows = ["| planted | texts | ours | 13-gram janitor |", "| --- | ---: | ---: | ---: |"]
    for kind in (*KINDS, *NEGATIVES):
        of_kind = [one for one in planted if one.kind == kind]
        theirs = sum(one.text.text_id in flagged for one in of_kind)
        found = ours[kind]
        share = f"{found.num_found / found.num:.1%}", f"{theirs / len(of_kind):.1%}"
        rows.append(f"| {kind} | {found.num:,} | {found.num_found:,} ({share[0]}) | {theirs:,} ({share[1]}) |")
    copies = [kind for kind in KINDS if kind != "numbers"]
    right = sum(ours[kind].num_found for kind in copies)
    wrong = sum(ours[kind].num_found for kind in NEGATIVES)
    their_right = sum(one.text.text_id in flagged for one in planted if one.kind in copies)
    their_wrong = sum(one.text.text_id in flagged for one in planted if one.kind in NEGATIVES)
    total = sum(ours[kind].num for kind in copies)
    rows.append(
        f"| **recall** (all but numbers) | {total:,} | {right / total:.1%} | {their_right / total:.1%} |\n"
        f"| **precision** | | {right / (right + wrong):.1%} | {their_right / max(1, their_right + their_wrong):.1%} |"
    )
    return rows


def sample_rows(report: Report, training: Sequence[Text], items: Sequence[Text]) -> list[str]:
    """A seeded sample of 100 removals and of 100 near misses by row number and score."""
    from agpo_bench.data.contamination.batch import TrainingTexts
    from agpo_bench.data.contamination.compare import compare
    from agpo_bench.data.contamination.index import EvaluationIndex

    rng = random.Random(SEED)
    removed = [one for one in report.findings if one.stage in REMOVALS]
    chosen = sorted(rng.sample(range(len(removed)), min(100, len(removed))))
    rows = ["| training row | test row | stage | score |", "| --- | --- | --- | ---: |"]
    rows += [f"| {o.train_id} | {o.eval_id} | {o.stage} | {o.score:.2f} |" for o in (removed[i] for i in chosen)]
    reading = TrainingTexts(training, max_sample=Settings().background)
    index = EvaluationIndex(items, training=reading)
    taken = {(one.train_id, one.eval_id) for one in removed}
    misses = []
    for numbers, batch in reading.read():
        pairs = index.candidates(batch)
        for text, item in zip(pairs.train.tolist(), pairs.evaluation.tolist(), strict=True):
            ids = batch.texts[text].text_id, index.items[item].text_id
            if ids in taken:
                continue
            seen = compare(index, item, batch, text)
            if seen.coverage >= 0.7:
                why = "coverage" if seen.same_facts else "other numbers, signs or thing asked"
                misses.append((int(numbers[text]), *ids, seen.coverage, why))
    misses.sort(key=lambda miss: miss[0])
    chosen = sorted(rng.sample(range(len(misses)), min(100, len(misses))))
    rows += ["", f"Near misses: {len(misses):,} pairs of coverage 0.7 or more that are not removals.", ""]
    rows += ["| training row | test row | coverage | kept because of |", "| --- | --- | ---: | --- |"]
    rows += [f"| {a} | {b} | {c:.2f} | {why} |" for _, a, b, c, why in (misses[i] for i in chosen)]
    return rows


def page(data: str, *, judgement: str) -> str:
    """The page of figures."""
    source = open_source(data)
    items, _ = evaluation_texts(source, task_names())
    training = split_texts(source, "math", "train")
    report = check_texts(training, items)
    found = survey(source, items)
    settings = Settings()
    lines = [
        "# Contamination: what is compared, what is removed, and how well it works",
        "",
        "Made by `python benchmarks/dedup_vs_janitor.py --data DIR --page docs/contamination.md`; every figure is of "
        "that run, and the page holds no text of any data set.",
        "",
        (Path(__file__).parent / "contamination_method.md")
        .read_text(encoding="utf-8")
        .strip()
        .format(**{name: getattr(settings, name) for name in Settings.__dataclass_fields__}),
        "",
        "## Published benchmarks",
        "",
        f"Training split of MATH against all test items: {report.summary}. Near copies are "
        f"{report.counts['near'].training_texts / report.num_training:.2%} of the split.",
        "",
        "Compared are the problems that can be judged: rows of the file less those without a readable gold. The loader "
        "trains on fewer: it also leaves out what its own test split asks verbatim, and what is held out as dev. "
        "(`agpo-bench data check --train FILE` compares every row, whether it can be judged or not.)",
        "",
        "| split against its own test items | rows | no readable gold | compared | "
        + " | ".join(STAGES)
        + " | left to train on |",
        "| --- | ---: | ---: | ---: |" + " ---: |" * (len(STAGES) + 1),
    ]
    for name, one in found.splits.items():
        task, _, split = name.partition("/")
        counts = " | ".join(f"{one.counts[stage].training_texts:,}" for stage in STAGES)
        loaded = source.load(_spec(task), split)
        rows = f"{one.num_training + loaded.num_unreadable:,} | {loaded.num_unreadable} | {one.num_training:,}"
        lines.append(f"| {name} | {rows} | {counts} | {f'{len(loaded.items):,}' if split == 'train' else '–'} |")
    lines += ["", "Test items that repeat an earlier one, up to white space (and up to typesetting):", ""]
    for task, repeats in found.repeated.items():
        verbatim = sum(one.stage == "verbatim" for one in repeats)
        if repeats:
            lines.append(f"- {task}: {verbatim} ({len(repeats)})")
    lines += ["", "Test items that a published few-shot prompt shows:", ""]
    for name, leaks in found.few_shot.items():
        if leaks:
            rows = sorted({int(one.eval_id.split("/")[2]) for one in leaks})
            lines.append(f"- {name}: rows {', '.join(map(str, rows))}")
    lines += ["", "## Planted copies", "", *planted_table(items, corpus_of(data))]
    lines += ["", "## A sample looked at", "", judgement.strip(), "", *sample_rows(report, training, items), ""]
    return "\n".join(lines)


def compare(args: argparse.Namespace) -> list[Comparison]:
    """50,000 texts made of the training problems in ``data``, both in this process, turn by turn.

    Nothing without ``data``: most embedded problems are shorter than the 13 words of a gram, so the janitor has nothing
    to do on them and finds nothing.
    """
    if not args.data:
        return []
    limit_threads(1)
    items, _ = evaluation_texts(open_source(args.data), task_names())
    figures = speed(corpus_of(args.data), items, NUM_COMPARED, rounds=args.repeats, with_janitor=True)
    ours, peer = (
        Measurement(
            tokens=NUM_COMPARED,
            cpu_seconds=figures[f"{side}_cpu"],
            wall_seconds=figures[f"{side}_wall"],
            peak_bytes=int(figures["peak_gib"] * 2**30),
        )
        for side in ("ours", "janitor")
    )
    name = f"{NUM_COMPARED:,} training texts checked, lm-eval's 13-gram janitor"
    return [Comparison(name=name, ours=[ours], peer=[peer], target=5.0, what="texts/s")]


def main() -> None:
    """Time both, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="embedded", help="embedded, or a directory of benchmark files")
    parser.add_argument("--texts", type=int, default=NUM_COMPARED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    limit_threads(1)
    if arguments.page is not None:
        judgement = (Path(__file__).parent / "contamination_sample.md").read_text(encoding="utf-8")
        write_whole(arguments.page, page(arguments.data, judgement=judgement))
        return
    items, _ = evaluation_texts(open_source(arguments.data), task_names())
    corpus = corpus_of(arguments.data)
    counts = [(arguments.texts, arguments.rounds, True), *([(1_000_000, 1, False)] if arguments.million else [])]
    for count, rounds, with_janitor in counts:
        for name, value in speed(corpus, items, count, rounds=rounds, with_janitor=with_janitor).items():
            print(f"{name}: {value:,.2f}")


if __name__ == "__main__":
    main()
