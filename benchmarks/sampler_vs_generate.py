"""Tokens a second: our sampler against ``transformers`` ``generate()``, 32 prompts × 8 samples in one batch.

Both return sampled tokens at temperature 1 and top-p .95 from the same model and prompts. Ours returns the
log-probabilities and texts as well; ``generate()`` returns token ids only.
"""

from __future__ import annotations

import argparse

import setting
import torch
from measure import Comparison, Measurement, Stopwatch, compared, report, table

from agpo_bench.rollout.encoding import PromptEncoder
from agpo_bench.rollout.sampler import Sampler, SamplingRequest, sampling_seed
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.model import LoadedModel
from agpo_bench.training.setup import model_path


def _batches(args: argparse.Namespace, encoder: PromptEncoder) -> list[list[tuple[str, tuple[int, ...]]]]:
    prompts = setting.prompts(args)
    size = setting.sizes(args).num_prompts
    return [
        [(prompt.prompt_id, encoder.encode(prompt.text)) for prompt in prompts[start : start + size]]
        for start in range(0, (args.batches + 1) * size, size)
    ]


def ours(args: argparse.Namespace) -> Measurement:
    """The sampler of every run."""
    loaded = setting.load(args.model, lengths=args.lengths)
    return timed(args, TorchSampler(loaded), loaded)


def timed(args: argparse.Namespace, sampler: Sampler, loaded: LoadedModel) -> Measurement:
    """A sampler on every batch but the first."""
    sizes = setting.sizes(args)
    watch, tokens = Stopwatch(), 0
    for number, batch in enumerate(_batches(args, PromptEncoder(loaded.tokenizer))):
        requests = [
            SamplingRequest(
                prompt_id=prompt_id,
                prompt_ids=ids,
                seeds=tuple(
                    sampling_seed(0, step=number, prompt_id=prompt_id, sample_index=i, phase="train")
                    for i in range(sizes.group_size)
                ),
                temperature=1.0,
                top_p=setting.TOP_P,
                max_new_tokens=sizes.max_new_tokens,
            )
            for prompt_id, ids in batch
        ]
        if number == 0:
            sampler.sample(requests)
            continue
        with watch.running():
            groups = sampler.sample(requests)
        tokens += sum(group.num_tokens for group in groups)
    return watch.measurement(tokens=tokens)


def peer(args: argparse.Namespace) -> Measurement:
    """``generate()`` on the left-padded batch."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    sizes = setting.sizes(args)
    loaded = setting.load(args.model, lengths=args.lengths)
    model = AutoModelForCausalLM.from_pretrained(model_path(args.model), dtype="float32").eval()
    eos = sorted(loaded.terminators)
    # Without this the model's own end-of-sequence ids come back where none is wanted.
    model.generation_config.eos_token_id = eos or None
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=setting.TOP_P,
        top_k=0,
        max_new_tokens=sizes.max_new_tokens,
        eos_token_id=eos or None,
        pad_token_id=loaded.pad_id,
    )
    watch, tokens = Stopwatch(), 0
    torch.manual_seed(0)
    for number, batch in enumerate(_batches(args, PromptEncoder(loaded.tokenizer))):
        rows = [ids for _, ids in batch for _ in range(sizes.group_size)]
        width = max(map(len, rows))
        token_BT = torch.full((len(rows), width), loaded.pad_id)
        mask_BT = torch.zeros(len(rows), width, dtype=torch.long)
        for row, ids in enumerate(rows):
            token_BT[row, width - len(ids) :] = torch.tensor(ids)
            mask_BT[row, width - len(ids) :] = 1
        if number == 0:
            model.generate(token_BT, attention_mask=mask_BT, generation_config=settings)
            continue
        with watch.running():
            output = model.generate(token_BT, attention_mask=mask_BT, generation_config=settings)
        for response in output[:, width:].tolist():
            ends = [place for place, token in enumerate(response) if token in loaded.terminators]
            tokens += ends[0] + 1 if ends else len(response)
    return watch.measurement(tokens=tokens)


def compare(args: argparse.Namespace) -> list[Comparison]:
    """At real lengths and at full length."""
    found = []
    for lengths, target in (("real", 1.5 if args.model == "smollm2" else 4.0), ("full", 1.0)):
        args.lengths = lengths
        mine, theirs = compared("sampler_vs_generate.py", repeats=args.repeats, options=setting.side_options(args))
        name = f"sampler / generate(), {setting.title(args)}"
        found.append(Comparison(name=name, ours=mine, peer=theirs, target=target, what="tokens/s"))
    return found


if __name__ == "__main__":
    arguments = setting.arguments(__doc__).parse_args()
    if arguments.side:
        report({"ours": ours, "peer": peer}[arguments.side](arguments))
    else:
        print(table(compare(arguments)))
