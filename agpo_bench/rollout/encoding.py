"""From the text of a prompt to token ids, and which ids end a response."""

from __future__ import annotations

from typing import Any


class PromptEncoder:
    """Renders one user text with the tokenizer's chat template, or as plain text where it has none.

    The ids carry exactly one beginning-of-sequence token if the tokenizer puts one before plain text, whether or not
    the chat template spells it as well, and none otherwise.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Asked of the tokenizer, not of `bos_token_id`: GPT-2 and ChatML tokenizers name one and never add it.
        adds_bos = list(tokenizer("a")["input_ids"])[:1] == [tokenizer.bos_token_id]
        self._bos_id: int | None = tokenizer.bos_token_id if adds_bos else None

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of the prompt, ready to be continued. Empty text without a template is refused (ValueError)."""
        if getattr(self._tokenizer, "chat_template", None):
            ids = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=True, add_generation_prompt=True, return_dict=False
            )
        else:
            ids = self._plain(text)
        ids = [int(token) for token in ids]
        if self._bos_id is not None:
            num_leading = next((i for i, token in enumerate(ids) if token != self._bos_id), len(ids))
            ids = [self._bos_id, *ids[num_leading:]]
        if not ids:
            raise ValueError("a prompt has no tokens; give it some text, or use a tokenizer that adds a first token")
        return tuple(ids)

    def _plain(self, text: str) -> list[int]:
        ids = list(self._tokenizer(text)["input_ids"])
        # BERT-style templates close the text with an end token; a prompt must stay open to be continued.
        while ids and ids[-1] == self._tokenizer.eos_token_id and self._tokenizer.eos_token_id != self._bos_id:
            ids.pop()
        return ids


def terminators(tokenizer: Any, generation_config: Any = None) -> frozenset[int]:
    """End-of-sequence ids: the union of the tokenizer's and the generation_config's.

    This is the only field of a generation_config that is ever read.
    """
    ids: set[int] = set()
    for source in (tokenizer, generation_config):
        value = getattr(source, "eos_token_id", None)
        if isinstance(value, int):
            ids.add(value)
        elif value is not None:
            ids.update(int(token) for token in value)
    return frozenset(ids)
