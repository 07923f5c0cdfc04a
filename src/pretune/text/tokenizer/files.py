"""Files of a tokenizer, as read by `AutoTokenizer` of transformers, and the roles of its special tokens.

`tokenizer.json` is the tokenizer; `tokenizer_config.json` and `special_tokens_map.json` hold the roles of special
tokens and the padding side, and declare a generic tokenizer class.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, PreTokenizedString, Token
from tokenizers import Tokenizer as Raw
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import ByteLevel

from pretune.core import io, log
from pretune.core.errors import CheckpointError, PretuneError, suggest_file
from pretune.core.hub import is_gguf, resolve_path
from pretune.core.log import join_names
from pretune.text.template import TEXT_A, TEXT_B, Layout, TokenTemplate


@contextlib.contextmanager
def translate_errors(error: type[PretuneError], message: str) -> Iterator[None]:
    """Raise exceptions of the library as `error` with a one-line message."""
    try:
        yield
    except (PretuneError, MemoryError, TypeError):
        raise
    except BaseException as fault:
        # NOTE: the library raises bare Exception, and its panics are not even Exceptions.
        if not isinstance(fault, Exception) and type(fault).__name__ != "PanicException":
            raise
        words = " ".join(str(fault).split())[:200] or type(fault).__name__
        raise error(f"{message} ({''.join(c if c.isprintable() else '?' for c in words)})") from None


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


def find_roles(
    vocabulary: Mapping[str, int], added_tokens: Sequence[str], config: Mapping[str, object], template: TokenTemplate
) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the ids of the special tokens by role, and the sentinels in order.

    The roles are those given in `config`, or else found by the spellings of the added tokens. The first and last token
    of the template are bos and eos if nothing else is known. A role whose token is not in the vocabulary is omitted.
    """
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
        if template.prefix and not {"cls", "bos"} & {*special}:
            special["bos"] = template.prefix[0][0]
        if template.suffix and not {"sep", "eos", "cls"} & {*special}:
            special["eos"] = template.suffix[-1][0]
    candidates = [token for token in vocabulary if token.startswith("<extra_id_")]
    matches = [match for token in candidates if (match := _SENTINEL.fullmatch(token))]
    return special, tuple(i for _, i in sorted((int(match[1]), vocabulary[match[0]]) for match in matches))


def get_token_text(value: object) -> str:
    """Return the text of a token in a config file: a string, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


TOKENIZER_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
CHAT_TEMPLATE, CHAT_TEMPLATE_FILE = "chat_template", "chat_template.jinja"
MAX_BYTES = 256 * 2**20
MAX_TEMPLATE_BYTES = 2**20


def encode_json(data: object) -> bytes:
    """Return the content of a config file."""
    return (json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_tokenizer(path: str | os.PathLike[str]) -> tuple[Raw, dict[str, object]]:
    """Read the tokenizer of a directory or a `tokenizer.json`, and the settings in its config files."""
    folder = resolve_path(path)
    if is_gguf(folder):
        files = read_gguf_files(folder)
        if not files:
            raise CheckpointError(f"{folder}: no tokenizer in it; pass the directory of a tokenizer")
        return parse_tokenizer(files[TOKENIZER_FILE], str(folder)), json.loads(files[CONFIG_FILE])
    file = folder / TOKENIZER_FILE if folder.is_dir() else folder
    if folder.is_dir():
        io.check_links(folder, CheckpointError)
    if folder.is_dir() and not file.is_file():
        raise CheckpointError(
            f"{folder}: no {TOKENIZER_FILE}; pass the directory of a tokenizer or of a model with one"
        )
    config: dict[str, object] = {}
    for name in (SPECIAL_TOKENS_FILE, CONFIG_FILE):  # the later file wins
        config_file = file.with_name(name)
        if config_file.is_file():
            config |= io.read_json(config_file, CheckpointError)
    template_file = file.with_name(CHAT_TEMPLATE_FILE)
    if template_file.is_file():
        config |= read_chat_template(io.read_bounded(template_file, CheckpointError, MAX_TEMPLATE_BYTES))
    return parse_tokenizer(read_bytes(file), str(file)), config


def read_chat_template(content: bytes) -> dict[str, object]:
    """Return the setting that `chat_template.jinja` stands for; it wins over that of `tokenizer_config.json`."""
    try:
        return {CHAT_TEMPLATE: content.decode()}
    except UnicodeDecodeError as fault:
        raise CheckpointError(f"{CHAT_TEMPLATE_FILE}: not UTF-8, at byte {fault.start}") from None


def find_chat_template(config: Mapping[str, object]) -> str | None:
    """Return the chat template of the config: a text, or of several by name the one named `default`."""
    value = config.get(CHAT_TEMPLATE)
    if isinstance(value, list):
        templates = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = templates.get("default")
    return value if isinstance(value, str) and value else None


def read_bytes(file: Path) -> bytes:
    """Read the content of a `tokenizer.json`."""
    try:
        if not file.is_file():
            remedy = suggest_file(file) or "; create one with `pretune tokenizer`"
            problem = "not a regular file" if file.exists() else f"no such file or directory{remedy}"
            raise CheckpointError(f"{file}: {problem}")
        return io.read_bounded(file, CheckpointError, MAX_BYTES)
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        raise CheckpointError(f"{file}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault


def read_gguf_files(path: Path) -> dict[str, bytes]:
    """Return the files that a directory would have in place of the tokenizer in a GGUF file."""
    from pretune.core.gguf import read_gguf
    from pretune.text.tokenizer.gguf import build_tokenizer

    tokenizer = build_tokenizer(read_gguf(path))
    if tokenizer is None:
        return {}
    content, settings = tokenizer
    return {
        TOKENIZER_FILE: json.dumps(content, ensure_ascii=False, allow_nan=False).encode(),
        CONFIG_FILE: encode_json(settings),
    }


def parse_tokenizer(data: bytes, location: str) -> Raw:
    """Build the library's tokenizer from its JSON, with padding and truncation disabled."""
    with translate_errors(CheckpointError, f"{location}: invalid tokenizer"):
        raw = Raw.from_buffer(data)
        raw.no_padding()
        raw.no_truncation()
        return raw


