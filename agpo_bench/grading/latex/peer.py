"""Math-Verify's verdict, for the alternative score of that name. Runs in the worker; needs the optional package."""

from __future__ import annotations


def is_math_verify_equal(gold: str, answer: str) -> bool:
    """``math_verify.verify`` of a gold answer against a whole response, both as free text; its own timeouts off."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configurations = [LatexExtractionConfig(), ExprExtractionConfig()]
    parsed_gold = parse(f"${gold}$", configurations, parsing_timeout=None)
    parsed_answer = parse(answer, configurations, parsing_timeout=None)
    return bool(parsed_gold and parsed_answer and verify(parsed_gold, parsed_answer, timeout_seconds=None))
