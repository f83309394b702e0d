"""Chinese problems with a free answer: word problems (答案是…) and several blanks."""

from __future__ import annotations

import random

from agpo_bench.data.embedded.problem import CHINESE_LEADS, Problem, small_or_larger, working
from agpo_bench.records import Reference

NAMES = ("小明", "小红", "小华", "小丽", "小刚", "小芳")
THINGS = ("个苹果", "支铅笔", "本书", "朵花", "张卡片", "颗糖")
QUESTION_END = "\n解答："


def cmath(rng: random.Random) -> Problem:
    """Word problem for a primary school: integers and fractions."""
    name = rng.choice(NAMES)
    things = rng.choice(THINGS)
    kind = rng.choice(("bags", "spent", "change", "share", "part", "sum"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    numbers: tuple[int, ...] = (a, b, c)
    if kind == "bags":
        text = f"{name}有{a}盒，每盒{b}{things}，又买了{c}{things}。一共有多少{things}？"
        answer, steps = str(a * b + c), [f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"]
    elif kind == "spent":
        c = rng.randint(1, min(9, a * b - 1))
        text = f"{name}有{a}盒，每盒{b}{things}，用去{c}{things}。还剩多少{things}？"
        numbers, answer, steps = (a, b, c), str(a * b - c), [f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"]
    elif kind == "change":
        a = rng.randint(10, 40)
        text = f"{name}有{a}{things}，送出{b}{things}，又得到{c}{things}。现在有多少{things}？"
        numbers, answer, steps = (a, b, c), str(a - b + c), [f"{a}-{b}={a - b}", f"{a - b}+{c}={a - b + c}"]
    elif kind == "share":
        text = f"{name}把{a * b}{things}平均分成{b}份，每份再加{c}{things}。每份有多少{things}？"
        numbers, answer, steps = (a * b, b, c), str(a + c), [f"{a * b}/{b}={a}", f"{a}+{c}={a + c}"]
    elif kind == "part":
        bottom = rng.randint(5, 19)
        a = rng.randint(1, min(9, bottom - 3))
        b = rng.randint(1, min(9, bottom - a - 1))
        text = f"{name}第一天读了一本书的{a}/{bottom}，第二天读了{b}/{bottom}。一共读了几分之几？"
        numbers, answer, steps = (a, b, bottom), f"{a + b}/{bottom}", [f"{a}+{b}={a + b}"]
    else:
        a = rng.randint(2, 60)
        text = f"{name}有{a}{things}，又买了{b}{things}。一共有多少{things}？"
        numbers, answer, steps = (a, b), str(a + b), [f"{a}+{b}={a + b}"]
    final = f"答案是{answer}"
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=answer, question=text),
        direct=final,
        worked=working(rng, steps, final, leads=CHINESE_LEADS),
        num_steps=len(steps),
    )


def gaokao_cloze(rng: random.Random) -> Problem:
    """Two blanks, both of which must be right."""
    kind = rng.choice(("values", "sequence", "function", "rectangle"))
    numbers: tuple[int, ...]
    if kind == "values":
        x, y = rng.randint(10, 80), rng.randint(2, 9)
        text = f"已知x={x}，y={y}，则x+y=____，x-y=____。"
        numbers, blanks = (x, y), (x + y, x - y)
        steps = [f"{x}+{y}={x + y}", f"{x}-{y}={x - y}"]
    elif kind == "sequence":
        start, gap = rng.randint(1, 60), rng.randint(2, 9)
        text = f"等差数列{start}，{start + gap}，{start + 2 * gap}，…的公差为____，第4项为____。"
        numbers, blanks = (start, gap), (gap, start + 3 * gap)
        steps = [f"{start + gap}-{start}={gap}", f"{start + 2 * gap}+{gap}={start + 3 * gap}"]
    elif kind == "function":
        a, b, x = rng.randint(2, 9), small_or_larger(rng), rng.randint(2, 9)
        text = f"函数f(x)={a}x+{b}，则f(0)=____，f({x})=____。"
        numbers, blanks = (a, b, x), (b, a * x + b)
        steps = [f"{a}*{x}={a * x}", f"{a * x}+{b}={a * x + b}"]
    else:
        a, b = sorted((rng.randint(2, 9), rng.randint(2, 20)))
        text = f"矩形的长为{b}，宽为{a}，则长与宽的和为____，差为____。"
        numbers, blanks = (a, b), (b + a, b - a)
        steps = [f"{b}+{a}={b + a}", f"{b}-{a}={b - a}"]
    final = "答案是" + "；".join(str(blank) for blank in blanks)
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=";".join(str(blank) for blank in blanks), question=text),
        direct=final,
        worked=working(rng, steps, final, leads=CHINESE_LEADS),
        num_steps=len(steps),
    )
