"""Supervised training of the embedded model on demonstrated solutions. Shapes: B sequences, T tokens, V vocabulary."""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agpo_bench.data.embedded.items import FAMILIES, drawn_problems
from agpo_bench.data.embedded.problem import Problem
from agpo_bench.data.embedded.tokenizer import build_tokenizer
from agpo_bench.files import write_whole
from agpo_bench.training.model import wrap_model
from agpo_bench.training.warm_start_gate import BOUNDS, failures, measure

MODEL_CARD = "model_card.json"


@dataclass(frozen=True, kw_only=True)
class WarmStartRecipe:
    """All that decides the weights, with the machine and the versions."""

    seed: int = 0
    steps: int = 9000
    batch_size: int = 16
    learning_rate: float = 2.5e-3
    """Peak; rises linearly over ``warmup_steps`` and falls to zero as a half cosine."""
    warmup_steps: int = 20
    weight_decay: float = 0.1
    direct_share: float = 0.4
    """Share of demonstrations that state the answer at once, for problems of two steps or more."""
    direct_share_one_step: float = 0.5
    """The same for problems of one step, which people seldom work out in writing."""
    tokens_per_sequence: float = 15.0
    """The constant that the summed token losses of a batch are divided by, times the batch size. A token mean within
    length-sorted batches would weigh the tokens of short answers more."""


_SHARES = {"codecontests": 0.6, "sat": 1.5, "mmlu_stem": 1.5, "gaokao_qa": 1.5}
"""Weight of a family among the demonstrations: finding the right option is learnt late, copying a program early."""


def warm_start(
    out: Path,
    *,
    seed: int | None = None,
    steps: int | None = None,
    gate_items: int = 100,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> dict[str, Any]:
    """Make the embedded model in the new directory ``out`` and return its card, which is also written there.

    Everything else of the recipe is fixed: the same seed and steps give the same bytes on the same machine and
    versions, whatever the number of threads asked for (one is used). ``progress`` is called with each step and its
    loss. The card says how the model does on ``gate_items`` dev problems a family, and which bounds it misses.
    Errors: ValueError if ``out`` exists and is not an empty directory.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty; name a new folder for the remade model")
    recipe = WarmStartRecipe()
    recipe = replace(recipe, seed=recipe.seed if seed is None else seed, steps=recipe.steps if steps is None else steps)
    if recipe.steps < 1:
        raise ValueError(f"warm start of {recipe.steps} steps trains nothing; use 1 or more")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tokenizer = build_tokenizer()
        model = new_model(tokenizer, seed=recipe.seed)
        for step, loss in enumerate(train(model, tokenizer, recipe), start=1):
            progress(step, loss)
        loaded = wrap_model(model, tokenizer, source=str(out))
        measures = measure(loaded, items_per_task=gate_items, seed=recipe.seed)
    finally:
        torch.set_num_threads(num_threads)
    card = {
        "model": "embedded sample model: supervised training on generated problems, see agpo_bench.data.embedded",
        "num_parameters": loaded.num_parameters,
        "fingerprint": loaded.fingerprint,
        "recipe": asdict(recipe),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "gate": {
            "split": "dev",
            "items_per_task": gate_items,
            "bounds": {name: list(bound) for name, bound in BOUNDS.items()},
            "missed": failures(measures["mean"]),
            "measured": {task: asdict(row) for task, row in measures.items()},
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        model.save_pretrained(str(working))
        tokenizer.save_pretrained(str(working))
        _name_tokenizer_class(working / "tokenizer_config.json")
        write_whole(working / MODEL_CARD, json.dumps(card, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        working.chmod(0o755)
        if out.exists():
            out.rmdir()
        working.rename(out)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return card


def _name_tokenizer_class(path: Path) -> None:
    """Transformers 5 writes a class name that version 4 does not know; this one is known to both."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_whole(path, json.dumps(content, indent=2) + "\n")


def new_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LlamaForCausalLM:
    """Build the untrained model: about 115,000 parameters; the global generator is left as it was."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        # Five times the usual deviation: at width 64 the usual one leaves attention flat for thousands of steps.
        initializer_range=0.1,
        attention_dropout=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def train(model: Any, tokenizer: PreTrainedTokenizerFast, recipe: WarmStartRecipe) -> Iterator[float]:
    """Train in place; yields the loss of every step (nats per sequence over ``tokens_per_sequence``)."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=True
    )
    normaliser = recipe.batch_size * recipe.tokens_per_sequence
    model.train()
    for step, (ids_BT, is_response_BT) in enumerate(_batches(tokenizer, recipe)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(step, recipe)
        hidden_BTH = model.model(input_ids=ids_BT[:, :-1], use_cache=False).last_hidden_state
        target = is_response_BT[:, 1:]
        logits_NV = model.lm_head(hidden_BTH[target])
        loss = functional.cross_entropy(logits_NV, ids_BT[:, 1:][target], reduction="sum") / normaliser
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()
    model.eval()


def _schedule(step: int, recipe: WarmStartRecipe) -> float:
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    fraction = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * fraction))


def _batches(tokenizer: PreTrainedTokenizerFast, recipe: WarmStartRecipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``(ids_BT, is_response_BT)``; sequences of like length share a batch, the batches come in random order."""
    pool_batches = 32
    rng = random.Random(f"{recipe.seed}/batches")
    streams = {task: drawn_problems(task, "train", seed=recipe.seed) for task in FAMILIES}
    weights = [_SHARES.get(task, 1.0) for task in FAMILIES]
    left = recipe.steps
    while left > 0:
        tasks = rng.choices(list(FAMILIES), weights=weights, k=pool_batches * recipe.batch_size)
        problems = [next(streams[task]) for task in tasks]
        answers = [_demonstration(problem, rng, recipe) for problem in problems]
        prompt_ids = tokenizer([item.prompt for item in problems])["input_ids"]
        ended = [answer + tokenizer.eos_token for answer in answers]
        answer_ids = tokenizer(ended, add_special_tokens=False)["input_ids"]
        rows = sorted(zip(prompt_ids, answer_ids, strict=True), key=lambda row: len(row[0]) + len(row[1]))
        batches = [rows[start : start + recipe.batch_size] for start in range(0, len(rows), recipe.batch_size)]
        rng.shuffle(batches)
        for batch in batches[:left]:
            yield _padded(batch, pad_id=tokenizer.pad_token_id)
        left -= len(batches)


def _demonstration(problem: Problem, rng: random.Random, recipe: WarmStartRecipe) -> str:
    share = recipe.direct_share_one_step if problem.num_steps == 1 else recipe.direct_share
    return problem.direct if rng.random() < share else problem.worked


def _padded(rows: list[tuple[list[int], list[int]]], *, pad_id: int) -> tuple[Tensor, Tensor]:
    """Right-pad; causal attention keeps the padding from the tokens before it."""
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids_BT = torch.full((len(rows), length), pad_id)
    is_response_BT = torch.zeros((len(rows), length), dtype=torch.bool)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids_BT[row, :end] = torch.tensor(prompt + answer)
        is_response_BT[row, len(prompt) : end] = True
    return ids_BT, is_response_BT
