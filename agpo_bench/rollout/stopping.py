"""Stop strings, and from token ids back to text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

_UNDECODABLE = "\ufffd"


class StopFinder:
    """Tells when a response has spelt one of its stop strings.

    Decoding the whole response at every token would be quadratic. A token can complete a stop string only if its own
    text holds the string's last character (or cannot be decoded alone), so only then is the response decoded.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._text: dict[int, str] = {}

    def is_complete(self, token_ids: Sequence[int], stop: tuple[str, ...]) -> bool:
        """Whether the text of ``token_ids``, whose last token is new, holds a stop string."""
        last = token_ids[-1]
        if last not in self._text:
            self._text[last] = _decode(self._tokenizer, [last])
        text = self._text[last]
        # A decoder may add or move white space between tokens, so an ending in white space tells nothing.
        if _UNDECODABLE not in text and not any(ending[-1] in text or ending[-1].isspace() for ending in stop):
            return False
        whole = _decode(self._tokenizer, token_ids)
        return any(ending in whole for ending in stop)


def decode_response(
    tokenizer: Any, token_ids: Sequence[int], *, terminators: Collection[int], stop: Sequence[str] = ()
) -> str:
    """The text without its terminator and special tokens, cut before the first stop string."""
    # A terminator from generation_config need not be a special token of the tokenizer.
    open_ids = token_ids[:-1] if token_ids and token_ids[-1] in terminators else token_ids
    text = _decode(tokenizer, open_ids)
    cuts = [position for position in (text.find(ending) for ending in stop) if position >= 0]
    return text[: min(cuts)] if cuts else text


def _decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
