"""Stop strings are found wherever tokens and decoders put their pieces, and text is cut before the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agpo_bench.rollout.stopping import StopFinder, decode_response

PIECES = ["<pad>", "</s>", "a", "Q", ":", "Q:", "x\nQ:", "\n", "xQ", " ", "b Q", "Question", "::", "é"]


def _fused() -> Any:
    """Tokens side by side."""
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="<pad>"))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")


def _spaced() -> Any:
    """A decoder that puts a space between tokens."""
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")


def _bytes() -> Any:
    """One token a byte: a character of several bytes cannot be decoded from one of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = {piece: i for i, piece in enumerate(["<pad>", "</s>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab=table, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")


def _first_stop(tokenizer: Any, token_ids: Sequence[int], stop: tuple[str, ...]) -> int | None:
    """Tokens until the finder says stop, feeding one token at a time as the sampler does."""
    finder = StopFinder(tokenizer, [(), stop], vocabulary_size=len(tokenizer))
    job = np.array([1])
    for position, token in enumerate(token_ids):
        previous = token_ids[max(0, position - 1)]
        if finder.may_be_complete(job, np.array([token]), np.array([previous]))[0] and finder.is_complete(
            1, token_ids[: position + 1]
        ):
            return position + 1
    return None


def _ids(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        (["a", "\n", "Q", ":", "a"], ("\nQ:",), 4),
        (["a", "\n", "Q:", "a"], ("\nQ:",), 3),
        (["a", "x\nQ:", "a"], ("\nQ:",), 2),
        (["a", "\n", "Q", "::", "a"], ("\nQ:",), 4),
        (["a", ":", "Q", "a"], ("\nQ:",), None),
        (["a", "Question", ":"], ("\nQ:",), None),
        (["\n", "Q", " ", "a"], ("\nQ ",), 3),
        (["a", "b Q", "a"], ("zz", " Q"), 2),
        (["Q"], ("Q",), 1),
    ],
)
def test_a_stop_string_is_found_with_the_token_that_completes_it(
    pieces: list[str], stop: tuple[str, ...], expected: int | None
) -> None:
    assert _first_stop(_fused(), _ids(*pieces), stop) == expected


def test_a_space_that_the_decoder_puts_in_completes_a_stop_string_that_ends_in_one() -> None:
    # "a Q :" — the space after Q appears when the colon comes.
    assert _spaced().decode(_ids("a", "Q", ":")) == "a Q :"
    assert _first_stop(_spaced(), _ids("a", "Q", ":", "a"), ("Q ",)) == 3
    assert _first_stop(_spaced(), _ids("a", "Q", ":", "a"), ("Q :",)) == 3


def test_a_stop_string_in_several_bytes_a_character_is_found() -> None:
    tokenizer = _bytes()
    ids = tokenizer("甲\n问题：乙")["input_ids"]
    found = _first_stop(tokenizer, ids, ("\n问题：",))
    assert found is not None
    assert tokenizer.decode(ids[:found]) == "甲\n问题："


def test_text_is_cut_before_the_first_stop_string_and_without_its_terminator() -> None:
    ids = _ids("a", ":", "a", "Q", "</s>")
    assert decode_response(_fused(), ids, terminators={1}) == "a:aQ"
    assert decode_response(_fused(), ids, terminators={1}, stop=("Q", ":")) == "a"
    # A terminator that is an ordinary token of the tokenizer is no text; the same token inside the response is.
    assert decode_response(_fused(), _ids("Q", "a", "Q"), terminators={PIECES.index("Q")}) == "Qa"
    assert decode_response(_fused(), [], terminators={1}) == ""
