r"""The embedded model's tokenizer: whole words, answer markers, runs of Chinese, single digits.

Pieces are cut by one regular expression and joined again without anything between them, so that decoding an encoded
text gives the text back as long as every piece is in the vocabulary; others become ``[UNK]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from agpo_bench.data.embedded.chinese import NAMES, THINGS
from agpo_bench.data.embedded.choices import RANGES
from agpo_bench.data.embedded.items import FAMILIES, drawn_problems

PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "[UNK]"
MARKERS = (
    "Final answer: The final answer is ",
    ". I hope it is correct.",
    "The final answer is",
    "The answer is",
    "\n解答：",
    "答案是",
    "\nAnswer:",
    "```python\nn=int(input())\n",
    "```",
    "print(",
    "#### ",
    "\\boxed{",
    "\\frac{",
    "}{",
    "____",
    *(f" ({letter}){span}" for letter, span in zip("ABCD", RANGES, strict=True)),
    " (A)",
    " (B)",
    " (C)",
    " (D)",
    "\nOptions:",
    "\n选项：",
    "//",
)
"""Fixed phrases that are one token each, so that an answer of the tiny model stays short. Earlier ones win."""

_CHINESE_NOUNS = "|".join((*NAMES, *THINGS))
PATTERN = "|".join(
    [
        *map(re.escape, MARKERS),
        " ?[A-Za-z]+,? ?",
        "[0-9]",
        _CHINESE_NOUNS,
        f"(?:(?!{_CHINESE_NOUNS}|答案是)[\u4e00-\u9fff])+",
        "[\\s\\S]",
    ]
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer; its vocabulary is what the first problems of every train split need, in order of use."""
    vocabulary: dict[str, int] = {}
    for piece in [PAD, BOS, EOS, UNKNOWN, *"0123456789", *MARKERS, *_pieces_in_use()]:
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    start = (BOS, vocabulary[BOS])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[start])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def _pieces_in_use() -> Iterable[str]:
    """Every piece of the first 800 train problems of each family."""
    pattern = re.compile(PATTERN)
    for task in FAMILIES:
        for problem in islice(drawn_problems(task, "train", seed=0), 800):
            for text in (problem.prompt, problem.direct, problem.worked):
                yield from pattern.findall(text)
