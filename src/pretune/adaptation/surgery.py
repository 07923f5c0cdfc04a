"""Model surgery: replace the vocabulary or resize the positions of a pre-trained model, keeping its weights.

    model = replace_vocabulary(pt.load("runs/bert"), Tokenizer.load("my-tokenizer"))
    model = resize_positions(model, 1024)    # or extract_encoder(pt.load("runs/t5"))
    pt.save(model, "runs/bert-mine")         # a base model; continue pre-training it: pretune pretrain --from

Vocabulary: a token in both vocabularies keeps its vector; a new one is initialized with the mean of its pieces (Gee et
al., 2022; Hewitt, 2021, takes the mean of all vectors); special tokens are matched by role. Output weights and biases
likewise. Positions: a longer table repeats the old one (Beltagy et al., 2020, section 5). Task tokens: start, delimiter
and extract with random vectors, everything else unchanged (Radford et al., 2018, section 3.3).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.seed import make_generator
from pretune.inference.text_model import get_tokenizer
from pretune.models.hf.files import ASSET_FILES
from pretune.models.model import LanguageModel, build, build_empty
from pretune.models.spec import Model, Special
from pretune.nn.positions import LearnedEmbedding
from pretune.nn.stack import Stack
from pretune.nn.two_stream import TwoStream
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.files import CHAT_TEMPLATE_FILE

ResizeRows = Callable[[Tensor, int], Tensor]
"""Function from a tensor and a number of rows to a tensor with this number of rows."""
TASK_TOKENS = {"bos": "<|start|>", "sep": "<|delimiter|>", "cls": "<|extract|>"}
"""Role and spelling of the special tokens of task inputs."""
CONTINUATION_PREFIX = "##"
"""WordPiece prefix of a piece inside a word."""


def resize_positions(model: LanguageModel, count: int) -> LanguageModel:
    """Return a new model for sequences of up to `count` tokens; its position table is repeated or truncated."""
    spec = model.spec
    if not any(isinstance(stack.position, LearnedEmbedding) for stack in spec.stacks):
        raise UsageError("this model has no position table (its positions are computed), so it needs no resizing")
    if count < 1:
        raise UsageError(f"count (positions) must be >= 1, got {count}")

    def resize_stack(stack: Stack) -> Stack:
        old = stack.position
        if not isinstance(old, LearnedEmbedding):
            return stack
        return replace(stack, position=replace(old, rows=count + old.offset))

    offset = next(stack.position.offset for stack in spec.stacks if isinstance(stack.position, LearnedEmbedding))

    def resize_rows(old: Tensor, rows: int) -> Tensor:
        offset_rows, position_rows = old[:offset], old[offset:]
        repeats = -(-(rows - offset) // len(position_rows))
        return torch.cat((offset_rows, position_rows.repeat(repeats, 1)[: rows - offset]))

    new_spec = change_stacks(spec, resize_stack)
    return _copy_weights(model, new_spec, _find_resized(model, new_spec), resize_rows)


def change_stacks(spec: Model, change: Callable[[Stack], Stack]) -> Model:
    """Return a spec with another form of each transformer stack."""
    stacks = {side: stack for side in ("encoder", "decoder") if isinstance(stack := getattr(spec, side), Stack)}
    changes: dict[str, Any] = {side: change(stack) for side, stack in stacks.items()}
    return replace(spec, **changes)


def replace_vocabulary(model: LanguageModel, tokenizer: Tokenizer) -> LanguageModel:
    """Return a new model for the vocabulary of another tokenizer, with that tokenizer."""
    if model.tokenizer is None:
        raise UsageError("this model has no tokenizer, so its vectors cannot be mapped; load it with its tokenizer")
    old, spec = get_tokenizer(model), model.spec
    pieces = _map_tokens(old, tokenizer)
    owner = torch.tensor([index for index, ids in enumerate(pieces) for _ in ids])
    piece_ids = torch.tensor([piece for ids in pieces for piece in ids])
    counts = torch.tensor([len(ids) for ids in pieces])

    def resize_rows(rows: Tensor, _: int) -> Tensor:
        mean_row = rows[: old.vocab].mean(0, keepdim=True)
        sums = torch.zeros((len(pieces), *rows.shape[1:]), dtype=rows.dtype).index_add_(0, owner, rows[piece_ids])
        divisor = counts.reshape(-1, *[1] * (rows.ndim - 1))
        return torch.where(divisor > 0, sums / divisor.clamp(min=1), mean_row)

    new_spec = replace(spec, vocab=tokenizer.vocab, special=_map_special_tokens(spec, old, tokenizer))
    # NOTE: without the old vocabulary's files; the ids in its generation_config.json have priority.
    other_files = {name: data for name, data in model.assets.files.items() if name not in ASSET_FILES}
    return _resize_vocabulary(model, new_spec, tokenizer, other_files, resize_rows)


def add_task_tokens(model: LanguageModel, *, seed: int = 0) -> LanguageModel:
    """Return a model with the start, delimiter and extract tokens that its vocabulary lacks, or the same model.

    Their vectors are initialized like the model's; the ids of all other tokens are unchanged.
    """
    old = get_tokenizer(model)
    roles = find_missing_task_tokens(old)
    if not roles:
        return model
    tokenizer, spec = old.with_tokens({role: TASK_TOKENS[role] for role in roles}), model.spec
    new = [tokenizer.special[role] for role in roles]
    std = getattr(spec.init, "std", 0.02)

    def resize_rows(rows: Tensor, count: int) -> Tensor:
        new_rows = torch.cat((rows, rows.new_zeros(count - len(rows), *rows.shape[1:])))
        noise = torch.from_numpy(make_generator(seed, 0).standard_normal((len(new), *rows.shape[1:]))).to(rows.dtype)
        new_rows[new] = noise * std if rows.ndim > 1 else torch.zeros_like(noise)  # a bias begins at 0
        return new_rows

    new_spec = replace(spec, vocab=max(spec.vocab, tokenizer.vocab))
    return _resize_vocabulary(model, new_spec, tokenizer, model.assets.files, resize_rows)


def extract_encoder(model: LanguageModel) -> LanguageModel:
    """Return the encoder of an encoder-decoder as a model of its own, as CoVe does (McCann et al., 2017)."""
    if not model.spec.is_encoder_decoder:
        raise UsageError(f"only an encoder-decoder has an encoder to extract, got a model of the shape '{model.shape}'")
    # NOTE: another name, since no family of encoders has this layout: the spec is saved as a whole.
    name = f"{model.spec.family}-encoder"
    spec = replace(model.spec, family=name, decoder=None, head=None, pooler=None, pair=None, span=None)
    encoder = _copy_weights(model, spec, set(), lambda rows, _: rows)
    files = {} if model.tokenizer is None else model.tokenizer.build_files()
    encoder.assets = replace(model.assets, files=files)
    return encoder


def set_chat_template(model: LanguageModel, source: str) -> None:
    """Give a model a chat template, in place; it is saved with the model."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise UsageError("the model has no tokenizer; put a tokenizer.json into its directory")
    files = {**model.assets.files, CHAT_TEMPLATE_FILE: source.encode()}
    model.assets = replace(model.assets, files=files, tokenizer=tokenizer.raw)


