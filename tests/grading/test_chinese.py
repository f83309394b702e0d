"""Chinese numerals against values worked by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from agpo_bench.grading.chinese import parse_numeral


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("零", 0),
        ("七", 7),
        ("十", 10),
        ("十八", 18),
        ("二十", 20),
        ("九十九", 99),
        ("一百零五", 105),
        ("一百二", 120),
        ("一百二十", 120),
        ("三千五", 3500),
        ("三千零五", 3005),
        ("两万", 20000),
        ("三万五", 35000),
        ("三万零五", 30005),
        ("一万二千三百四十五", 12345),
        ("一亿三千万", 130_000_000),
        ("十二亿", 1_200_000_000),
        ("两万亿", 2 * 10**12),
        ("二〇二四", 2024),
        ("一三五", 135),
        ("三点一四", Fraction(314, 100)),
        ("零点五", Fraction(1, 2)),
    ],
)
def test_numerals_have_their_spoken_value(text: str, value: Fraction) -> None:
    assert parse_numeral(text) == value


@pytest.mark.parametrize("text", ["", "点", "三点", "百", "万", "三四百", "三点点五", "十" * 50, "苹果", "三x"])
def test_what_is_no_numeral_has_no_value(text: str) -> None:
    assert parse_numeral(text) is None


def test_every_integer_below_ten_thousand_is_read_from_its_name() -> None:
    digits, units = "零一二三四五六七八九", ("", "十", "百", "千")

    def name(number: int) -> str:
        spelled = ""
        text = str(number)
        for position, digit in enumerate(text):
            place = len(text) - position - 1
            if digit != "0":
                spelled += digits[int(digit)] + units[place]
            elif any(rest != "0" for rest in text[position:]) and not spelled.endswith("零"):
                spelled += "零"
        return spelled

    assert all(parse_numeral(name(number)) == number for number in range(1, 10_000))
