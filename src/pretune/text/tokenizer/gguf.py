"""Tokenizers in GGUF files: byte-level BPE with its merges, and sentencepiece BPE with its scores."""

from typing import NamedTuple

from pretune.core.config.read import format_value
from pretune.core.errors import CheckpointError
from pretune.core.gguf import GgufFile

Json = dict[str, object]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED_TOKEN, BYTE = range(1, 7)
"""Kinds of tokens."""
MAX_PIECE = 512
"""Characters of a piece with a score; all ways to split it are tried."""
SPACE = "\u2581"
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}
"""Special tokens by role, as the format spells them."""
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Llama 3; that of Qwen2 takes digits one by one."""


class Splitter(NamedTuple):
    """A pre-tokenizer of byte-level BPE, with the settings of the models that have it.

    With `ignores_merges` a piece that is a token is not split; with `adds_start` texts start with a token if the file
    does not say.
    """

    pre_tokenizer: Json
    normalizer: Json | None = None
    ignores_merges: bool = False
    adds_start: bool = False


def _split_by(*steps: Json) -> Json:
    """Return the pre-tokenizer of some steps before the bytes are spelled; without steps, that of GPT-2."""
    is_pattern = any(step["type"] == "Split" for step in steps)
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not is_pattern}
    return {"type": "Sequence", "pretokenizers": [*steps, last]} if steps else last


def _match(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


BYTE_LEVEL, SENTENCEPIECE, NO_VOCABULARY = "gpt2", "llama", "no_vocab"
"""Kinds of tokenizers."""
DEFAULT_SPLITTER = "gpt-2"
SPLITTERS = {
    DEFAULT_SPLITTER: Splitter(_split_by()),
    "smollm": Splitter(_split_by({"type": "Digits", "individual_digits": True})),
    "llama-bpe": Splitter(_split_by(_match(_PATTERN)), ignores_merges=True, adds_start=True),
    "qwen2": Splitter(_split_by(_match(_PATTERN.replace("{1,3}", ""))), normalizer={"type": "NFC"}),
}
"""Ways to split text by the names of llama.cpp, which are those of models."""
_ALIASES = {"gpt2": "gpt-2", "olmo": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}


def build_tokenizer(file: GgufFile) -> tuple[Json, Json] | None:
    """Return the content of `tokenizer.json` and `tokenizer_config.json`; None for a file without vocabulary.

    Raises:
        CheckpointError: the tokenizer is damaged or of another kind.
    """
    kind = file.get("tokenizer.ggml.model", str, NO_VOCABULARY)
    if kind == NO_VOCABULARY:
        return None
    if kind not in (BYTE_LEVEL, SENTENCEPIECE):
        choices = f"{BYTE_LEVEL}, {SENTENCEPIECE}"
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.model = {format_value(kind)} is not supported (allowed: {choices})"
        )
    tokens = file.get_list("tokenizer.ggml.tokens", str)
    kinds = file.get_list("tokenizer.ggml.token_type", int) if "tokenizer.ggml.token_type" in file.metadata else []
    kinds = kinds or [NORMAL] * len(tokens)
    vocab = {token: i for i, token in enumerate(tokens) if kinds[i : i + 1] != [UNUSED_TOKEN]}
    if len(kinds) != len(tokens) or len(vocab) != len(tokens) - kinds.count(UNUSED_TOKEN):
        raise CheckpointError(f"{file.path}: a token appears twice, or not every one of {len(tokens)} has a type")
    content = _build_byte_level(file, vocab) if kind == BYTE_LEVEL else _build_sentencepiece(file, tokens, kinds, vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special_kinds = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}
    content["added_tokens"] = [
        {"id": i, "content": token, **flags, "special": special_kinds[kinds[i]]}
        for token, i in vocab.items()
        if kinds[i] in special_kinds
    ]
    roles = {role: _find_token(file, tokens, name) for role, name in ROLES.items()}
    adds_start = file.get("tokenizer.ggml.add_bos_token", bool, bool(content.pop("adds_start")))
    start = roles["bos"] if adds_start else None
    end = roles["eos"] if file.get("tokenizer.ggml.add_eos_token", bool, False) else None
    content["post_processor"] = _build_template(start, end, vocab)
    settings: Json = {f"{role}_token": token for role, token in roles.items() if token is not None}
    if template := file.get("tokenizer.chat_template", str, ""):
        settings["chat_template"] = template
    return content, {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **settings}


def find_token_id(file: GgufFile, name: str) -> int | None:
    """Return the id of a special token by the format's name of its role."""
    key = f"tokenizer.ggml.{name}_token_id"
    return file.get(key, int) if key in file.metadata else None


def _find_token(file: GgufFile, tokens: list[str], name: str) -> str | None:
    number = find_token_id(file, name)
    if number is not None and not 0 <= number < len(tokens):
        raise CheckpointError(f"{file.path}: the {name} token {number} is not one of {len(tokens)} tokens")
    return None if number is None else tokens[number]


def _build_byte_level(file: GgufFile, vocab: dict[str, int]) -> Json:
    name = file.get("tokenizer.ggml.pre", str, DEFAULT_SPLITTER)
    name = _ALIASES.get(name, name)
    if name not in SPLITTERS:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.pre = {format_value(name)} is not supported (allowed: {', '.join(SPLITTERS)})"
        )
    merges = [merge.split(" ") for merge in file.get_list("tokenizer.ggml.merges", str)]
    model = {"vocab": vocab, "merges": merges, "ignore_merges": SPLITTERS[name].ignores_merges}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "adds_start": SPLITTERS[name].adds_start,
        "normalizer": SPLITTERS[name].normalizer,
        "pre_tokenizer": SPLITTERS[name].pre_tokenizer,
        "decoder": byte_level,
        "model": {"type": "BPE", **model},
    }


def _build_sentencepiece(file: GgufFile, tokens: list[str], kinds: list[int], vocab: dict[str, int]) -> Json:
    """Return a BPE whose merges are all ways to build a piece of two, ranked by the score of the piece."""
    scores = file.get_list("tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise CheckpointError(f"{file.path}: {len(scores)} scores of {len(tokens)} tokens")
    pieces = {token: scores[i] for token, i in vocab.items() if kinds[i] == NORMAL and len(token) <= MAX_PIECE}
    splits = [
        (-score, vocab[piece[:cut]], vocab[piece[cut:]], piece[:cut], piece[cut:])
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    has_prefix = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    prefix = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    model = {"vocab": vocab, "merges": [[*split[3:]] for split in sorted(splits)], "byte_fallback": BYTE in kinds}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "adds_start": True,
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, space]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {"type": "BPE", **model, "unk_token": _find_token(file, tokens, "unknown"), "fuse_unk": True},
    }


def _build_template(start: str | None, end: str | None, vocab: dict[str, int]) -> Json | None:
    """Return the post-processor that adds special tokens around every text."""
    if start is None and end is None:
        return None

    def wrap(text: str, segment: int) -> list[Json]:
        parts: list[Json] = [{"Sequence": {"id": text, "type_id": segment}}]
        if start is not None:
            parts.insert(0, {"SpecialToken": {"id": start, "type_id": segment}})
        if end is not None:
            parts.append({"SpecialToken": {"id": end, "type_id": segment}})
        return parts

    names = {name for name in (start, end) if name is not None}
    return {
        "type": "TemplateProcessing",
        "single": wrap("A", 0),
        "pair": [*wrap("A", 0), *wrap("B", 1)],
        "special_tokens": {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in names},
    }
