"""Tokens a second of whole GRPO steps as the work grows: group size, prompts of a batch, length of a response.

One number changes at a time, the others stay at the settings of the comparisons. Responses run to the limit, so that
the work is what the table says. Ours alone: nothing is compared.
"""

from __future__ import annotations

import argparse

import setting
from measure import Measurement, report, run_side
from rl_step_vs_trl import ours

GROUP_SIZES = (2, 4, 8, 16, 32, 64)
PROMPTS = (8, 16, 32, 64, 128)
NEW_TOKENS = (10, 20, 40, 80, 160)


def rows(args: argparse.Namespace) -> list[tuple[str, Measurement]]:
    """Label and measurement of every point."""
    args.lengths = "full"
    points = [(f"group size {size}", {"group_size": size}) for size in GROUP_SIZES]
    points += [(f"{number} prompts", {"prompts": number}) for number in PROMPTS]
    points += [(f"{number} tokens a response", {"new_tokens": number}) for number in NEW_TOKENS]
    found = []
    for label, change in points:
        changed = argparse.Namespace(**{**vars(args), **change})
        found.append((label, run_side("growth.py", "ours", setting.side_options(changed))))
    return found


if __name__ == "__main__":
    arguments = setting.arguments(__doc__).parse_args()
    if arguments.side:
        report(ours(arguments))
    else:
        print(f"Start: {setting.sizes(arguments)}\n")
        print("| one step of | tokens | tokens / CPU s | peak memory |\n|---|---|---|---|")
        for label, point in rows(arguments):
            speed = point.tokens / point.cpu_seconds
            tokens = point.tokens // arguments.batches
            print(f"| {label} | {tokens:,} | {speed:,.0f} | {point.peak_bytes / 2**20:,.0f} MiB |")
