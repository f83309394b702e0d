"""The commands of docs/scaling.md: every one is parsed, those that need no GPU are run."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agpo_bench.cli import app
from agpo_bench.planning.items import GIB, PHASES
from agpo_bench.planning.shapes import find_shape
from tests.planning.test_plan import plan_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


def commands() -> list[list[str]]:
    """Arguments of agpo-bench in the page's code blocks and in its text."""
    text = PAGE.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    found = [line for line in lines if re.search(r"^agpo-bench |-m agpo_bench |--module agpo_bench ", line)]
    return [shlex.split(re.split(r"agpo[-_]bench ", line, maxsplit=1)[1], comments=True) for line in found]


def test_the_page_has_the_commands_of_a_whole_run() -> None:
    assert {words[0] for words in commands()} == {"plan", "train", "eval", "report"}


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_page_is_one_that_the_program_knows(words: list[str], tmp_path: Path) -> None:
    if words[0] == "plan":
        result = CliRunner().invoke(app, words)
    elif words[0] == "train":
        # The embedded problems stand for the data folder; the rest is checked as it is.
        words = [word for word in words if word not in ("--dry-run", "--resume")]
        given = ["embedded" if before == "--data" else word for before, word in zip(["", *words], words, strict=False)]
        given = [
            str(tmp_path) if before == "--out" else word for before, word in zip(["", *given], given, strict=False)
        ]
        machine = [] if "--gpus" in given else ["--gpus", "2", "--gpu-memory", "80"]
        result = CliRunner().invoke(app, [*given, "--dry-run", *machine])
        outcomes = dict(re.findall(r"^(?:ok|note|FAIL) +(\w+)[^:]*: ()", result.output, re.MULTILINE))
        assert {"config", "recipe", "data", "sizes", "model", "output", "memory"} <= set(outcomes)
        assert re.findall(r"^FAIL +(?!output)\w+", result.output, re.MULTILINE) == [], result.output  # a small disk
        return
    else:
        result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output


def test_the_page_states_the_arithmetic_of_the_14b_model() -> None:
    count = f"{find_shape('Qwen/Qwen2.5-14B').num_parameters:,}"
    text = PAGE.read_text(encoding="utf-8")
    assert f"{count} parameters × 12 B / 2 ranks = 82.53 GiB" in text
    assert "DOES NOT FIT" in text


def fits_rows() -> list[list[str]]:
    """Cells of the rows of the page's table of what fits."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| preset | setting | rollout | score | update | step | host memory | fits 2 × 80 GB |") + 2
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in takewhile(bool, lines[start:])]


@pytest.mark.parametrize("cells", fits_rows(), ids=" ".join)
def test_a_row_of_what_fits_is_what_the_plan_says(cells: list[str]) -> None:
    preset, setting, *numbers, fits = cells
    gpus = re.search(r"(\d+) GPU", setting)
    plan = plan_for(preset.strip("`"), "agpo", *re.findall(r"`(.+?)`", setting), gpus=int(gpus[1]) if gpus else 2)
    planned = [plan.memory.bytes_of(phase) / GIB for phase in PHASES]
    assert [float(number) for number in numbers] == [
        *(pytest.approx(gib, abs=0.051) for gib in planned),
        pytest.approx(plan.memory.host_bytes / GIB, abs=0.51),
    ]
    assert plan.fits == ("yes" in fits)
