"""The page in headless Chromium: every tab used as a person would, by mouse and keyboard.

With PRETUNE_PICTURES=DIR the tests save pictures of every tab, in light and dark and at the width of a phone.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune.server.app import PAGE_DIR
from pretune.server.capabilities import TextTokenizer
from tests.inference.speakers import bert, chatter, gpt
from tests.server.browser import MISSING, Browser, open_browser
from tests.server.models import Address, run_server
from tests.server.playground import HOSTILE, build_all

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
PICTURES = os.environ.get("PRETUNE_PICTURES")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """All kinds of models."""
    with run_server(build_all(tmp_path_factory.mktemp("models"))) as address:
        yield address


def visit(browser: Browser, server: Address, tab: str) -> None:
    """Open the page anew at a tab."""
    browser.open("about:blank")
    browser.log()
    browser.open(f"{server.url}/#{tab}")
    browser.find(f"#panel-{tab}")


def check(browser: Browser, name: str) -> None:
    """Nothing was refused or failed, and at no width does the page need to be moved sideways; saves pictures."""
    assert browser.log() == [], name
    assert browser.run("return document.title") == "pretune"  # no script of a model has run
    for width in (1100, 360):
        browser.set_width(width, 1200)
        assert browser.run("return document.documentElement.scrollWidth") <= width, (name, width)
        for theme in ("light", "dark") if PICTURES else ():
            browser.set_theme(theme)
            browser.save_picture(Path(str(PICTURES)) / f"{name}-{width}-{theme}.png")
    browser.set_width(1100, 900)
    browser.set_theme("light")


def test_write_and_fill_by_keyboard(browser: Browser) -> None:
    """The quick test: tabs by arrow keys, a continuation by Tab, a hidden word by Enter."""
    with run_server({"gpt": gpt(), "bert": bert()}) as server:
        visit(browser, server, "write")
        browser.click("#panel-write textarea")
        browser.type("The old house")
        first = browser.wait(lambda: browser.text(".alternative[aria-current=true]").strip("… "), "no continuation")
        browser.wait(lambda: len(browser.find_all(".alternative")) == 3, "not three alternatives")
        browser.wait(lambda: server.engine.running_requests == 0, "it does not end")
        first = browser.run("return document.querySelector('.alternative').textContent")
        assert browser.run("return document.querySelector('.ghost').textContent") == first
        browser.press("tab")
        text = browser.run("return document.querySelector('#panel-write textarea').value")
        assert text.startswith("The old house" + first)  # the last pieces may have come in between
        browser.wait(lambda: browser.find_all(".alternative"), "the text does not grow further")
        browser.press("escape", "tab")  # without continuations Tab leaves the field
        assert browser.run("return document.activeElement.tagName") != "TEXTAREA"
        browser.run("document.getElementById('tab-write').focus()")
        browser.press("right")
        assert browser.focus() == "Fill" and browser.find("#panel-fill")
        browser.run("document.querySelector('#panel-fill button.word').focus()")
        browser.press("enter")
        browser.wait_for("Hidden: The", "#panel-fill")
        shares = browser.run(
            "return [...document.querySelectorAll('#panel-fill .bar .value')].map(e => parseFloat(e.innerText))"
        )
        expected = [
            round(100 * guess.probability, 1)
            for guess in pt.fill(bert(), "[MASK] old man saw a big red bird in the garden.", k=8)[0]
        ]
        assert shares == pytest.approx(expected, abs=0.51)
        browser.run("document.getElementById('tab-fill').focus()")
        browser.press("end")
        assert browser.focus() == "Models"
        browser.press("right")
        assert browser.focus() == "Write"
        visit(browser, server, "classify")
        browser.wait_for("No served model can classify: serve a fine-tuned run", "#panel-classify")
        visit(browser, server, "search")
        browser.wait_for("No served model can search: serve an index", "#panel-search")
        assert browser.log() == []


def test_chat(browser: Browser) -> None:
    """Messages and answers in turn; the tab is there for a model with a chat template only."""
    with run_server({"chatter": chatter()}) as server:
        visit(browser, server, "chat")
        for message, count in (("She", 2), ("He", 4)):
            browser.click("#panel-chat form textarea")
            browser.type(message)
            browser.press("enter")
            browser.wait(lambda: server.engine.running_requests == 0, "it does not end")
            browser.wait(lambda count=count: len(browser.find_all(".chat li")) == count, "no answer")
        said = browser.run("return [...document.querySelectorAll('.chat .said')].map(e => e.textContent)")
        assert said[0] == "She" and said[2] == "He" and said[1].strip("… ")
        browser.click("#panel-chat .actions button:last-child")
        browser.wait(lambda: not browser.find_all(".chat li"), "the chat is still there")
        check(browser, "chat")
    with run_server({"gpt": gpt()}) as server:
        visit(browser, server, "write")
        assert browser.find_all("#tab-chat") == []


def test_api_page_sends_its_examples(browser: Browser) -> None:
    with run_server({"gpt": gpt(), "bert": bert()}) as server:
        browser.open("about:blank")
        browser.log()
        browser.open(f"{server.url}/docs")
        browser.click("#post-fill summary")
        area = "#post-fill textarea"
        browser.wait(lambda: '"bert"' in browser.run(f"return document.querySelector('{area}').value"), "no model")
        browser.click("#post-fill button")
        browser.wait_for('"results"', "#post-fill .reply")
        browser.click("#post-search summary")
        browser.wait_for("No served model can do this.", "#post-search .reply")
        assert browser.log() == []
        for width in (1100, 360):
            browser.set_width(width, 1200)
            assert browser.run("return document.documentElement.scrollWidth") <= width
        browser.set_width(1100, 900)


@pytest.mark.slow
class TestTabs:
    """Every tab with tiny models that were trained for it."""

    def test_write(self, browser: Browser, server: Address) -> None:
        visit(browser, server, "write")
        browser.type("The old house", "#panel-write textarea")
        browser.wait(lambda: len(browser.find_all(".alternative")) == 3, "not three alternatives")
        browser.wait(lambda: server.engine.running_requests == 0, "it does not end")
        check(browser, "write")
        browser.click("#panel-write textarea")
        browser.press("alt+down")
        texts = browser.run("return [...document.querySelectorAll('.alternative')].map(e => e.textContent)")
        assert browser.run("return document.querySelector('.ghost').textContent") == texts[1]
        browser.click(".alternatives li:nth-child(3) button")
        assert browser.run("return document.querySelector('#panel-write textarea').value") == "The old house" + texts[2]
        # Temperature 0 has one continuation, that of greedy search.
        browser.type("The old house", "#panel-write textarea")
        browser.run(
            "const e = document.querySelector('#panel-write input[type=range]');"
            "e.value = 0; e.dispatchEvent(new Event('change'))"
        )
        browser.wait(
            lambda: server.engine.running_requests == 0 and len(browser.find_all(".alternative")) == 1, "not one"
        )
        expected = pt.generate(gpt(), ["The old house"], temperature=0, max_new_tokens=12)[0].removeprefix(
            "The old house"
        )
        browser.wait(
            lambda: browser.run("return document.querySelector('.alternative').textContent") == expected, expected
        )
        # A text longer than the model reads is continued from its last part.
        browser.type("The old house was quiet. " * 12, "#panel-write textarea")
        browser.wait_for("The text is longer than the model can read", "#panel-write")
        assert browser.find_all(".alternative") and browser.log() != []  # the console names the refused requests

    def test_fill(self, browser: Browser, server: Address) -> None:
        visit(browser, server, "fill")
        browser.click_text("old", "#panel-fill button.word")
        browser.wait_for("Hidden: old", "#panel-fill")
        browser.click_text("big", "#panel-fill button.word")
        browser.wait_for("Hidden: big", "#panel-fill")
        assert len(browser.find_all("#panel-fill .bars")) == 2 and len(browser.find_all("#panel-fill .bar")) == 16
        check(browser, "fill")
        guess = browser.run("return document.querySelector('#panel-fill .bar button').innerText")
        browser.click("#panel-fill .bar button")
        text = browser.run("return document.querySelector('#panel-fill textarea').value")
        assert text.startswith(f"The {guess.strip()} man")
        browser.wait_for("Press a word above to hide it.", "#panel-fill")
        browser.type("a ___ day", "#panel-fill textarea")
        browser.wait_for("Blank", "#panel-fill")

    def test_classify_labels(self, browser: Browser, server: Address) -> None:
        visit(browser, server, "classify")
        assert browser.run("return document.querySelector('#panel-classify textarea').value")  # an example
        browser.type("a lovely warm film", "#panel-classify textarea")
        browser.press("control+enter")
        browser.wait_for("Tokens that mattered for “", "#panel-classify")
        sides = {side: browser.find_all(f"#panel-classify .key .token.{side}") for side in ("for", "against")}
        assert all(len(elements) == 1 for elements in sides.values())  # the legend
        script = (
            "return [...document.querySelectorAll('#panel-classify .track .fill.for, #panel-classify .fill.against')]"
            ".map(e => [e.className, getComputedStyle(e).backgroundImage.split('(')[0]])"
        )
        assert {tuple(bar) for bar in browser.run(script)} <= {
            ("fill for", "none"),
            ("fill against", "repeating-linear-gradient"),
        }
        shown = browser.text("#panel-classify")
        assert HOSTILE in shown and "✓ predicted" in shown  # the label is text
        tokens = [
            token["token"]
            for token in server.engine.workers["reviews"].model.get(TextTokenizer).run("a lovely warm film")
        ]
        names = browser.run("return [...document.querySelectorAll('.tokens .token')].map(e => e.textContent)")
        assert names == tokens
        browser.click_text("good", "#panel-classify .bar button")
        browser.wait_for("Tokens that mattered for “good”", "#panel-classify")
        check(browser, "classify-labels")

    def test_classify_tags_and_spans(self, browser: Browser, server: Address) -> None:
        visit(browser, server, "classify")
        browser.select("names", "#panel-classify select")
        browser.type("Tom met Sue in the big park", "#panel-classify textarea")
        browser.click_text("Classify", "#panel-classify button")
        browser.wait_for("Tokens that mattered for “all tags”", "#panel-classify")
        marks = browser.run(
            "return [...document.querySelectorAll('mark.tag')].map(e => e.innerText.replace(/\\s+/g, ' '))"
        )
        assert marks == ["Tom PER", "Sue PER", "park LOC"]
        check(browser, "classify-tags")
        browser.click_text("LOC", "#panel-classify mark button")
        browser.wait_for("Tokens that mattered for “B-LOC”", "#panel-classify")
        browser.select("answers", "#panel-classify select")
        browser.type("Who met Sue?", "#panel-classify textarea")
        browser.type("Tom met Sue in the big park.", "#panel-classify .field:nth-of-type(2) textarea")
        browser.click_text("Classify", "#panel-classify button")
        browser.wait_for("Tokens that mattered for “answer”", "#panel-classify")
        assert browser.text("#panel-classify .reading mark") == "Tom"
        check(browser, "classify-span")

    def test_compare(self, browser: Browser, server: Address) -> None:
        visit(browser, server, "compare")
        browser.select("bert", "#panel-compare select")
        browser.type("The old house was quiet.", "#panel-compare textarea")
        browser.click_text("house", "#panel-compare .words button")
        browser.wait_for("Neighbours of “house”", "#panel-compare")
        browser.wait_for("Neighbours of “bank”", "#panel-compare")
        text = browser.text("#panel-compare")
        assert "In context" in text and "Static vector" in text and "last layer" in text
        examples = (PAGE_DIR / "compare.js").read_text(encoding="utf-8")
        shown = browser.run(
            "return [...document.querySelectorAll('#panel-compare .hits mark')].map(e => e.textContent)"
        )
        assert shown and all(word in examples for word in shown)  # no text of a model is shown unasked
        assert len(browser.find_all("#panel-compare .hits li")) == 12
        check(browser, "compare")
        browser.select("1", "#panel-compare .row select")
        browser.wait_for("layer 1", "#panel-compare .bar")
        browser.select("vectors", "#panel-compare select")
        browser.wait_for("no vector of", "#panel-compare")
        browser.type("The cat sat.", "#panel-compare textarea")
        browser.click_text("cat", "#panel-compare .words button")
        browser.type("The dog sat.", "#panel-compare .columns > div:nth-child(2) textarea")
        browser.click_text("dog", "#panel-compare .words button")
        browser.wait_for("Word vectors have one vector per word", "#panel-compare")

    def test_attention(self, browser: Browser, server: Address) -> None:
        visit(browser, server, "attention")
        browser.select("bert", "#panel-attention select")
        browser.type("The old house was quiet", "#panel-attention textarea")
        browser.wait(lambda: "house" in browser.text("#panel-attention .words"), "no tokens")
        assert len(browser.find_all("#panel-attention .head")) == 2 * (1 + 4)
        browser.click("#panel-attention [aria-label^='Layer 1, head 2']")
        browser.hover("#panel-attention .words button:nth-of-type(3)")
        browser.wait_for("attends to", "#panel-attention h4")
        view: Any = pt.view_attention(bert(), "The old house was quiet", layer=1, head=2)
        browser.wait_for(f"“{view.tokens[2]}”", "#panel-attention h4")
        shares = browser.run(
            "return [...document.querySelectorAll('.keys .value')].map(e => parseFloat(e.innerText.replace('<', '')))"
        )
        assert shares == pytest.approx([100 * float(weight) for weight in view.weights[2]], abs=0.56)
        check(browser, "attention")
        browser.run("document.querySelector('#panel-attention .head[aria-pressed=true]').focus()")
        browser.press("down")
        assert browser.focus().startswith("Layer 2, head 2")
        browser.press("enter")
        browser.wait_for("Layer 2, head 2", "#panel-attention .card h3")

    def test_search(self, browser: Browser, server: Address) -> None:
        visit(browser, server, "search")
        browser.type("the lovely park", "#panel-search input")
        browser.press("enter")
        browser.wait_for("By words", "#panel-search")
        assert "BM25" in browser.text("#panel-search") and "By meaning" in browser.text("#panel-search")
        words = browser.run("return [...document.querySelectorAll('section:nth-child(2) mark')].map(e => e.innerText)")
        assert {"lovely", "park"} <= {*words}
        assert "by meaning" in browser.text("#panel-search section:nth-child(2) li")
        browser.select("20", "#panel-search form select")
        browser.wait(lambda: len(browser.find_all("#panel-search section:first-child li")) == 13, "not all texts")
        assert HOSTILE in browser.text("#panel-search")
        check(browser, "search")

    def test_models(self, browser: Browser, server: Address) -> None:
        visit(browser, server, "models")
        browser.select("books", "#panel-models select")
        for title in ("Abilities", "Training curves", "Cost of training", "Data card", "Model card"):
            browser.wait_for(title, "#panel-models")
        assert len(browser.find_all("#panel-models figure")) == 2
        browser.click_text("README.md", "#panel-models summary")
        browser.wait_for("## Cost", "#panel-models")
        check(browser, "models-pretrained")
        browser.select("reviews", "#panel-models select")
        browser.wait_for("Scores", "#panel-models")
        check(browser, "models-finetuned")

    def test_token(self, browser: Browser) -> None:
        """A server with a token asks for it, and the page says if it is wrong."""
        with run_server({"gpt": gpt()}, token="secret") as server:
            browser.open(server.url)
            browser.type("wrong", "#token")
            browser.press("enter")
            browser.wait_for("This token is wrong.")
            browser.type("secret", "#token")
            browser.press("enter")
            browser.find("#panel-write")
