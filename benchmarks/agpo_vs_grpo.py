"""What AGPO's probe costs: its tokens a second against GRPO's, all generated tokens and training tokens alone.

A probe token is generated and graded and skips the update: counting all tokens AGPO is faster, counting those it
trains on it is slower.
"""

from __future__ import annotations

import argparse

import setting
from measure import Comparison, alternate, report, table
from rl_step_vs_trl import ours


def compare(args: argparse.Namespace) -> list[Comparison]:
    """At real lengths. The second ratio has no target of its own: the paper's budget counts probe tokens."""
    args.lengths = "real"
    options = setting.side_options(args)
    agpo, grpo = alternate("agpo_vs_grpo.py", ours="agpo", peer="grpo", repeats=args.repeats, options=options)
    return [
        Comparison(name="AGPO / GRPO, probe tokens included", ours=agpo, peer=grpo, target=0.97, what="tokens/s"),
        Comparison(name="AGPO / GRPO", ours=agpo, peer=grpo, target=0.97, what="training tokens/s"),
    ]


if __name__ == "__main__":
    arguments = setting.arguments(__doc__).parse_args()
    if arguments.side:
        report(ours(arguments, method=arguments.side))
    else:
        print(table(compare(arguments)))
