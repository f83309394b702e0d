"""Stop strings, and from token ids back to text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_UNDECODABLE = "\ufffd"
_UNKNOWN, _NOW, _WITH_NEXT = -1, 1, 2


class StopFinder:
    """Tells when a response has spelt one of its stop strings.

    Decoding the whole response at every token would be quadratic. A token can complete a stop string only if its own
    text begins with the string's end or holds the string (or cannot be decoded alone), so only then is the response
    decoded. Which tokens those are is looked up once for each.

    Shapes: J rollouts, n rows of which row i belongs to rollout ``job_n[i]``, V vocabulary.
    """

    def __init__(self, tokenizer: Any, stop_J: Sequence[tuple[str, ...]], *, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        kinds = {stop: kind for kind, stop in enumerate(dict.fromkeys(stop_J))}
        self._stops = list(kinds)
        self._kind_J = np.array([kinds[stop] for stop in stop_J], dtype=np.int64)
        self._may_complete = np.full((len(kinds), vocabulary_size), _UNKNOWN, dtype=np.int8)
        for stop, kind in kinds.items():
            if not stop:
                self._may_complete[kind] = 0

    def may_be_complete(
        self, job_n: NDArray[np.int64], token_n: NDArray[np.int64], previous_n: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Rows whose newest token could complete a stop string; ``previous_n`` repeats it in a first token's place."""
        kind_n = self._kind_J[job_n]
        return (self._look_up(kind_n, token_n) & _NOW | self._look_up(kind_n, previous_n) & _WITH_NEXT) > 0

    def _look_up(self, kind_n: NDArray[np.int64], token_n: NDArray[np.int64]) -> NDArray[np.int8]:
        found_n = self._may_complete[kind_n, token_n]
        if (found_n == _UNKNOWN).any():
            for row in np.nonzero(found_n == _UNKNOWN)[0]:
                kind, token = kind_n[row], int(token_n[row])
                self._may_complete[kind, token] = self._when(token, self._stops[kind])
            found_n = self._may_complete[kind_n, token_n]
        return found_n

    def _when(self, token: int, stop: tuple[str, ...]) -> int:
        text = _decode(self._tokenizer, [token])
        now = not text or _UNDECODABLE in text or any(_is_last_piece(text, ending) for ending in stop)
        # A decoder may put white space between two tokens: one ending in it is completed by whatever comes next.
        spaced = [ending.rstrip() for ending in stop if ending[-1].isspace()]
        with_next = any(not ending or _is_last_piece(text, ending) for ending in spaced)
        return _NOW * now + _WITH_NEXT * with_next

    def is_complete(self, job: int, token_ids: Sequence[int]) -> bool:
        """Whether the text of a response so far holds one of its stop strings."""
        text = _decode(self._tokenizer, token_ids)
        return any(ending in text for ending in self._stops[self._kind_J[job]])


def _is_last_piece(text: str, ending: str) -> bool:
    heads = (text[:length] for length in range(1, len(text) + 1))
    return any(ending.endswith(head) or head.endswith(ending) for head in heads)


def decode_response(
    tokenizer: Any, token_ids: Sequence[int], *, terminators: Collection[int], stop: Sequence[str] = ()
) -> str:
    """The text without its terminator and special tokens, cut before the first stop string."""
    text = _decode(tokenizer, _without_terminator(token_ids, terminators))
    cuts = [position for position in (text.find(ending) for ending in stop) if position >= 0]
    return text[: min(cuts)] if cuts else text


def holds_stop(tokenizer: Any, token_ids: Sequence[int], *, terminators: Collection[int], stop: Sequence[str]) -> bool:
    """Whether the whole text of a response holds one of its stop strings."""
    text = _decode(tokenizer, _without_terminator(token_ids, terminators))
    return any(ending in text for ending in stop)


def _without_terminator(token_ids: Sequence[int], terminators: Collection[int]) -> Sequence[int]:
    # A terminator from generation_config need not be a special token of the tokenizer.
    return token_ids[:-1] if token_ids and token_ids[-1] in terminators else token_ids


def _decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
