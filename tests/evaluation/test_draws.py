from __future__ import annotations

from pathlib import Path

from agpo_bench.evaluation.draws import Draw, DrawFile, draw_key


def _draw(key: str, text: str = "t") -> Draw:
    return Draw(draw_key=key, text=text, is_truncated=False, num_tokens=1)


def test_draws_come_back_after_reopening(tmp_path: Path) -> None:
    file = DrawFile(tmp_path / "sub/draws.jsonl")
    file.add([_draw("a", "\u2028 \x00 \n半")])
    file.add([_draw("b")])
    again = DrawFile(tmp_path / "sub/draws.jsonl")
    assert again.get("a") == _draw("a", "\u2028 \x00 \n半")
    assert again.get("b") is not None
    assert again.get("c") is None


def test_a_torn_tail_is_cut_before_anything_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "draws.jsonl"
    DrawFile(path).add([_draw("a"), _draw("b")])
    whole = path.read_bytes()
    for size in range(len(whole) // 2 + 1, len(whole)):
        path.write_bytes(whole[:size])
        file = DrawFile(path)
        assert file.get("a") is not None
        assert file.get("b") is None
        file.add([_draw("b")])
        assert path.read_bytes() == whole


def test_draws_that_the_samples_do_not_take_stay(tmp_path: Path) -> None:
    path = tmp_path / "draws.jsonl"
    file = DrawFile(path)
    file.add([_draw("a"), _draw("b")])
    file.close(taken={"a"})
    assert DrawFile(path).get("b") is not None
    assert DrawFile(path).get("a") is None
    DrawFile(path).close(taken={"b"})
    assert not path.exists()


def test_what_only_earlier_samples_hold_is_written_down_before_they_are_replaced(tmp_path: Path) -> None:
    samples, path = tmp_path / "samples.jsonl", tmp_path / "draws.jsonl"
    samples.write_text("".join(_draw(key).model_dump_json() + "\n" for key in "abc"))
    file = DrawFile(path, earlier=[samples])
    file.take_over(but={"a"})
    samples.unlink()
    assert [DrawFile(path).get(key) is not None for key in "abc"] == [False, True, True]
    file.close(taken={"a"})
    assert [DrawFile(path).get(key) is not None for key in "abc"] == [False, True, True]
    unasked = DrawFile(tmp_path / "other.jsonl", earlier=[path])
    unasked.close(taken=set())
    assert not (tmp_path / "other.jsonl").exists()


def test_draws_of_weights_that_are_gone_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "draws.jsonl"
    DrawFile(path, model="old").add([_draw("a")])
    file = DrawFile(path, model="new")
    assert file.get("a") is None
    file.add([_draw("b")])
    file.close(taken=set())
    assert path.read_text().count("\n") == 1
    assert DrawFile(path, model="new").get("b") is not None


def test_lines_of_another_kind_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "draws.jsonl"
    path.write_text('{"draw_key": "x"}\nnot json\n[]\n\n' + _draw("a").model_dump_json() + "\n")
    file = DrawFile(path)
    assert file.get("a") is not None
    assert file.get("x") is None


def test_keys_tell_apart_what_text_alone_would_not() -> None:
    assert draw_key("ab", "c") != draw_key("a", "bc")
    assert draw_key("a", ("b",)) == draw_key("a", ["b"])
    assert draw_key("\ud800") != draw_key("?")
