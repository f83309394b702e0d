"""What a method's extra work costs: tokens a second of AGPO (a probe) and PPO (a critic) against GRPO's.

A probe token is generated and graded and skips the update: counting all tokens AGPO is faster, counting those it
trains on it is slower. With ``probe.reuse`` it trains on all of them.
"""

from __future__ import annotations

import argparse

import setting
from measure import Comparison, alternate, report, table
from rl_step_vs_trl import ours

SIDES = {
    "grpo": ("grpo", {}),
    "agpo": ("agpo", {}),
    "agpo_reuse": ("agpo", {"probe.reuse": True}),
    "ppo": ("ppo", {}),
}
"""Recipe and changes of each side."""


def compare(args: argparse.Namespace) -> list[Comparison]:
    """At real lengths. AGPO's training tokens have no target: at most half its tokens are trained on."""
    args.lengths = "real"
    options = setting.side_options(args)
    found = alternate("method_costs.py", *SIDES, repeats=args.repeats, options=options)
    grpo, trained = found["grpo"], "training tokens/s"
    return [
        Comparison(name="AGPO / GRPO, probe included", ours=found["agpo"], peer=grpo, target=0.97, what="tokens/s"),
        Comparison(name="AGPO / GRPO", ours=found["agpo"], peer=grpo, target=None, what=trained),
        Comparison(name="AGPO, probe.reuse / GRPO", ours=found["agpo_reuse"], peer=grpo, target=0.97, what=trained),
        Comparison(name="GRPO / PPO with its own critic", ours=grpo, peer=found["ppo"], target=1.5, what="tokens/s"),
    ]


if __name__ == "__main__":
    arguments = setting.arguments(__doc__).parse_args()
    if arguments.side:
        recipe, changes = SIDES[arguments.side]
        report(ours(arguments, method=recipe, changes=changes))
    else:
        print(table(compare(arguments)))
