"""Which token is for what: found in the files beside a tokenizer, or else from how its special tokens are spelled."""

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
    """The ids of the special tokens by what they are for, and the sentinels in their order."""

    special: dict[str, int]
    sentinels: tuple[int, ...]


def find_roles(
    vocabulary: Mapping[str, int], added_tokens: Iterable[str], config: Mapping[str, Any], template: TokenTemplate
) -> Roles:
    """The roles that `said` (the files beside a tokenizer) gives, then those of the `marked` tokens' spellings.

    What the template puts first and last is the beginning and the end where nothing else is known of them. A role whose
    token is not in the vocabulary is left out.
    """
    added_tokens = list(added_tokens)
    special: dict[str, int] = {}
    for role in ROLES:
        token = get_token_text(config.get(f"{role}_token"))
        if token in vocabulary:
            special[role] = vocabulary[token]
    if not special:  # NOTE: where files say something, a role they leave out is meant to be absent
        for role, spellings in _SPELLINGS.items():
            found = next((token for token in spellings if token in added_tokens and token in vocabulary), None)
            if found is not None:
                special[role] = vocabulary[found]
        first, last = template.single[0], template.single[-1]
        if isinstance(first, SpecialPart) and not {"cls", "bos"} & {*special}:
            special["bos"] = first.token
        if isinstance(last, SpecialPart) and not {"sep", "eos", "cls"} & {*special}:
            special["eos"] = last.token
    likely = [token for token in vocabulary if token.startswith("<extra_id_")]
    numbered = [(int(match[1]), vocabulary[token]) for token in likely if (match := _SENTINEL.fullmatch(token))]
    return Roles(special, tuple(i for _, i in sorted(numbered)))


def get_token_text(value: object) -> str:
    """A token as the files write it: a string, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
