"""Chinese problems with a free answer: word problems (答案是…) and several blanks."""

from __future__ import annotations

import random

from agpo_bench.data.embedded.problem import CHINESE_LEADS, Problem, working
from agpo_bench.records import Reference

NAMES = ("小明", "小红", "小华", "小丽", "小刚", "小芳")
THINGS = ("个苹果", "支铅笔", "本书", "朵花", "张卡片", "颗糖")
QUESTION_END = "\n解答："


def cmath(rng: random.Random) -> Problem:
    """Word problem for a primary school: integers and fractions."""
    name = rng.choice(NAMES)
    things = rng.choice(THINGS)
    kind = rng.choice(("bags", "change", "share", "part", "gap"))
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    numbers: tuple[int, ...]
    if kind == "bags":
        c = rng.randint(2, 40)
        text = f"{name}有{a}盒，每盒{b}{things}，又买了{c}{things}。一共有多少{things}？"
        numbers, answer = (a, b, c), str(a * b + c)
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={answer}"]
    elif kind == "change":
        a, c = rng.randint(12, 70), rng.randint(2, 29)
        b = rng.randint(2, a - 1)
        text = f"{name}有{a}{things}，送出{b}{things}，又得到{c}{things}。现在有多少{things}？"
        numbers, answer = (a, b, c), str(a - b + c)
        steps = [f"{a}-{b}={a - b}", f"{a - b}+{c}={answer}"]
    elif kind == "share":
        c = rng.randint(2, 30)
        text = f"{name}把{a * b}{things}平均分成{b}份，每份再加{c}{things}。每份有多少{things}？"
        numbers, answer = (a * b, b, c), str(a + c)
        steps = [f"{a * b}/{b}={a}", f"{a}+{c}={answer}"]
    elif kind == "part":
        bottom = rng.randint(5, 19)
        a = rng.randint(1, bottom - 3)
        b = rng.randint(1, bottom - a - 1)
        text = f"{name}第一天读了一本书的{a}/{bottom}，第二天读了{b}/{bottom}。还剩几分之几？"
        numbers, answer = (a, b, bottom), f"{bottom - a - b}/{bottom}"
        steps = [f"{a}+{b}={a + b}", f"{bottom}-{a + b}={bottom - a - b}"]
    else:
        c, d = rng.randint(2, 9), rng.randint(2, 9)
        a, b, c, d = (a, b, c, d) if a * b >= c * d else (c, d, a, b)
        text = f"{name}有{a}盒，每盒{b}{things}，用去{c}盒，每盒{d}{things}。还剩多少{things}？"
        numbers, answer = (a, b, c, d), str(a * b - c * d)
        steps = [f"{a}*{b}={a * b}", f"{c}*{d}={c * d}", f"{a * b}-{c * d}={answer}"]
    final = f"答案是{answer}"
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=answer, question=text),
        direct=final,
        worked=working(rng, steps, leads=CHINESE_LEADS) + final,
    )


def gaokao_cloze(rng: random.Random) -> Problem:
    """Two blanks, both of which must be right."""
    kind = rng.choice(("values", "sequence", "function", "rectangle"))
    numbers: tuple[int, ...]
    if kind == "values":
        x, y = rng.randint(2, 12), rng.randint(2, 9)
        text = f"已知x={x}，y={y}，则x+y=____，xy=____。"
        numbers, blanks = (x, y), (x + y, x * y)
        steps = [f"{x}+{y}={x + y}", f"{x}*{y}={x * y}"]
    elif kind == "sequence":
        start, gap, place = rng.randint(1, 20), rng.randint(2, 9), rng.randint(4, 9)
        text = f"等差数列{start}，{start + gap}，{start + 2 * gap}，…的公差为____，第{place}项为____。"
        last = start + gap * (place - 1)
        numbers, blanks = (start, gap, place), (gap, last)
        steps = [f"{start + gap}-{start}={gap}", f"{gap}*{place - 1}={gap * (place - 1)}"]
        steps.append(f"{start}+{gap * (place - 1)}={last}")
    elif kind == "function":
        a, b = rng.randint(2, 9), rng.randint(1, 20)
        x, y = rng.sample(range(1, 10), 2)
        text = f"函数f(x)={a}x+{b}，则f({x})=____，f({y})=____。"
        numbers, blanks = (a, b, x, y), (a * x + b, a * y + b)
        steps = [f"f({x})={a * x}+{b}={a * x + b}", f"f({y})={a * y}+{b}={a * y + b}"]
    else:
        a, b = sorted((rng.randint(2, 9), rng.randint(2, 12)))
        text = f"矩形的长为{b}，宽为{a}，则面积为____，周长为____。"
        numbers, blanks = (a, b), (a * b, 2 * (a + b))
        steps = [f"{a}*{b}={a * b}", f"{a}+{b}={a + b}", f"{a + b}*2={2 * (a + b)}"]
    final = "答案是" + "；".join(str(blank) for blank in blanks)
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=";".join(str(blank) for blank in blanks), question=text),
        direct=final,
        worked=working(rng, steps, leads=CHINESE_LEADS) + final,
    )