def _resize_vocabulary(
    model: LanguageModel, spec: Model, tokenizer: Tokenizer, files: Mapping[str, bytes], resize: ResizeRows
) -> LanguageModel:
    """Return a model of another spec with a tokenizer; all tensors with a row per token are resized."""
    names = _find_resized(model, replace(model.spec, vocab=model.spec.vocab + 1))
    new_model = _copy_weights(model, spec, names, resize)
    new_model.assets = replace(model.assets, files={**files, **tokenizer.build_files()}, tokenizer=tokenizer)
    return new_model


def find_missing_task_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the roles in `TASK_TOKENS` for which a vocabulary has no token of its own.

    A template with tokens on both sides of a text lacks none, and an end token other than the start token serves as
    extract token.
    """
    special_ids = tokenizer.special
    if tokenizer.template.prefix and tokenizer.template.suffix:
        return []
    eos, bos = special_ids.get("eos"), special_ids.get("bos")
    has_bos = bos is not None and bos != eos
    has_role = {"bos": has_bos, "sep": special_ids.get("sep") not in (None, bos, eos)}
    has_role["cls"] = special_ids.get("cls") not in (None, bos, eos) or (has_bos and eos is not None)
    return [role for role in TASK_TOKENS if not has_role[role]]


def _map_special_tokens(spec: Model, old: Tokenizer, new: Tokenizer) -> Special:
    """Map a model's special tokens to those of a new tokenizer, by role."""
    new_ids = {number: new.special.get(role) for role, number in reversed([*old.special.items()])}
    special = spec.special
    old_ids = (special.pad, special.bos, special.start)
    pad, bos, start = (None if number is None else new_ids.get(number) for number in old_ids)
    ends = tuple(end for end in map(new_ids.get, special.eos) if end is not None)
    return replace(special, pad=pad, bos=bos, start=start, eos=ends)


