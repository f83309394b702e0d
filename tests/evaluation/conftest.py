from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Folder = Callable[[], Path]


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: a small random Llama whose tokens are numbers and boxed numbers."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("random-model")
    words = ["<eos>", "<unk>", *map(str, range(20)), *(f"\\boxed{{{n}}}" for n in range(4)), "so", "What", "is"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", unk_token="<unk>", pad_token="<eos>"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.5,  # far from uniform, so that greedy choices are not ties
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def benchmark_folder(tmp_path: Path) -> Path:
    """Twelve sums as GSM8K, two as CMATH, and a CodeContests problem without tests, which nothing can grade."""
    folder = tmp_path / "sums"
    rows = {
        "gsm8k/test.jsonl": [
            {"question": f"What is {n} {n + 1} {n + 2}", "answer": f"#### {n % 4}"} for n in range(12)
        ],
        "cmath/test.jsonl": [{"question": f"What is {n}", "golden": "1"} for n in range(2)],
        "codecontests/test.jsonl": [
            {"name": "a", "description": "What is 1", "public_tests": {"input": [], "output": []}},
        ],
    }
    for name, content in rows.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    return folder
