"""Surgery on a pre-trained model: another vocabulary, or more positions, with all that was learnt kept.

    model = with_vocabulary(pt.load("runs/bert"), Tokenizer.load("my-tokenizer"))
    model = with_positions(model, 1024)
    pt.save(model, "runs/bert-mine")         # a base like any other, best pre-trained further: pretune pretrain --from

Vocabulary: a token that both have keeps its vector; a new one begins as the mean of the pieces that it was (Hewitt,
2021, has the mean of all vectors; pieces say more, as in Gee et al., 2022); specials go by their role. So do output
weights and biases. Positions: a longer table begins as the old one over and over (Beltagy et al., 2020, section 5).
Task tokens: start, delimiter and extract with random vectors, all else as it was (Radford et al., 2018, section 3.3).
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pretune.core.errors import UsageError
from pretune.core.seed import make_generator
from pretune.inference.text_model import get_tokenizer
from pretune.models.model import LanguageModel, build, build_empty
from pretune.models.spec import Model, Special
from pretune.nn.positions import Learned
from pretune.nn.stack import Stack
from pretune.text.templates import SpecialPart as TokenPlace
from pretune.text.tokenizer import Tokenizer
from pretune.text.tokenizer.backend import LibraryTokenizer

ResizeRows = Callable[[Tensor, int], Tensor]
"""From a tensor to one with so many rows."""
TASK_TOKENS = {"bos": "<|start|>", "sep": "<|delimiter|>", "cls": "<|extract|>"}
"""Role and spelling of the tokens around the texts of a task."""
CONTINUATION_PREFIX = "##"
"""What WordPiece spells before a piece inside a word."""


def resize_positions(model: LanguageModel, count: int) -> LanguageModel:
    """A new model that reads sequences of up to `count` tokens; its table of positions is repeated, or cut."""
    spec = model.spec
    if not any(isinstance(stack.position, Learned) for stack in spec.stacks):
        raise UsageError("this model computes its positions: there is no table to lengthen, and nothing to be done")
    if count < 1:
        raise UsageError(f"{count} positions; a model reads at least 1 token")

    def changed(stack: Stack) -> Stack:
        old = stack.position
        return replace(stack, position=replace(old, rows=count + old.offset)) if isinstance(old, Learned) else stack

    encoder = changed(spec.encoder) if isinstance(spec.encoder, Stack) else spec.encoder
    decoder = None if spec.decoder is None else changed(spec.decoder)
    offset = next(stack.position.offset for stack in spec.stacks if isinstance(stack.position, Learned))

    def fitted(old: Tensor, rows: int) -> Tensor:
        unused, known = old[:offset], old[offset:]
        again = -(-(rows - offset) // len(known))
        return torch.cat((unused, known.repeat(again, 1)[: rows - offset]))

    made = replace(spec, encoder=encoder, decoder=decoder)
    return _copy_weights(model, made, _find_resized(model, made), fitted)


def replace_vocabulary(model: LanguageModel, tokenizer: Tokenizer) -> LanguageModel:
    """A new model that reads another tokenizer's tokens, and has that tokenizer."""
    if model.tokenizer is None:
        raise UsageError("this model has no tokenizer, so nobody knows what its vectors stand for; load it with one")
    old, spec = get_tokenizer(model), model.spec
    pieces = _map_tokens(old, tokenizer)
    owner = torch.tensor([at for at, some in enumerate(pieces) for _ in some])
    which = torch.tensor([piece for some in pieces for piece in some])
    each = torch.tensor([len(some) for some in pieces])

    def fitted(rows: Tensor, _: int) -> Tensor:
        usual = rows[: old.vocab].mean(0, keepdim=True)
        sums = torch.zeros((len(pieces), *rows.shape[1:]), dtype=rows.dtype).index_add_(0, owner, rows[which])
        shaped = each.reshape(-1, *[1] * (rows.ndim - 1))
        return torch.where(shaped > 0, sums / shaped.clamp(min=1), usual)

    names = _find_resized(model, replace(spec, vocab=spec.vocab + 1))  # all that has a row for each token
    made = _copy_weights(
        model, replace(spec, vocab=tokenizer.vocab, special=_map_special_tokens(spec, old, tokenizer)), names, fitted
    )
    made.assets = replace(
        model.assets, files={**model.assets.files, **tokenizer.build_files()}, tokenizer=LibraryTokenizer(tokenizer.raw)
    )
    return made


