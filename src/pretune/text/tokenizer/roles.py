"""Roles of special tokens, from the config files of a tokenizer or from their spellings."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pretune.text.templates import SpecialPart, TokenTemplate

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
_SPELLINGS = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "unk": ("[UNK]", "<unk>", "<|unk|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "bos": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"),
}
_SENTINEL = re.compile(r"<extra_id_([0-9]{1,6})>")


class Roles(NamedTuple):
    """Ids of the special tokens by role, and the sentinels in order."""

    special: dict[str, int]
    sentinels: tuple[int, ...]


def find_roles(
    vocabulary: Mapping[str, int], added_tokens: Iterable[str], config: Mapping[str, Any], template: TokenTemplate
) -> Roles:
    """Find the roles given in `config`, or else by the spellings of the added tokens.

    The first and last token of the template are bos and eos if nothing else is known. A role whose token is not in the
    vocabulary is omitted.
    """
    added_tokens = list(added_tokens)
    special: dict[str, int] = {}
    for role in ROLES:
        token = get_token_text(config.get(f"{role}_token"))
        if token in vocabulary:
            special[role] = vocabulary[token]
    if not special:  # NOTE: if the config has roles, a missing role is intended
        for role, spellings in _SPELLINGS.items():
            spelling = next((token for token in spellings if token in added_tokens and token in vocabulary), None)
            if spelling is not None:
                special[role] = vocabulary[spelling]
        first, last = template.single[0], template.single[-1]
        if isinstance(first, SpecialPart) and not {"cls", "bos"} & {*special}:
            special["bos"] = first.token
        if isinstance(last, SpecialPart) and not {"sep", "eos", "cls"} & {*special}:
            special["eos"] = last.token
    candidates = [token for token in vocabulary if token.startswith("<extra_id_")]
    numbered_sentinels = [
        (int(match[1]), vocabulary[token]) for token in candidates if (match := _SENTINEL.fullmatch(token))
    ]
    return Roles(special, tuple(i for _, i in sorted(numbered_sentinels)))


def get_token_text(value: object) -> str:
    """Return the text of a token in a config file: a string, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
