"""Which spellings are the same, and which words change what is asked. Everything is in lower case."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FACT_SYMBOLS = "+-*/=<>^"
FACT_WORDS = _words(
    # Numbers in words.
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million half third "
    "quarter twice double triple thrice 二 三 四 五 六 七 八 九 十 百 千 万 半 "
    # What is asked for, and its opposite.
    "not no minimum maximum min max least most smallest largest greatest fewest less more fewer greater sum product "
    "difference quotient rows columns row column domain range horizontal vertical even odd increasing decreasing "
    "distinguishable indistinguishable sin cos tan sec csc cot \\sin \\cos \\tan \\sec \\csc \\cot \\log \\ln "
    "area perimeter volume surface circumference radius diameter length width height "
    "不 多 少 大 小 加 减 乘 除"
)
LOOSE_COMMANDS = _words("\\overline \\underline \\cal \\mathcal \\angle \\begin \\end \\allowbreak \\circ")
"""Every other LaTeX command names something; these are left out or put in without changing what is asked."""
LETTERS_OF_WORDS = "aist"
"""Single letters name variables and points; these also stand as words or as their endings."""

UNICODE_SYMBOLS = {
    **{power: f"^{digit}" for digit, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **dict.fromkeys("−–", "-"),
    **dict.fromkeys("×·⋅∙", "*"),
    "÷": "/",
    "⁄": "/",
    "∕": "/",
    "≤": r"\le ",
    "⩽": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    "≠": r"\ne ",
    "π": r"\pi ",
    "°": r"^\circ ",
    "√": r"\sqrt ",
    "∞": r"\infty ",
    "→": r"\to ",
    "∈": r"\in ",
    "∩": r"\cap ",
    "∪": r"\cup ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "θ": r"\theta ",
}
DROPPED_COMMANDS = _words(
    "left right big bigl bigr bigg biggl biggr displaystyle textstyle limits quad qquad text textbf textit textrm "
    "mathrm mathbf mathit mathsf mbox operatorname rm bf it dots ldots cdots hspace vspace noindent"
)
SAME_COMMANDS = {
    r"\dfrac": r"\frac",
    r"\tfrac": r"\frac",
    r"\cfrac": r"\frac",
    r"\leq": r"\le",
    r"\leqslant": r"\le",
    r"\geq": r"\ge",
    r"\geqslant": r"\ge",
    r"\neq": r"\ne",
    r"\rightarrow": r"\to",
    r"\longrightarrow": r"\to",
    r"\cdot": "*",
    r"\times": "*",
    r"\div": "/",
    r"\lt": "<",
    r"\gt": ">",
    r"\degree": r"\circ",
}