def add_task_tokens(model: LanguageModel, *, seed: int = 0) -> LanguageModel:
    """Return a model with the start, delimiter and extract tokens that its vocabulary lacks, or the same model.

    Their vectors are drawn as the first ones were; the ids of all other tokens stay.
    """
    old = get_tokenizer(model)
    roles = find_missing_task_tokens(old)
    if not roles:
        return model
    tokenizer, spec = old.with_tokens({role: TASK_TOKENS[role] for role in roles}), model.spec
    new = [tokenizer.special[role] for role in roles]
    std = getattr(spec.init, "std", 0.02)

    def fitted(rows: Tensor, count: int) -> Tensor:
        made = torch.cat((rows, rows.new_zeros(count - len(rows), *rows.shape[1:])))
        drawn = torch.from_numpy(make_generator(seed, 0).standard_normal((len(new), *rows.shape[1:]))).to(rows.dtype)
        made[new] = drawn * std if rows.ndim > 1 else torch.zeros_like(drawn)  # a bias begins at 0
        return made

    names = _find_resized(model, replace(spec, vocab=spec.vocab + 1))
    made = _copy_weights(model, replace(spec, vocab=max(spec.vocab, tokenizer.vocab)), names, fitted)
    made.assets = replace(
        model.assets, files={**model.assets.files, **tokenizer.build_files()}, tokenizer=LibraryTokenizer(tokenizer.raw)
    )
    return made


def find_missing_task_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the roles among `TASK_TOKENS` that no token of a vocabulary has to itself.

    A layout with tokens on both sides of a text has all it needs, and an end token other than the start is read at.
    """
    known, layout = tokenizer.special, tokenizer.template.single
    if isinstance(layout[0], TokenPlace) and isinstance(layout[-1], TokenPlace):
        return []
    eos, bos = known.get("eos"), known.get("bos")
    started = bos is not None and bos != eos
    apart = {"bos": started, "sep": known.get("sep") not in (None, bos, eos)}
    apart["cls"] = known.get("cls") not in (None, bos, eos) or (started and eos is not None)
    return [role for role in TASK_TOKENS if not apart[role]]


def _map_special_tokens(spec: Model, old: Tokenizer, new: Tokenizer) -> Special:
    """The tokens that a model treats apart, each by the role that it had."""
    now = {number: new.special.get(role) for role, number in reversed([*old.special.items()])}
    one = spec.special
    pad, bos, start = (None if number is None else now.get(number) for number in (one.pad, one.bos, one.start))
    ends = tuple(end for end in map(now.get, one.eos) if end is not None)
    return replace(one, pad=pad, bos=bos, start=start, eos=ends)


def _map_tokens(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """What the old vocabulary has for every token of a new one: its role, the same token, or pieces of its text."""
    known = old.raw.get_vocab(with_added_tokens=True)
    roles = {number: old.special[role] for role, number in new.special.items() if role in old.special}
    spelled = {number: token for token, number in new.raw.get_vocab(with_added_tokens=True).items()}
    found: list[list[int]] = []
    for number in range(new.vocab):
        token = spelled.get(number, "")
        if number in roles:
            found.append([roles[number]])
        elif token in known:
            found.append([known[token]])
        else:
            text = new.decode([number], special=False).removeprefix(CONTINUATION_PREFIX)
            found.append(old.encode(text, literal=True) if text.strip() else [])
    return found


def _find_resized(model: LanguageModel, other: Model) -> set[str]:
    """The tensors that have another shape in a model of another spec."""
    state = model.state_dict()
    return {name for name, tensor in build_empty(other).state_dict().items() if tensor.shape != state[name].shape}


def _copy_weights(model: LanguageModel, spec: Model, names: set[str], resize: ResizeRows) -> LanguageModel:
    """A model of another spec with the weights of one, some of which are `fitted` to as many rows as it has."""
    made, state = build(spec), model.state_dict()
    for name, tensor in made.state_dict().items():
        old = state[name].to("cpu")
        tensor.copy_(resize(old, len(tensor)) if name in names else old)
    made.assets = model.assets
    return made.to(model.tokens.weight.device, model.tokens.weight.dtype).train(model.training)
