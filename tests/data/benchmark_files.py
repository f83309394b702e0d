"""A small folder of benchmark files with problems of our own, in the columns of the published data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]

GSM8K = [
    {
        "question": f"Ann has {n} pears and buys 3 more. How many has she?",
        "answer": f"{n}+3=<<{n}+3={n + 3}>>{n + 3}\n#### {n + 3}",
    }
    for n in range(60)
]
FILES: dict[str, Rows] = {
    "gsm8k/train.jsonl": GSM8K,
    "gsm8k/test.jsonl": [
        {"question": "A crate holds 1,200 nuts. How many are in 2 crates?", "answer": "2*1200\n#### 2,400"},
        {"question": "What is 2-5?", "answer": "#### -3"},
        {"question": "Bo reads 4 pages a day.\u2028How many in 3 days?", "answer": "4*3\n#### 12"},
        {"question": "What is 9+9?", "answer": "#### 18"},
    ],
    "math/train_algebra.jsonl": [{"problem": "Solve $x-1=0$.", "solution": "So $x=\\boxed{1}$.", "level": "Level 1"}],
    "math/train_geometry.jsonl": [{"problem": "Side of a unit square?", "solution": "\\boxed{1}"}],
    "math/test.jsonl": [
        {
            "problem": "Write $\\{1,2\\}$ {question} {options}",
            "solution": "First \\boxed{0}, no: $\\boxed{\\frac{1}{2}}$.",
        },
        {"problem": "Solve $x+1=0$.", "solution": "$x=\\boxed{-1}$"},
    ],
    "ocw/test.jsonl": [{"problem": "Speed?", "solution": "v", "answer": "1.6", "id": "0"}],
    "sat/test.jsonl": [
        {"id": "0", "question": "The value of f?", "options": "A) $f(-6)$ B) set A) is C) 3. D) $D$", "Answer": "C"},
        {"id": "1", "question": "How many?", "options": "A. 1,190 B. 1,900 C. 2,900 D. 19,000", "Answer": "B"},
    ],
    "mmlu_stem/test.jsonl": [
        {"question": "Is 3 prime?", "options": [True, False, 1, "No"], "answer": "A", "topic": "x"}
    ],
    "mmlu_stem/dev.jsonl": [
        {"question": f"Is {n} even?", "choices": ["a", "b", "c", "d"], "answer": "B"} for n in range(20)
    ],
    "codecontests/test.jsonl": [
        {
            "name": "twice",
            "description": "Print the number twice.",
            "public_tests": {"input": ["1\n"], "output": ["1 1\n"]},
            "private_tests": {"input": ["2\n"], "output": ["2 2\n"]},
            "generated_tests": {"input": [], "output": []},
            "time_limit": {"seconds": 2, "nanos": 500_000_000},
            "memory_limit_bytes": 64_000_000,
            "input_file": "",
        }
    ],
    "codecontests/train.jsonl": [
        {"name": "echo", "description": "Echo.", "tests": {"input": ["a"], "output": ["a"]}},
        {
            "name": "file",
            "description": "Read in.txt.",
            "tests": {"input": ["a"], "output": ["a"]},
            "input_file": "in.txt",
        },
    ],
    "cmath/test.jsonl": [
        {"question": "3个盒子，每盒6包，共几包？", "golden": "18"},
        {"question": "1-1=?", "golden": "0"},
    ],
    "cmath/dev.jsonl": [
        {"input": "5+5=?", "golden": "10"},
        {"input": "1 - 1 = ?", "golden": "0"},
        {"input": "半个的一半？", "golden": "1/4"},
    ],
    "gaokao_mathcloze/test.jsonl": [
        {"passage": None, "question": "则 $a=(\\quad)$, $b=(\\quad)$", "answer": "$5$;$10$"}
    ],
    "gaokao_mathqa/test.jsonl": [
        {"passage": None, "question": "选", "options": ["(A)$1$", "(B)$2$", "(C)$3$", "(D)$4$"], "label": "A C"}
    ],
}


def write_files(folder: Path, files: Mapping[str, Rows] = FILES) -> Path:
    """Write the files, without a manifest."""
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return folder