def _map_tokens(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Return the old ids for every new token: by role, the same token, or the pieces of its text."""
    old_ids = old.raw.get_vocab(with_added_tokens=True)
    roles = {number: old.special[role] for role, number in new.special.items() if role in old.special}
    new_tokens = {number: token for token, number in new.raw.get_vocab(with_added_tokens=True).items()}
    pieces: list[list[int]] = []
    for number in range(new.vocab):
        token = new_tokens.get(number, "")
        if number in roles:
            pieces.append([roles[number]])
        elif token in old_ids:
            pieces.append([old_ids[token]])
        else:
            text = new.decode([number], special=False).removeprefix(CONTINUATION_PREFIX)
            pieces.append(old.encode(text, add_special_tokens=False, literal=True) if text.strip() else [])
    return pieces


def _find_resized(model: LanguageModel, spec: Model) -> set[str]:
    """Return the names of the tensors whose shape differs in a model of another spec."""
    state = model.state_dict()
    return {name for name, tensor in build_empty(spec).state_dict().items() if tensor.shape != state[name].shape}


def _copy_weights(model: LanguageModel, spec: Model, names: set[str], resize: ResizeRows) -> LanguageModel:
    """Return a model of another spec with the same weights; those in `names` are resized with `resize`."""
    new_model, state = build(spec), model.state_dict()
    for name, tensor in new_model.state_dict().items():
        old = state[name].to("cpu")
        tensor.copy_(resize(old, len(tensor)) if name in names else old)
    new_model.assets = model.assets
    return new_model.to(model.tokens.weight.device, model.tokens.weight.dtype).train(model.training)


def add_blocks(model: LanguageModel, blocks: int, *, seed: int = 0) -> LanguageModel:
    """Return a new model: the weights of `model`, and `blocks` new blocks on top (of the decoder, if there is one)."""
    if blocks < 1:
        raise UsageError(f"blocks must be >= 1, got {blocks}")
    spec = model.spec
    if spec.last_stack.share is not None or spec.shared:
        raise UsageError("a model whose layers share their weights cannot be extended; choose another base model")
    if spec.is_recurrent:
        raise UsageError("extra layers are transformer blocks; a recurrent model cannot be extended")
    if isinstance(spec.decoder, Stack):
        spec = replace(spec, decoder=replace(spec.decoder, depth=spec.decoder.depth + blocks))
    elif isinstance(spec.encoder, Stack | TwoStream):
        spec = replace(spec, encoder=replace(spec.encoder, depth=spec.encoder.depth + blocks))
    new_model = build(spec, seed=seed)
    result = new_model.load_state_dict(model.state_dict(), strict=False)  # the keys of new blocks are missing
    assert not result.unexpected_keys, f"{result.unexpected_keys[0]} has no place in the extended model"
    new_model.assets = model.assets
    return new_model.to(model.tokens.weight.device)
