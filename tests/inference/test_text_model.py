"""Models that came with the same tokenizer share it."""

from pathlib import Path

from pretune.inference.text_model import get_tokenizer
from pretune.models.hf import checkpoint
from tests.runs import tasked


def test_models_with_the_same_files_share_a_tokenizer(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path / "a")
    first, second = checkpoint.load(base), checkpoint.load(base)
    assert get_tokenizer(first) is get_tokenizer(second) is get_tokenizer(first)


def test_other_roles_are_another_tokenizer(tmp_path: Path) -> None:
    base = tasked.make_base(tmp_path / "a")
    first = checkpoint.load(base)
    remaining = get_tokenizer(first)
    file = base / "tokenizer_config.json"
    file.write_text(file.read_text().replace("{", '{"model_max_length": 7,', 1))
    assert get_tokenizer(checkpoint.load(base)).length == 7 and remaining.length != 7
