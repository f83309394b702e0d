"""Tokens a second: our sampler against vLLM's CPU build, the same prompts, samples and lengths.

Both return log-probabilities. vLLM's attention for a CPU takes no heads as narrow as the embedded model's. Not part of
``make bench``: it runs in the environment of ``make test-vllm``,
``.venv-vllm/bin/python benchmarks/sampler_vs_vllm.py``.
"""

from __future__ import annotations

import argparse

import setting
from measure import Comparison, Measurement, compared, report, table
from sampler_vs_generate import ours, timed

from agpo_bench.rollout.vllm_engine import VllmSettings
from agpo_bench.rollout.vllm_sampler import VllmSampler


def peer(args: argparse.Namespace) -> Measurement:
    """The engine in this process; it starts with the first batch, which is not timed."""
    loaded = setting.load(args.model, lengths=args.lengths)
    return timed(args, VllmSampler(loaded, VllmSettings(max_rows=512, max_length=512)), loaded)


def compare(args: argparse.Namespace) -> list[Comparison]:
    """At real lengths and at full length."""
    found = []
    for lengths in ("real", "full"):
        args.lengths = lengths
        mine, theirs = compared("sampler_vs_vllm.py", repeats=args.repeats, options=setting.side_options(args))
        name = f"sampler / vLLM on a CPU, {setting.title(args)}"
        found.append(Comparison(name=name, ours=mine, peer=theirs, target=1.0, what="tokens/s"))
    return found


if __name__ == "__main__":
    parser = setting.arguments(__doc__)
    parser.set_defaults(model="smollm2", batches=2, repeats=1)
    arguments = parser.parse_args()
    if arguments.side:
        report({"ours": ours, "peer": peer}[arguments.side](arguments))
    else:
        print(table(compare(arguments)))
