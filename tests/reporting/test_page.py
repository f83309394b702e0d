"""The page in a real browser, opened from disk as a reader would."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agpo_bench.evaluation.results import AskedItem, write_items, write_result, write_samples
from agpo_bench.reporting.report import build_report
from tests.reporting.conftest import make_result, sample

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed; the test extra brings it")
RunWriter = Callable[..., Path]
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><!-- \u2028 &amp; ${1} 🙂"

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="no chromium and chromedriver on this machine; CI installs them",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
        "--window-size=1280,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def _hostile_samples(root: Path) -> None:
    """Item 0 of every result gets a question, a response and an answer that try to leave their place."""
    for folder in root.glob("**/eval/gsm8k"):
        lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        kept = [sample(0, 0, is_right='"score":1.0' in lines[0], text=HOSTILE, answer=HOSTILE, reason="<b>bold</b>")]
        first = kept[0].model_dump_json()
        (folder / "samples.jsonl").write_text("\n".join([first, *lines[1:]]) + "\n", encoding="utf-8")
        items = (folder / "items.jsonl").read_text(encoding="utf-8").splitlines()
        asked = AskedItem(doc_id=0, prompt_id="gsm8k/test/0", prompt=HOSTILE, gold=HOSTILE).model_dump_json()
        (folder / "items.jsonl").write_text("\n".join([asked, *items[1:]]) + "\n", encoding="utf-8")


@pytest.fixture
def page(runs: Path, tmp_path: Path, browser: Any) -> Any:
    _hostile_samples(runs)
    report = build_report(runs, out=tmp_path / "report", formats=["html"])
    browser.get(report.main_file.as_uri())
    return browser


def _errors(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def _wait(browser: Any, condition: str, seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = browser.execute_script(f"return {condition}")
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"the page never came to: {condition}")


def _open_items(browser: Any) -> None:
    browser.execute_script("document.getElementById('items').scrollIntoView()")
    _wait(browser, "document.documentElement.dataset.items === 'ready'")


def _choose(browser: Any, select: str, value: str) -> None:
    browser.execute_script(
        "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        "s.dispatchEvent(new Event('change', {bubbles: true}))",
        select,
        value,
    )


def test_the_page_opens_from_disk_without_an_error_or_a_request(page: Any) -> None:
    _open_items(page)
    assert page.find_element("css selector", "h1").text == "agpo-bench report"
    assert len(page.find_elements("css selector", "svg.panel")) > 5
    assert page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert _errors(page) == []


def test_a_column_sorts_down_then_up_then_back(page: Any) -> None:
    def column() -> list[str]:
        script = (
            "return [...document.querySelectorAll('#main_results tbody tr')]"
            ".map(r => r.cells[0].textContent + ' ' + r.cells[1].dataset.sort)"
        )
        return [str(text) for text in page.execute_script(script)]

    before = column()
    head = page.find_element("css selector", "#main_results thead tr:last-child th:nth-child(2) button")
    head.click()
    assert [float(text.split()[-1]) for text in column()] == [52.0, 52.0, 40.0]
    head.click()
    assert [float(text.split()[-1]) for text in column()] == [40.0, 52.0, 52.0]
    sort = page.find_element("css selector", "#main_results thead tr:last-child th:nth-child(2)")
    assert sort.get_attribute("aria-sort") == "ascending"
    head.click()
    assert column() == before


def test_a_cell_says_where_it_comes_from_and_the_keyboard_closes_it(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    cell = page.find_element("css selector", "#main_results tbody tr:nth-child(2) button.cell")
    cell.send_keys(Keys.ENTER)
    drawer = page.find_element("id", "drawer")
    assert drawer.is_displayed()
    text = drawer.text
    assert "GRPO, GSM8K" in text
    assert "50.0000, 52.0000, 54.0000" in text
    assert "grpo/seed-42/eval/gsm8k/results.json" in text
    assert "150,100 of 150,000" in text
    assert "from samples.jsonl" in text
    details = page.find_elements("css selector", "#drawer details")
    page.execute_script("arguments[0].open = true", details[0])
    assert "learning_rate" in details[0].text
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not drawer.is_displayed()


def test_items_are_filtered_by_flips_between_two_methods(page: Any) -> None:
    _open_items(page)
    _choose(page, "f-a", "agpo")
    _choose(page, "f-b", "grpo")
    # cmath, task 0 by name: mean of seeds 140, 130, 120 right against 121, 119, 120. Item i is right for a seed when
    # i < its count; half the seeds or more: AGPO i < 130, GRPO i < 120.
    tasks = page.execute_script("return [...document.getElementById('f-task').options].map(o => o.text)")
    _choose(page, "f-task", str(next(i for i, text in enumerate(tasks) if text.startswith("CMATH"))))
    _wait(page, "document.getElementById('count').textContent.includes('200 of 200')")
    _choose(page, "f-show", "flip")
    assert page.find_element("id", "count").text == "10 of 200 items"
    _choose(page, "f-show", "loss")
    assert page.find_element("id", "count").text == "0 of 200 items"
    _choose(page, "f-show", "all")
    box = page.find_element("id", "f-text")
    box.send_keys("what is 17?")
    assert page.find_element("id", "count").text == "1 of 200 items"
    box.clear()


def test_hostile_text_is_shown_and_never_run(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    _open_items(page)
    tasks = page.execute_script("return [...document.getElementById('f-task').options].map(o => o.text)")
    _choose(page, "f-task", str(next(i for i, text in enumerate(tasks) if text.startswith("GSM8K"))))
    _wait(page, "document.querySelector('.item')?.textContent.includes('gsm8k/test/0')")
    page.find_element("id", "list").send_keys(Keys.ARROW_DOWN)
    texts = page.execute_script("return [...document.querySelectorAll('#detail pre')].map(p => p.textContent)")
    assert texts[0] == HOSTILE
    assert texts.count(HOSTILE) > 1
    assert "<b>bold</b>" in page.find_element("id", "detail").text
    assert page.execute_script("return window.hacked === undefined")
    assert page.execute_script("return document.querySelectorAll('#detail img, #detail script, #detail b').length") == 0
    assert _errors(page) == []


def test_a_figure_shows_values_under_the_arrow_keys(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    panel = page.find_element("css selector", "#clip_and_kl svg.panel")
    assert "GRPO from 0.2 to 0.15" in panel.get_attribute("aria-label")
    panel.send_keys(Keys.ARROW_RIGHT)
    tip = page.find_element("id", "tip")
    assert tip.is_displayed()
    assert "GRPO: 0.19" in tip.text


def test_light_and_dark_differ_and_the_page_fits_a_phone(page: Any) -> None:
    colours = []
    for _ in range(2):
        colours.append(page.execute_script("return getComputedStyle(document.body).backgroundColor"))
        page.find_element("id", "theme").click()
    assert colours[0] != colours[1]
    page.set_window_size(500, 850)  # chromium's narrowest window; the frame below is a phone's width
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        assert page.execute_script("return document.documentElement.scrollWidth") <= 375
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.set_window_size(1280, 900)


def _many(root: Path, write_run: RunWriter) -> None:
    """Five runs of one task with 2,000 items and ten draws each: 100,000 samples."""
    for number in range(5):
        directory = write_run(root, f"method{number}", 42, {})
        lines = [
            sample(
                item, draw, is_right=(item + draw + number) % 3 == 0, text=f"{item} and {draw} make {item + draw}. " * 4
            )
            for item in range(2000)
            for draw in range(10)
        ]
        right = sum(line.score for line in lines if line.draw == 0)
        sampled = [line.score for line in lines if line.draw > 0]
        result = make_result(
            num_items=2000,
            num_draws=9,
            score_sum=right,
            avg_sampled=sum(sampled) / len(sampled),
            temperature=1.0,
            top_p=0.95,
            method=f"method{number}",
            seed=42,
            tokens_used=150_100,
            budget=150_000,
        )
        folder = directory / "eval" / "gsm8k"
        write_samples(folder / "samples.jsonl", lines)
        asked = [
            AskedItem(doc_id=i, prompt_id=f"gsm8k/test/{i}", prompt=f"What is {i}?", gold=str(i)) for i in range(2000)
        ]
        write_items(folder / "items.jsonl", asked)
        write_result(folder / "results.json", result)


@pytest.mark.slow
def test_a_hundred_thousand_samples_stay_responsive(tmp_path: Path, write_run: RunWriter, browser: Any) -> None:
    _many(tmp_path / "runs", write_run)
    report = build_report(tmp_path / "runs", out=tmp_path / "report", formats=["html"])
    browser.get(report.main_file.as_uri())
    _open_items(browser)
    assert browser.find_element("id", "count").text == "2,000 of 2,000 items"
    # Milliseconds in the page for a filter over all items, and for jumping to the end of the list.
    script = (
        "const s = document.getElementById('f-show'); const t = performance.now(); s.value = arguments[0];"
        "s.dispatchEvent(new Event('change')); return performance.now() - t"
    )
    assert browser.execute_script(script, "flip") < 1000
    assert browser.execute_script(script, "all") < 1000
    browser.execute_script("const b = document.getElementById('list'); b.scrollTop = b.scrollHeight")
    _wait(browser, "document.getElementById('item-1999') !== null", seconds=5)
    assert browser.execute_script("return document.querySelectorAll('.item').length") < 40
    assert _errors(browser) == []