def extract_template(raw: Raw) -> TokenTemplate:
    """Return the templates of a tokenizer's post-processor, found by applying it, whatever its class."""

    def extract_layout(pair: bool) -> Layout:
        encoding = raw.post_process(_make_token(), _make_token() if pair else None)
        facts = zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True)
        return tuple((i if side is None else (TEXT_A, TEXT_B)[side], segment) for i, segment, side in facts)

    with translate_errors(CheckpointError, "tokenizer: unusable post-processor"):
        return TokenTemplate(single=extract_layout(False), pair=extract_layout(True))


def _make_token() -> Any:
    text = PreTokenizedString("x")
    text.tokenize(lambda _: [Token(0, "x", (0, 1))])
    return text.to_encoding()


def read_number(config: Mapping[str, object], name: str, max_value: int) -> int | None:
    """Return an integer from 1 to `max_value` of the config, or None."""
    value = config.get(name)
    return value if type(value) is int and 0 < value <= max_value else None


_GENERIC_CLASSES = frozenset({"PreTrainedTokenizer", "TokenizersBackend"})
_NORMALIZER_SETTINGS: Mapping[str, tuple[str, Any]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
"""Attributes of the normalizer of WordPiece models by setting, with the defaults of transformers."""
_PREFIX, _ADDED_TOKENS, _CLASS = "add_prefix_space", "added_tokens_decoder", "tokenizer_class"
_TOKEN_FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")


def apply_settings(raw: Raw, config: Mapping[str, object]) -> dict[str, object]:
    """Apply the settings of `tokenizer_config.json` as transformers does; return the others.

    A tokenizer class of a model replaces what `tokenizer.json` has, a generic class does not. Without a class this is
    unknown: settings that disagree are reported, and not applied.
    """
    name = str(config.get(_CLASS) or "").removesuffix("Fast")
    added_tokens: Any = config.get(_ADDED_TOKENS) or {}
    try:
        conflicts = [] if name in _GENERIC_CLASSES else _set_components(raw, config, apply=bool(name))
        moved_tokens = _add_tokens(raw, added_tokens)
    except (AttributeError, TypeError, ValueError) as fault:
        raise CheckpointError(f"{CONFIG_FILE}: invalid settings ({str(fault)[:200]})") from None
    if conflicts:
        log.warn(f"{CONFIG_FILE}: {join_names(conflicts)} may disagree with {TOKENIZER_FILE}, which is used")
    if moved_tokens:
        log.warn(f"{CONFIG_FILE}: the ids of {join_names(moved_tokens, 5)} are not those of the tokenizer")
    used_settings = {*_NORMALIZER_SETTINGS, _PREFIX, _ADDED_TOKENS, _CLASS}
    return {key: value for key, value in config.items() if key not in used_settings}


def _set_components(raw: Raw, config: Mapping[str, object], *, apply: bool) -> list[str]:
    """Set the normalizer and the pre-tokenizer by the config; return the settings that could not be applied."""
    normalizer: Any = raw.normalizer
    conflicts: list[str] = []
    if hasattr(normalizer, "handle_chinese_chars"):
        for setting, (attribute, default) in _NORMALIZER_SETTINGS.items():
            value = getattr(normalizer, attribute)
            if apply:
                setattr(normalizer, attribute, config.get(setting, default))
            elif config.get(setting, value) != value:
                conflicts.append(setting)
    elif apply and isinstance(raw.model, WordPiece):
        conflicts += [setting for setting in _NORMALIZER_SETTINGS if config.get(setting) is not None]
    pre_tokenizer = raw.pre_tokenizer
    if isinstance(pre_tokenizer, ByteLevel):
        if apply and _PREFIX in config:
            pre_tokenizer.add_prefix_space = cast(bool, config[_PREFIX])
        elif config.get(_PREFIX, not apply and pre_tokenizer.add_prefix_space) != pre_tokenizer.add_prefix_space:
            conflicts.append(_PREFIX)  # most classes have none by default
    return conflicts


def _add_tokens(raw: Raw, tokens: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Add the tokens that only the config has; return those whose id, the next free one, is not that of the config."""
    present = {"", *(token.content for token in raw.get_added_tokens_decoder().values())}
    new_tokens = {
        get_token_text(fields): (int(i), {flag: bool(fields[flag]) for flag in _TOKEN_FLAGS if flag in fields})
        for i, fields in sorted(tokens.items(), key=lambda item: int(item[0]))
        if get_token_text(fields) not in present
    }
    raw.add_tokens([AddedToken(content, **flags) for content, (_, flags) in new_tokens.items()])
    return [content for content, (i, _) in new_tokens.items() if raw.token_to_id(content) != i]
