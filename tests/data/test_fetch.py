"""Fetching from a mirror of the hub: files that the folder source reads, checksums, and continuing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agpo_bench.cli import app
from agpo_bench.data.benchmarks import load_task, open_source
from agpo_bench.data.fetch import fetch
from agpo_bench.data.sources import HubSource

ROWS = {
    "train": [{"question": f"What is {n}+1?", "answer": f"#### {n + 1}"} for n in range(40)],
    "test": [
        {"question": "What is 9*9?", "answer": "#### 81"},
        {"question": "Wie viel?\u2028Sag.", "answer": "#### 2"},
    ],
}


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    task = load_task("gsm8k")
    (folder / task.hub.dataset / "main").mkdir(parents=True)
    for split, rows in ROWS.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / task.hub.dataset / "main" / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    card = ["---", "configs:", "- config_name: main", "  data_files:"]
    card += [f"  - split: {split}\n    path: main/{split}.jsonl" for split in ROWS]
    (folder / task.hub.dataset / "README.md").write_text("\n".join([*card, "---", ""]), encoding="utf-8")
    return folder


def test_fetched_files_are_read_with_their_checksums(mirror: Path, tmp_path: Path) -> None:
    results = fetch(["gsm8k"], tmp_path / "data", source=HubSource(mirror=mirror))
    assert [(one.file, one.num_items, one.was_there, one.error) for one in results] == [
        ("gsm8k/train.jsonl", 40, False, ""),
        ("gsm8k/test.jsonl", 2, False, ""),
    ]
    source = open_source(tmp_path / "data")
    assert "checksums verified" in source.description
    assert [item.question for item in source.load(load_task("gsm8k"), "test").items] == [
        row["question"] for row in ROWS["test"]
    ]


def test_a_second_call_takes_only_what_is_missing_or_damaged(mirror: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    fetch(["gsm8k"], folder, source=HubSource(mirror=mirror))
    content = (folder / "gsm8k" / "test.jsonl").read_bytes()
    (folder / "gsm8k" / "test.jsonl").write_bytes(content[:-5])
    again = fetch(["gsm8k"], folder, source=HubSource(mirror=mirror))
    assert [one.was_there for one in again] == [True, False]
    assert (folder / "gsm8k" / "test.jsonl").read_bytes() == content


def test_what_cannot_be_had_is_told_and_the_rest_is_fetched(mirror: Path, tmp_path: Path) -> None:
    results = fetch(["math", "gsm8k"], tmp_path / "data", source=HubSource(mirror=mirror))
    assert [bool(one.error) for one in results] == [True, True, False, False]
    assert "connect to the hub" in results[0].error


def test_nothing_fetched_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing was fetched into .*connect to the hub"):
        fetch(["gsm8k"], tmp_path / "data", source=HubSource(mirror=tmp_path / "absent"))
    assert not (tmp_path / "data" / "gsm8k").exists()


def test_the_commands_fetch_list_and_show(mirror: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    run = CliRunner()
    fetched = run.invoke(app, ["data", "fetch", "--tasks", "gsm8k", "--out", folder, "--mirror", str(mirror)])
    assert fetched.exit_code == 0, fetched.output
    assert "2 of 2 files" in fetched.output
    listed = run.invoke(app, ["data", "list", "--data", folder]).output
    assert ["gsm8k", "train", "40"] in [line.split()[:3] for line in listed.splitlines()]
    shown = run.invoke(app, ["data", "show", "gsm8k/test/0", "--data", folder]).output
    assert "What is 9*9?" in shown
    assert "gold: 81" in shown
    assert "score 1, answer '81': correct" in shown
    wrong = run.invoke(app, ["data", "show", "gsm8k/test/0", "--data", folder, "--response", "#### 80"]).output
    assert "score 0, answer '80': wrong" in wrong


def test_an_item_that_is_not_there_is_refused() -> None:
    from agpo_bench.commands.data import show_item

    with pytest.raises(ValueError, match="not of the form task/split/row"):
        show_item(item_id="gsm8k", data="embedded", response=None)
    with pytest.raises(ValueError, match="gsm8k/test has no row 100000"):
        show_item(item_id="gsm8k/test/100000", data="embedded", response=None)
