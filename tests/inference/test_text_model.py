"""Models that came with the same tokenizer share it."""

from pathlib import Path

from pretune.inference.text_model import tokenizer_of
from pretune.models.hf import checkpoint
from tests.runs import tasked


def test_models_with_the_same_files_share_a_tokenizer(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path / "a")
    first, second = checkpoint.load(base), checkpoint.load(base)
    assert tokenizer_of(first) is tokenizer_of(second) is tokenizer_of(first)


def test_other_roles_are_another_tokenizer(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path / "a")
    first = checkpoint.load(base)
    kept = tokenizer_of(first)
    file = base / "tokenizer_config.json"
    file.write_text(file.read_text().replace("{", '{"model_max_length": 7,', 1))
    assert tokenizer_of(checkpoint.load(base)).length == 7 and kept.length != 7
