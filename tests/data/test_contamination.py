"""De-duplication: what is the same text, what is a copy, what is only alike. Expected values are worked by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agpo_bench.data.contamination.batch import Batch, Text, TrainingTexts
from agpo_bench.data.contamination.check import REMOVALS, check_texts, duplicates
from agpo_bench.data.contamination.gather import file_texts
from agpo_bench.data.contamination.index import SCREEN_TOKENS, EvaluationIndex, Settings
from agpo_bench.data.contamination.planted import KINDS, NEGATIVES, plant, score
from agpo_bench.data.contamination.spelling import tokenise
from agpo_bench.data.contamination.table import HashTable, ascending

STORY = (
    "A baker in Lund has 48 trays and fills each with 25 rolls before sunrise. By noon the market stall has sold "
    "two thirds of them and the rest go to a school kitchen. How many rolls does the kitchen get?"
)
OTHER = (
    "Every lighthouse keeper on the northern coast writes 14 letters in winter and 9 in summer. After 6 years one of "
    "them counts the envelopes that came back unopened and finds 31. How many letters arrived?"
)


def text(question: str, *, text_id: str = "train/0", options: tuple[str, ...] = ()) -> Text:
    return Text(text_id=text_id, question=question, options=options)


def items(*questions: str) -> list[Text]:
    return [text(question, text_id=f"task/test/{number}") for number, question in enumerate(questions)]


def tokens(one: str) -> list[int]:
    return tokenise([one]).hash_K.tolist()


def stages(training: Text, *questions: str) -> list[tuple[str, str]]:
    report = check_texts([training, text(OTHER.replace("14", "15"), text_id="train/1")], items(*questions))
    return [(found.stage, found.eval_id) for found in report.findings if found.train_id == "train/0"]


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (r"Find $\dfrac{1}{2}+x^{2}$.", r"find \(\frac12 + x^2\)"),
        (r"$10,\!000 \cdot 3.5$", r"10{,}000 \times 3.5"),
        ("求 $x$ 的值，3 个", "求x的值,3个"),
        (r"\left(3\right) \leq ½", "(3)≤1/2"),
        ("ｘ² ＋ １", "x^2+1"),
        ("90°", r"90^{\circ}"),
        (r"a\\\frac{1}{3}", r"a \tfrac13"),
        ("a well-known fact", "A well known fact!"),
        (r"\text{if } x \geq 2\pi", "if x ≥ 2π"),
    ],
)
def test_spellings_of_one_text_have_the_same_tokens(one: str, same: str) -> None:
    assert tokens(one) == tokens(same)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x+1", "x-1"),
        ("x + 1", "x 1"),
        ("a-b", "ab"),
        ("a-b", "a b"),
        ("1 2", "12"),
        (r"\frac{1}{23}", r"\frac{12}{3}"),
        ("3.5", "35"),
        ("3.5", "3 5"),
        ("1,200", "1,20"),
        (r"x \le 1", r"x < 1"),
        (r"\sin x", r"\cos x"),
        ("5*3", "5/3"),
    ],
)
def test_texts_that_ask_different_things_differ(one: str, other: str) -> None:
    assert tokens(one) != tokens(other)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(alphabet="ab1 2.,-+\\{}$()^中文，é\n\x00!", max_size=12), max_size=6))
def test_tokens_do_not_depend_on_what_shares_the_batch(texts: list[str]) -> None:
    batch = tokenise(texts)
    for number, one in enumerate(texts):
        assert batch.hash_K[batch.first[number] : batch.first[number + 1]].tolist() == tokens(one)


def test_hostile_texts_are_read() -> None:
    assert tokens("") == []
    assert tokens("\\") == []
    assert tokens("\ud800 lone") == tokenise(["\ud800 lone", "x"]).hash_K[:2].tolist()
    assert len(tokens("(" * 50_000)) == 50_000


def test_an_equal_text_is_verbatim_and_another_typesetting_is_respelt() -> None:
    assert stages(text(STORY.replace(" ", "  ")), STORY) == [("verbatim", "task/test/0")]
    assert stages(text(STORY.upper()), STORY) == [("respelt", "task/test/0")]


def test_options_count_in_any_order() -> None:
    item = text("Which is prime?", text_id="task/test/0", options=("4", "6", "7", "9"))
    same = text("Which is prime?", options=("9", "7", "4", "6"))
    others = text("Which is prime?", text_id="train/1", options=("8", "10", "11", "12"))
    report = check_texts([same, others], [item])
    assert [(found.train_id, found.stage) for found in report.findings if found.stage in REMOVALS] == [
        ("train/0", "verbatim")
    ]


def test_a_copy_inside_a_page_is_found_and_its_place_is_told() -> None:
    page = f"{OTHER} {OTHER.upper()}\n\n{STORY}\n\n" + " ".join(f"word{n} filler{n}" for n in range(300))
    (found,) = [
        one for one in check_texts([text(page)], items(STORY, "How many is 2+2?")).findings if one.stage == "near"
    ]
    assert found.eval_id == "task/test/0"
    assert found.score == 1.0
    longest = found.spans[0]
    assert longest.length == len(tokens(STORY))
    assert longest.train_start == 2 * len(tokens(OTHER))
    assert longest.words == STORY.lower()[:160]


def test_renamed_people_are_seen_through_and_other_numbers_are_a_variant() -> None:
    story = (
        "Griffin had 24 fries, but Kyle took 5 of them. Billy took twice as many as Kyle. Ginger gave Griffin a "
        "handful of her fries. How many did Billy leave for Griffin and Ginger?"
    )
    renamed = story
    for old, new in (("Griffin", "Amara"), ("Kyle", "Bruno"), ("Billy", "Chidi"), ("Ginger", "Dalia")):
        renamed = renamed.replace(old, new)
    assert stages(text(renamed), story) == [("near", "task/test/0")]
    assert stages(text(story.replace("24", "31")), story) == [("variant", "task/test/0")]


@pytest.mark.parametrize(
    ("before", "after"),
    [("sold", "not sold"), ("two thirds", "three fifths"), ("25 rolls", "26 rolls")],
)
def test_a_text_that_asks_another_thing_is_not_removed(before: str, after: str) -> None:
    assert [stage for stage, _ in stages(text(STORY.replace(before, after)), STORY)] == ["variant"]


def test_a_changed_sign_is_not_a_copy() -> None:
    one = "Let f be the cubic with f(x) = 3x^3 + 7x - 11 on the line. At which points does its graph meet the axis?"
    assert all(stage not in REMOVALS for stage, _ in stages(text(one.replace("+ 7x", "- 7x")), one))


def test_short_texts_are_compared_exactly_only() -> None:
    assert stages(text("what is 2+2"), "What is $2+2$?") == [("respelt", "task/test/0")]
    assert stages(text("What is 2+2 in base 3? Explain to a child."), "What is $2+2$?") == []


def test_words_of_a_template_do_not_make_a_copy() -> None:
    template = "What is the smallest positive integer that leaves a remainder of {} when divided by {} and by {}?"
    rng = random.Random(0)
    drawn = [template.format(*rng.sample(range(2, 500), 3)) for _ in range(300)]
    report = check_texts([text(one, text_id=f"train/{n}") for n, one in enumerate(drawn[:150])], items(*drawn[150:]))
    assert report.num_removed == 0
    assert report.counts["variant"].training_texts == 150


def test_repeated_items_are_told() -> None:
    found = duplicates(items(STORY, OTHER, STORY + " ", OTHER.upper()))
    assert [(one.train_id, one.eval_id, one.stage) for one in found] == [
        ("task/test/2", "task/test/0", "verbatim"),
        ("task/test/3", "task/test/1", "respelt"),
    ]


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to compare: training texts is empty"):
        check_texts([], items(STORY))


WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "l", "rk", "st", "m")]
PEOPLE = ["Alva", "Bengt", "Cilla", "Doris", "Edvin", "Frida", "Gunnar", "Hedda"]


def story(rng: random.Random) -> str:
    """A word problem of made-up words: nothing of it is in any data set."""
    people = rng.sample(PEOPLE, 2)
    sentences = []
    for _ in range(rng.randint(3, 5)):
        words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(6, 10)))
        sentences.append(f"the {words} of {rng.choice(people)} has {rng.randint(10, 99)} {rng.choice(WORDS)}")
    formula = rf"$\frac{{{rng.randint(2, 9)}}}{{x}} + ({rng.randint(2, 9)} - x)^2$"
    return f"{'. The '.join(sentences).capitalize()}. What does {people[0]} get for {formula}?"


def chinese_story(rng: random.Random) -> str:
    def words(count: int) -> str:
        return "".join(rng.choice("苹果书笔桌椅花树鱼鸟船车山水火土金木灯门窗米茶布纸墨") for _ in range(count))

    has, gives = rng.randint(10, 99), rng.randint(2, 9)
    return f"小明在{words(6)}里有{has}个{words(4)}，送给{words(5)}{gives}个{words(5)}，还剩多少？"


@pytest.mark.slow
def test_planted_copies_are_found_and_their_like_are_left() -> None:
    """2,000 copies of nine kinds and 20,000 texts that are none, from a seeded generator."""
    rng = random.Random(1)
    evaluation = [text(story(rng), text_id=f"a/test/{n}") for n in range(300)]
    evaluation += [text(chinese_story(rng), text_id=f"b/test/{n}") for n in range(300)]
    evaluation += [
        text(story(rng), text_id=f"c/test/{n}", options=tuple(str(rng.randint(10, 99)) for _ in range(4)))
        for n in range(300)
    ]
    corpus = [text(story(rng) if n % 2 else chinese_story(rng), text_id=f"train/{n}") for n in range(10_000)]
    planted = plant(evaluation, corpus, per_kind=260, num_negatives=20_000, seed=2)
    assert sum(one.source_id is not None for one in planted) >= 2000
    assert sum(one.source_id is None for one in planted) >= 20_000
    report = check_texts([one.text for one in planted], evaluation, max_variants=10**6)
    scores = score(planted, report)
    for kind in KINDS:
        assert scores[kind].num == 260
        assert scores[kind].num_found >= 0.97 * scores[kind].num, kind
    for kind in NEGATIVES:
        assert scores[kind].num_found <= 0.002 * scores[kind].num, kind


def test_the_same_seed_plants_the_same_copies() -> None:
    rng = random.Random(3)
    evaluation = items(*(story(rng) for _ in range(20)))
    corpus = [text(story(rng), text_id=f"train/{n}") for n in range(40)]
    first = plant(evaluation, corpus, per_kind=5, num_negatives=20, seed=7)
    assert first == plant(evaluation, corpus, per_kind=5, num_negatives=20, seed=7)
    assert first != plant(evaluation, corpus, per_kind=5, num_negatives=20, seed=8)


def test_training_files_of_common_shapes_are_read(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": STORY}, {"role": "assistant", "content": "400"}]}
    rows = [{"problem": OTHER, "solution": "1"}, {"prompt": "Hi", "response": STORY}, chat]
    (tmp_path / "train_a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "test.jsonl").write_text(json.dumps({"problem": STORY}) + "\n", encoding="utf-8")
    found = file_texts(tmp_path)
    assert [one.text_id for one in found] == [
        "train_a/0",
        "train_a/1",
        "train_a/1/response",
        "train_a/2/turn-0",
        "train_a/2/turn-1",
    ]
    report = check_texts(found, items(STORY))
    assert report.removed_ids == {"train_a/1/response", "train_a/2/turn-0"}


def test_a_training_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no training data in"):
        file_texts(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"holds no \.jsonl"):
        file_texts(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"problem": "x"}\n{"problem"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"a.jsonl, line 2: not JSON"):
        file_texts(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"picture": 1}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="no row has a text; a column must be named problem"):
        file_texts(tmp_path)


def test_weights_are_the_same_whatever_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from agpo_bench.data.contamination import batch, index

    rng = random.Random(5)
    evaluation = items(*(story(rng) for _ in range(30)), *(chinese_story(rng) for _ in range(30)))
    training = [text(story(rng) if n % 3 else chinese_story(rng), text_id=f"train/{n}") for n in range(50)]
    training[7] = text(evaluation[3].question.upper(), text_id="train/7")
    training[12] = text(evaluation[40].question, text_id="train/12")
    whole = check_texts(training, evaluation)
    sampled = check_texts(training, evaluation, settings=index.Settings(background=20))
    assert sampled.removed_ids == whole.removed_ids == {"train/7", "train/12"}
    for kept in (batch.KEPT_CHARACTERS, 2000, 0):
        monkeypatch.setattr(batch, "BATCH_CHARACTERS", 900)
        monkeypatch.setattr(batch, "KEPT_CHARACTERS", kept)
        assert check_texts(training, evaluation) == whole
        assert check_texts(training, evaluation, settings=index.Settings(background=20)) == sampled
    reading = TrainingTexts(training, max_sample=20)
    assert np.all(index.EvaluationIndex(evaluation, training=reading).weight_K <= 1)
    assert sorted(number for numbers, _ in reading.read() for number in numbers.tolist()) == list(range(50))


def test_long_tokens_are_told_apart_by_any_of_their_characters() -> None:
    """Tokens are hashed eight characters at a time, and differently past the eighth eight."""
    for length in (1, 7, 8, 9, 63, 64, 65, 71, 72, 73, 1000):
        word = "b" * length
        changed = {tokens(word[:at] + "c" + word[at + 1 :])[0] for at in range(length)}
        assert len(changed | set(tokens(word))) == length + 1
        # The same token beside Chinese, which is stored in another width, and one that differs above the first byte.
        assert tokens(word + " 中")[0] == tokens(word)[0]
        assert tokens(word + "ȁ") != tokens(word + "ā") != tokens(word)


def test_two_changes_in_one_long_token_do_not_cancel() -> None:
    seen = {tokens("b" * 7 + one + "b" * 7 + other)[0] for one in map(chr, range(97, 123)) for other in "abcdefghij"}
    assert len(seen) == 26 * 10


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5).map(lambda low: (7 << 32) + low), max_size=60),
    st.lists(st.integers(0, 2**64 - 1), max_size=20),
)
def test_a_table_finds_its_hashes_and_no_others(members: list[int], others: list[int]) -> None:
    """Among them hashes that agree in their leading half, where the order is decided by the other."""
    table = HashTable(np.array(members, dtype=np.uint64))
    in_order = sorted(set(members))
    assert len(table) == len(in_order)
    assert table.numbers.tolist() == [in_order.index(one) for one in members]
    assert [members[at] for at in table.order.tolist()] == sorted(members)
    queries = [*others, *members, 2**64 - 1, 0]
    position, number = table.find(np.array(queries, dtype=np.uint64))
    assert position.tolist() == [at for at, one in enumerate(queries) if one in in_order]
    assert [in_order[at] for at in number.tolist()] == [one for one in queries if one in in_order]


@given(st.lists(st.integers(0, 2**40 - 1), max_size=50))
def test_numbers_are_ordered_and_equal_ones_stay(values: list[int]) -> None:
    expected = sorted(range(len(values)), key=lambda at: values[at])
    assert ascending(np.array(values, dtype=np.int64), num_bits=40).tolist() == expected


def test_the_screen_sees_every_pair_that_shares_enough() -> None:
    """Beside the definition, counted pair by pair with sets."""
    rng = random.Random(11)
    stories = [story(rng).split(" ") for _ in range(40)]

    def mixed() -> str:
        parts = [rng.choice(stories)[: rng.randint(1, 40)] for _ in range(rng.randint(1, 4))]
        return " ".join(word for part in parts for word in part)

    evaluation = items(*(mixed() for _ in range(120)))
    batch = Batch([text(mixed(), text_id=f"train/{n}") for n in range(200)])
    rules = Settings(max_sharing=9, max_alignments=5)
    index = EvaluationIndex(evaluation, settings=rules)

    def grams(hashes: list[int]) -> set[tuple[int, ...]]:
        return {tuple(hashes[at : at + SCREEN_TOKENS]) for at in range(len(hashes) - SCREEN_TOKENS + 1)}

    screened = [number for number in range(120) if index.information[number] >= rules.min_information]
    of_item = {number: grams(tokens(evaluation[number].question)) for number in screened}
    sharing = {gram: sum(gram in held for held in of_item.values()) for held in of_item.values() for gram in held}
    of_item = {number: {gram for gram in held if sharing[gram] <= 9} for number, held in of_item.items()}
    expected: list[tuple[int, int]] = []
    for at, one in enumerate(batch.texts):
        held = grams(tokens(one.question))
        shares = sorted((-len(own & held) / max(1, len(own)), number) for number, own in of_item.items())
        expected += [(at, number) for share, number in shares if -share >= 0.2 and share < 0][:5]
    assert len(expected) > 300
    pairs = index.candidates(batch)
    assert list(zip(pairs.train.tolist(), pairs.evaluation.tolist(), strict=True)) == expected
