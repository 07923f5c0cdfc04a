"""Settings of `tokenizer_config.json` that disagree with `tokenizer.json`, against `AutoTokenizer`."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Raw

from pretune.core.errors import CheckpointError
from pretune.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="tokenizers are compared with transformers")

TEXTS = ("A café, the Café", "cafe\u0301 中国", "the NEW tok", " the  the", "[MASK] a", "")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_wordpiece(folder: Path, config: dict[str, Any], **options: Any) -> None:
    """Write a tokenizer with BERT's normalizer."""
    letters = [*"acefhtnwoké中国", *(f"##{c}" for c in "acefhtnwoké国"), "A", "C", "N", "E", "##E", "##W", ",", "the"]
    vocab = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    raw = Raw(models.WordPiece(vocab, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(**options)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    ends = [("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    raw.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    raw.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    write(folder, raw, config)


def write_bytes(folder: Path, config: dict[str, Any], prefix: bool) -> None:
    """Write a byte-level tokenizer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<|endoftext|>", *letters, "Ġt"])}
    raw = Raw(models.BPE(vocab, [("Ġ", "t")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    write(folder, raw, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"} | config)


def write(folder: Path, raw: Raw, config: dict[str, Any]) -> None:
    (folder / "tokenizer.json").write_text(raw.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def compare(folder: Path) -> list[list[int]]:
    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ids = [ours.encode(text) for text in TEXTS]
    assert ids == [theirs(text)["input_ids"] for text in TEXTS] and ours.vocab == len(theirs)
    return ids


@pytest.mark.parametrize(
    "name", ["BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer", "PreTrainedTokenizerFast"]
)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False},
    ],
)
def test_settings_of_the_normalizer(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    write_wordpiece(tmp_path, config | {"tokenizer_class": name}, lowercase=True)
    default = compare(tmp_path)
    write_wordpiece(tmp_path, config | {"tokenizer_class": name}, lowercase=False, strip_accents=False)
    assert (compare(tmp_path) == default) == (name != "PreTrainedTokenizerFast")


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("prefix", [True, False])
def test_the_space_before_a_text(tmp_path: Path, name: str, prefix: bool) -> None:
    config = {"tokenizer_class": name, "add_prefix_space": prefix}
    write_bytes(tmp_path, config, prefix=True)
    with_prefix = compare(tmp_path)
    write_bytes(tmp_path, config, prefix=False)
    assert (compare(tmp_path) == with_prefix) == (name == "GPT2Tokenizer")


@pytest.mark.parametrize("special", [True, False])
def test_tokens_that_only_the_config_has(tmp_path: Path, special: bool) -> None:
    write_bytes(tmp_path, {}, prefix=False)
    size = Tokenizer.load(tmp_path).vocab
    token = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": special}
    added = {str(size + 1): {"content": "tok", **token}, str(size): {"content": "NEW", **token}}
    write_bytes(tmp_path, {"added_tokens_decoder": added, "tokenizer_class": "PreTrainedTokenizerFast"}, prefix=False)
    ids = compare(tmp_path)[2]
    assert ids[-3:][0] == size and ids[-1] == size + 1
    assert Tokenizer.load(tmp_path).special_ids >= ({size, size + 1} if special else set())


def test_a_setting_that_is_not_applied_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_wordpiece(tmp_path, {"do_lower_case": False}, lowercase=True)
    tokenizer = Tokenizer.load(tmp_path)
    assert "do_lower_case" in capsys.readouterr().err
    write_wordpiece(tmp_path, {"added_tokens_decoder": {"900": {"content": "NEW"}}}, lowercase=True)
    Tokenizer.load(tmp_path)
    assert "NEW" in capsys.readouterr().err
    pickle.loads(pickle.dumps(tokenizer))
    for config in ({"do_lower_case": True}, {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}):
        write_wordpiece(tmp_path, config, lowercase=True)
        Tokenizer.load(tmp_path)
    assert not capsys.readouterr().err


def test_copies_keep_the_settings(tmp_path: Path) -> None:
    write_wordpiece(tmp_path, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}, lowercase=True)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("A") != tokenizer.encode("a")
    for copy in (pickle.loads(pickle.dumps(tokenizer)), tokenizer.with_tokens({"eos": "[EOS]"})):
        assert copy.encode("A café") == tokenizer.encode("A café")
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode("A café") == tokenizer.encode("A café")


@pytest.mark.parametrize(
    "config",
    [
        {"do_lower_case": "yes", "tokenizer_class": "BertTokenizer"},
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"x": {"content": "a"}}},
    ],
)
def test_damaged_settings_are_one_error(tmp_path: Path, config: dict[str, Any]) -> None:
    write_wordpiece(tmp_path, config, lowercase=True)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json") as error:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(error.value)
