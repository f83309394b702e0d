"""Every comparison, as one Markdown table: ``make bench``; with a larger model those of sampling and training.

Run it on a quiet machine. Every side is a process of its own on one thread; sides alternate; figures are medians.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path

import dedup_vs_janitor
import eval_vs_lm_eval
import grading_vs_math_verify
import method_costs
import report_vs_pandas
import rl_step_vs_trl
import sampler_vs_generate
import sandbox_vs_subprocess
import setting
from measure import table

ON_ANY_MODEL = (sampler_vs_generate, rl_step_vs_trl)
"""What a larger model makes different."""
ON_THE_EMBEDDED_MODEL = (
    eval_vs_lm_eval,
    method_costs,
    grading_vs_math_verify,
    sandbox_vs_subprocess,
    report_vs_pandas,
    dedup_vs_janitor,
)

if __name__ == "__main__":
    arguments = setting.arguments(__doc__)
    arguments.add_argument("--data", help="folder of benchmark files: their texts for grading and de-duplication")
    arguments.add_argument("--out", type=Path, help="also write the table to this file")
    args = arguments.parse_args()
    comparisons = []
    for module in ON_ANY_MODEL + ON_THE_EMBEDDED_MODEL * (args.model == "embedded"):
        comparisons += module.compare(args)
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "lm_eval"))
    text = (
        f"{table(comparisons)}\n\nModel: {args.model}. Medians of {args.repeats} processes a side, {args.batches} "
        "rollout batches each after a first one, one thread, sides alternating. "
        f"Python {platform.python_version()}, {packages}.\n"
    )
    print(text)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")
    sys.exit(0 if all(comparison.is_reached for comparison in comparisons) else 1)
