import lzma
from pathlib import Path

import pytest

from pretune.text.language import UNKNOWN, guess_language

UDHR = {
    "arb": "ar",
    "ces": "cs",
    "cmn_hans": "zh",
    "ell_monotonic": "el",
    "eng": "en",
    "fin": "fi",
    "fra": "fr",
    "heb": "he",
    "hin": "hi",
    "jpn": "ja",
    "kor": "ko",
    "pol": "pl",
    "por_PT": "pt",
    "rus": "ru",
    "spa": "es",
    "swh": "sw",
    "tha": "th",
    "tur": "tr",
    "ukr": "uk",
    "vie": "vi",
}


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("This is the house that Jack built, and he was proud of it.", "en"),
        ("Dit is het huis dat Jan heeft gebouwd, en hij is er trots op.", "nl"),
        ("Questa è la casa che Giovanni ha costruito, e ne è molto fiero.", "it"),
        ("Det här är huset som Johan har byggt, och han är stolt över det.", "sv"),
        ("Dette er huset, som Jens har bygget, og han er stolt af det.", "da"),
        ("Ez az a ház, amelyet János épített, és nagyon büszke rá, hogy áll.", "hu"),
        ("Aceasta este casa pe care a construit-o Ion și este mândru de ea.", "ro"),
        ("Ini adalah rumah yang dibangun oleh Joko dan dia bangga dengan itu.", "id"),
        ("Това е къщата, която Иван построи, и той се гордее с нея.", "bg"),
        ("این خانه‌ای است که جان ساخته است و او به آن افتخار می‌کند.", "fa"),
        ("یہ وہ گھر ہے جو جان نے بنایا اور اس کو اس پر فخر ہے۔", "ur"),
        ("「これは家です」と彼は言った。", "ja"),
        ("这是杰克盖的房子。", "zh"),
        ("", UNKNOWN),
        ("12345 !?", UNKNOWN),
        ("Xyzzy plugh", UNKNOWN),
        ("the", UNKNOWN),
    ],
)
def test_a_sentence(text: str, language: str) -> None:
    assert guess_language(text) == language


@pytest.mark.parametrize("name", UDHR)
def test_the_declaration_of_human_rights(shared_data: Path, name: str) -> None:
    with lzma.open(shared_data / f"corpora/udhr/{name}.txt.xz", "rt", encoding="utf-8") as file:
        assert guess_language(file.read()) == UDHR[name]


def test_paragraphs_of_it(shared_data: Path) -> None:
    """What may be expected of a paragraph of 100 characters and more: 96 % right, hardly any of the rest wrong."""
    right = wrong = total = 0
    for name, language in UDHR.items():
        with lzma.open(shared_data / f"corpora/udhr/{name}.txt.xz", "rt", encoding="utf-8") as file:
            found = [guess_language(line) for line in map(str.strip, file) if len(line) >= 100]
        total += len(found)
        right += found.count(language)
        wrong += len(found) - found.count(language) - found.count(UNKNOWN)
    assert total > 700
    assert right / total > 0.96
    assert wrong / total < 0.005
