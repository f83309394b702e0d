"""Prompt encoding: one beginning-of-sequence token, the chat template once, terminators from both sources."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from agpo_bench.rollout.encoding import PromptEncoder, terminators

WORDS = ["<pad>", "<s>", "</s>", "<user>", "<model>", "how", "many", "?", "he", "llo", "hello"]
WITH_BOS = "{{ bos_token }}{% for m in messages %}<user>{{ m['content'] }}{% endfor %}<model>"
WITHOUT_BOS = "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}<model>"


def _tokenizer(*, adds_bos: bool, adds_eos: bool = False, template: str | None = None) -> Any:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    single = ("<s> " if adds_bos else "") + "$A" + (" </s>" if adds_eos else "")
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=["<user>", "<model>"],
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("template", [WITH_BOS, WITHOUT_BOS])
def test_a_chat_prompt_has_one_first_token_whether_or_not_the_template_spells_it(template: str) -> None:
    ids = PromptEncoder(_tokenizer(adds_bos=True, template=template)).encode("how many ?")
    assert [WORDS[i] for i in ids] == ["<s>", "<user>", "how", "many", "?", "<model>"]


def test_plain_text_gets_the_tokenizers_own_first_token_once() -> None:
    encoder = PromptEncoder(_tokenizer(adds_bos=True))
    assert [WORDS[i] for i in encoder.encode("how many ?")] == ["<s>", "how", "many", "?"]
    assert [WORDS[i] for i in encoder.encode("<s> how many ?")] == ["<s>", "how", "many", "?"]


def test_a_tokenizer_that_adds_no_first_token_gets_none() -> None:
    assert [WORDS[i] for i in PromptEncoder(_tokenizer(adds_bos=False)).encode("how many ?")] == ["how", "many", "?"]
    ids = PromptEncoder(_tokenizer(adds_bos=False, template=WITHOUT_BOS)).encode("how")
    assert [WORDS[i] for i in ids] == ["<user>", "how", "<model>"]


def test_a_prompt_stays_open_where_the_tokenizer_would_close_it() -> None:
    ids = PromptEncoder(_tokenizer(adds_bos=True, adds_eos=True)).encode("how many")
    assert [WORDS[i] for i in ids] == ["<s>", "how", "many"]


def test_empty_text_is_refused_where_nothing_would_be_left_to_continue() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        PromptEncoder(_tokenizer(adds_bos=False)).encode("")
    assert PromptEncoder(_tokenizer(adds_bos=True)).encode("") == (1,)


def test_terminators_are_the_union_of_tokenizer_and_generation_config() -> None:
    tokenizer = _tokenizer(adds_bos=True)
    assert terminators(tokenizer) == {2}
    assert terminators(tokenizer, SimpleNamespace(eos_token_id=7)) == {2, 7}
    assert terminators(tokenizer, SimpleNamespace(eos_token_id=[7, 8])) == {2, 7, 8}
    assert terminators(SimpleNamespace(eos_token_id=None), SimpleNamespace(eos_token_id=None)) == frozenset()
