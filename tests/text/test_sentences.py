import gzip
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.core.errors import UsageError
from pretune.text.sentences import SPLITTERS, split_sentences
from tests.selection import keep_quick

texts = st.text(st.sampled_from("aB1 .!?…\n\"')(»「」。！،؟:;=-😀é"), max_size=60)


def parts(text: str, lang: str = "en") -> list[str]:
    """The sentences, without the white space between them."""
    starts = split_sentences(text, lang)
    return [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


@pytest.mark.parametrize("splitter", SPLITTERS.list_names())
@given(text=texts, lang=st.sampled_from(["en", "de", "ja", "xx"]))
def test_starts_are_starts(splitter: str, text: str, lang: str) -> None:
    starts = split_sentences(text, lang, splitter)
    assert starts[:1] == ([0] if text else [])
    assert starts == sorted({*starts})
    assert all(start < len(text) for start in starts)
    assert not any(text[start].isspace() for start in starts[1:])
    assert splitter == "naive" or all(text[:start].strip() for start in starts[1:]), "no sentence is only white space"


ENGLISH = {  # "|" stands where a sentence starts
    "plain": "He came.| She left.| They met!| Did they?| Yes.",
    "abbreviations": "Dr. Smith met Mr. J. R. Brown and Mrs. Lee, e.g. on Jan. 3 vs. Feb. 4.| It was No. 5 of vol. 2.",
    "companies": "Acme Inc. was sold.| It belongs to Acme Inc.| The price was low.| Acme Co. Ltd. bought it.",
    "initials": "J. R. R. Tolkien wrote it.| So did C. S. Lewis.| George W. Bush did not.",
    "dotted": "The U.S. Army is in Washington, D.C.| It has a Ph.D. program at 3 p.m. every day.",
    "decimals": "It cost $3.50.| Version 2.0.1 is at example.com/a.b?c=d!e and me@x.org.| Pi is 3.14.",
    "quotes": '"Why?" he asked.| "Go!" she said.| He said "no."| "Then leave."| (It was late.)| They left.',
    "ellipses": "Well... maybe not.| I think...| He left.| And so on…| Then … nothing.",
    "lower": "it works.| i like it!| do you?| yes.",
    "lists": "Do this: 1. Open it.| 2. Close it.",
    "faces": "I like it. :)| See you :-)| Bye!",
    "titles": "St. John lives on Main St.| He is 40.",
    "interjections": "Ah! what a day.| Oh! how nice.",
    "marks": "What?!| No!!!| Yes...",
    "spaced": "It is large .| It grows to 60 cm ( 24 in ) .| The end .",
    "capitals": "MR. SMITH WON.| THE END.",
    "white space": "  \n He came.|  She left. \n",
}


@pytest.mark.parametrize("name", ENGLISH)
def test_english(name: str) -> None:
    assert parts(ENGLISH[name].replace("|", "")) == [part.strip() for part in ENGLISH[name].split("|")]


@pytest.mark.parametrize(
    ("lang", "marked"),
    [
        ("de", "Am 3. Oktober kam Hr. Meier, d.h. spät.| Er blieb bis 1990.| »Gut.«| »Sehr gut!« sagte sie."),
        ("fr", "M. Dupont et Mme Roy sont là.| « Oui ! » dit-il.| C'est fini. »| Puis il partit."),
        ("es", "El Sr. López vino.| ¿Qué quiere?| ¡Nada!| Se fue."),
        ("ru", "Он родился в 1990 г. в Москве.| Это было давно.| Да!"),
        ("cs", "Je 5. května.| Pan dr. Novák přišel."),
        ("zh", "我去。|你呢？|「好。」|他走了！"),
        ("ja", "「そうだ。」と言った。|彼は行った。"),
        ("hi", "यह अच्छा है। |वह गया।"),
        ("ar", "هل أنت هنا؟ |نعم. |شكرا."),
    ],
)
def test_other_languages(lang: str, marked: str) -> None:
    assert parts(marked.replace("|", ""), lang) == [part.strip() for part in marked.split("|")]


def test_a_line_is_a_sentence_unless_it_was_wrapped() -> None:
    assert parts("A Title\nThe first sentence. The second\n\nAnother one") == [
        "A Title",
        "The first sentence.",
        "The second",
        "Another one",
    ]
    wrapped = (
        "This is a paragraph that somebody wrapped by hand at some sixty\n"
        "characters, as people do in mail. It goes on with another such\n"
        "Sentence that begins with a capital at the beginning of a line,\n"
        "and it ends here.\n"
        "- An item\n"
        "- Another item\n"
    )
    assert len(parts(wrapped)) == 4
    assert parts("one sentence per line\nno capitals anywhere\nand no stops") == [
        "one sentence per line",
        "no capitals anywhere",
        "and no stops",
    ]
    assert parts("Verse that goes\non in lower case\nAnd a new one") == [
        "Verse that goes\non in lower case",
        "And a new one",
    ]


def test_other_splitters() -> None:
    assert split_sentences("one. two\n\n three\n", splitter="lines") == [0, 11]
    assert split_sentences("Mr. A. B", splitter="naive") == [0, 4, 7]
    with pytest.raises(UsageError, match=r"'rulez'.*'rules'"):
        split_sentences("text", splitter="rulez")


@pytest.mark.parametrize(
    "unit",
    keep_quick(
        [".", "a.", ". ", "Mr. ", "1. ", "\n", "a\n", '."', "!?", "…", ":)", "ah! b ", "a. -", "。", " ", "“"],
        "Mr. ",
        "!?",
    ),
)
def test_time_grows_with_length_only(unit: str) -> None:
    def seconds(size: int) -> float:
        text = (unit * size)[:size] + "x"
        begin = time.process_time()
        split_sentences(text)
        return time.process_time() - begin

    small = max(min(seconds(20_000) for _ in range(3)), 1e-3)
    assert min(seconds(200_000) for _ in range(2)) < 40 * small  # 10 times as long; 100 would be quadratic


@pytest.mark.parametrize(("splitter", "least"), [("rules", 0.815), ("naive", 0.79)])
def test_ud_ewt(shared_data: Path, splitter: str, least: float) -> None:
    """F1 of boundaries on the test set, sentences joined by single spaces; bench/data/sentences.py says more."""
    right = found = gold = 0
    with gzip.open(shared_data / "tasks/ud_ewt/en_ewt-ud-test.conllu.gz", "rt", encoding="utf-8") as file:
        documents = file.read().split("# newdoc")[1:]
    for document in documents:
        sentences = [line[9:].strip() for line in document.split("\n") if line.startswith("# text = ")]
        ends = [len(" ".join(sentences[: count + 1])) + 1 for count in range(len(sentences) - 1)]
        ours = {*split_sentences(" ".join(sentences), "en", splitter)} - {0}
        right, found, gold = right + len(ours & {*ends}), found + len(ours), gold + len(ends)
    precision, recall = right / found, right / gold
    assert 2 * precision * recall / (precision + recall) > least
    assert splitter == "naive" or precision > 0.99
