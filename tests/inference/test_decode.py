"""Writing on token ids: every family against reading all anew for each token, methods on models, looks and limits."""

import platform
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pretune.adaptation.adapted import adapt
from pretune.adaptation.heads.token import Generation
from pretune.adaptation.peft.prefix import PrefixTuning, PromptTuning
from pretune.core.errors import UsageError
from pretune.data.layout import batch
from pretune.inference import decode as decode_module
from pretune.inference import prompts as prompts_module
from pretune.inference.decode import DecodingCallbacks, generate_tokens
from pretune.inference.decoding_state import SearchShape
from pretune.inference.engine import build_engine
from pretune.inference.generation_config import BeamSearch, GenerationConfig, GenerationTokens, GreedySearch, Sampling
from pretune.inference.prompts import prefill
from pretune.inference.text_model import eval_mode
from pretune.models.model import LanguageModel
from pretune.nn.stack import TransformerStack
from tests.contracts.tiny import CASES, DECODERS, ENCODERS, PAIRS, ROOM, model_of, text
from tests.selection import keep_quick

NEW = 6
MARKS = GenerationTokens(start=3)
"""Nothing ends a text, so that all of them are compared to the last token."""


@torch.no_grad()
def anew(model: LanguageModel, prompt: list[int], new: int, slots: int = 0) -> list[int]:
    """The likeliest token after reading everything again, each time."""
    read: list[int] = [MARKS.start] if model.spec.is_encoder_decoder else list(prompt)  # type: ignore[list-item]
    start_time = len(read)
    for _ in range(new):
        first = [0] * slots + (prompt if model.spec.is_encoder_decoder else read)
        logits = model(batch(source=[first], target=[read]) if model.spec.is_encoder_decoder else batch([first])).logits
        assert logits is not None
        read.append(int(logits[-1].argmax()))
    return read[start_time:]


def tokens(model: Any, prompts: list[list[int]], search: Any = GreedySearch(), **options: Any) -> list[list[int]]:  # noqa: B008
    config = GenerationConfig(max_new_tokens=NEW, search=search)
    return [answer[0].tokens for answer in generate_tokens(model, prompts, config, generation_tokens=MARKS, **options)]


@pytest.mark.parametrize("name", [*DECODERS, *PAIRS])
def test_with_a_cache_as_without(name: str) -> None:
    model, prompts = model_of(name), text(5, 1, 9, 3)
    assert tokens(model, prompts) == [anew(model, prompt, NEW) for prompt in prompts]


@pytest.mark.parametrize("name", [DECODERS[0], PAIRS[0], "llama-7b"])
@pytest.mark.parametrize("method", [PromptTuning(count=3), PrefixTuning(count=3)], ids=["prompt", "prefix"])
def test_with_a_method_on_the_model(name: str, method: Any) -> None:
    model, prompts = deepcopy(model_of(name)), text(5, 2)
    method.apply(model)
    for part in model.modules():
        for own, parameter in part.named_parameters(recurse=False):
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(own)))
    slots = 3 if isinstance(method, PromptTuning) else 0
    model.eval()
    assert tokens(model, prompts) == [anew(model, prompt, NEW, slots) for prompt in prompts]
    assert tokens(model, prompts) != tokens(model_of(name), prompts), "the method changes what is written"
    assert tokens(model, prompts, BeamSearch(beams=2)), "and beams take it along"


def test_a_prompt_that_sees_all_of_itself() -> None:
    model, prompts = model_of(DECODERS[0]), text(5, 1, 9)
    reference = []
    for prompt in prompts:
        read = list(prompt)
        for _ in range(NEW):
            with torch.no_grad():
                read.append(int(model(batch([read], prefix=[len(prompt)])).logits[-1].argmax()))
        reference.append(read[len(prompt) :])
    assert tokens(model, prompts, prefix=True) == reference != tokens(model, prompts)
    with pytest.raises(UsageError):
        tokens(model_of(PAIRS[0]), prompts, prefix=True)


@pytest.mark.parametrize("name", keep_quick([*DECODERS, *PAIRS], "llama3-1b", "t5-base"))
def test_compiled_layers_fill_the_cache_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph serves prompts of many lengths, and the layers are as before afterwards."""
    torch._dynamo.reset()  # graphs of other tests count towards the limit of one function
    graphs = []

    def compile_graph(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(prompts_module, "COMPILE_OPTIONS", {"dynamic": True, "backend": compile_graph})
    model = model_of(name)
    counts = []
    with eval_mode(model):
        for lengths in ((19,), (12,), (22,), (6, 9, 4), (9, 6, 7, 3)):
            sources = text(*lengths) if model.spec.is_encoder_decoder else None
            prompts = text(*lengths) if sources is None else [[MARKS.start]] * len(lengths)
            expected_cache, expected = prefill(model, prompts, sources)
            cache, logits = prefill(model, prompts, sources, torch_compile=True)
            torch.testing.assert_close(logits, expected)
            for layer, expected_layer in zip(cache.layers, expected_cache.layers, strict=True):
                torch.testing.assert_close(layer.store, expected_layer.store)
            counts.append(len(graphs))
    stacks = [stack for stack in (model.encoder, model.decoder) if isinstance(stack, TransformerStack)]
    positions = [stack.spec.position for stack in stacks]
    assert bool(graphs) == any(position is None or position.mechanism != "bias" for position in positions)
    assert counts[0] == counts[2] and len(graphs) <= 6
    assert all(layer._compiled_call_impl is None for stack in stacks for layer in stack)


@pytest.mark.parametrize(
    ("machine", "rows", "is_transposed"), [("aarch64", 3, True), ("aarch64", 1, False), ("x86_64", 3, False)]
)
def test_weights_lie_by_columns_while_several_rows_are_written(
    machine: str, rows: int, is_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts, strides = model_of(DECODERS[0]), text(5, 4, 6)[:rows], []
    expected = tokens(model, prompts)
    forward = torch.nn.Linear.forward

    def watch(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        strides.append(layer.weight.stride())
        return forward(layer, x)

    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(decode_module, "MIN_TRANSPOSE_TOKENS", rows * NEW)
    monkeypatch.setattr(torch.nn.Linear, "forward", watch)
    assert tokens(model, prompts) == expected
    assert strides and all((stride[0] == 1) == is_transposed for stride in strides)
    assert all(weight.is_contiguous() for weight in model.parameters())


def test_a_task_model_writes_with_its_own_head() -> None:
    model, prompts = model_of(DECODERS[0]), text(4, 2)
    assert tokens(adapt(deepcopy(model), Generation()), prompts) == tokens(model, prompts)


def test_the_mode_of_a_model_is_left_as_it_was() -> None:
    model = deepcopy(model_of(DECODERS[0]))
    model.train()
    model.head.eval()
    reference = tokens(model_of(DECODERS[0]), text(4))
    assert tokens(model, text(4)) == reference, "dropout is off while it writes"
    assert model.training and not model.head.training


@pytest.mark.parametrize(
    "search", [GreedySearch(), Sampling(seed=3, top_k=9), BeamSearch(beams=3)], ids=["greedy", "sample", "beams"]
)
def test_looks_and_groups_change_nothing(search: Any) -> None:
    model, prompts = model_of(DECODERS[0]), text(5, 1, 9, 3, 5)
    reference = tokens(model, prompts, search)
    assert tokens(model, prompts, search, callbacks=DecodingCallbacks(interval=4)) == reference
    assert tokens(model, prompts, search, batch=3) == reference


def test_rows_that_end_stay_ended() -> None:
    """Ends that come at once, late or never, in one batch and looked at seldom."""
    model, prompts = model_of(DECODERS[0]), text(5, 1, 9, 3)
    free = tokens(model, prompts)
    end = free[0][2]
    config = GenerationConfig(max_new_tokens=NEW)
    result = generate_tokens(
        model, prompts, config, generation_tokens=GenerationTokens(eos=(end,)), callbacks=DecodingCallbacks(interval=4)
    )
    for (item,), full in zip(result, free, strict=True):
        size = full.index(end) if end in full else NEW
        assert (item.tokens, item.finish_reason) == (full[:size], "end" if end in full else "length")
    least = generate_tokens(
        model,
        prompts,
        GenerationConfig(max_new_tokens=NEW, min_new_tokens=4),
        generation_tokens=GenerationTokens(eos=(end,)),
    )
    assert all(len(item.tokens) >= 4 for (item,) in least)


def test_what_must_come_first_and_last() -> None:
    model = model_of(PAIRS[0])
    marks = GenerationTokens(start=3, forced_bos=17, forced_eos=23, eos=(23,))
    for search in (GreedySearch(), BeamSearch(beams=2)):
        (item,) = generate_tokens(
            model, text(4), GenerationConfig(max_new_tokens=3, search=search), generation_tokens=marks
        )[0]
        assert item.tokens[0] == 17
        assert item.finish_reason == "end"


def test_a_watcher_sees_texts_grow_and_can_end_them() -> None:
    model, calls = model_of(DECODERS[0]), []

    def watch(request: int, number: int, new: list[int]) -> bool:
        calls.append((request, number, len(new)))
        return request == 1 and len(new) == 2

    result = generate_tokens(
        model,
        text(5, 3),
        GenerationConfig(max_new_tokens=NEW),
        generation_tokens=MARKS,
        callbacks=DecodingCallbacks(watch),
    )
    assert [(len(item.tokens), item.finish_reason) for (item,) in result] == [(NEW, "length"), (2, "stop")]
    assert [size for request, _, size in calls if request == 0] == [1, 2, 3, 4, 5, 6]
    assert [size for request, _, size in calls if request == 1] == [1, 2]


@pytest.mark.parametrize("search", [GreedySearch(), BeamSearch(beams=2)], ids=["greedy", "beams"])
def test_the_share_that_is_done_grows_to_the_whole(search: Any) -> None:
    shares: list[float] = []
    config = GenerationConfig(max_new_tokens=NEW, search=search)
    generate_tokens(
        model_of(DECODERS[0]),
        text(5, 1, 9),
        config,
        generation_tokens=MARKS,
        batch=config.rows_per_prompt,
        callbacks=DecodingCallbacks(on_progress=shares.append),
    )
    assert shares == sorted(shares) and shares[-1] == 1
    assert {1 / 3, 2 / 3} <= {*shares} and 1 / 3 / NEW in shares, "of groups, and of steps in them"


def test_a_step_changes_its_buffers_in_place() -> None:
    """A captured step reads and writes the same memory every time."""
    model = model_of(DECODERS[0])
    for search in (Sampling(), BeamSearch(beams=2)):
        config = GenerationConfig(max_new_tokens=NEW, search=search, repetition_penalty=1.2, no_repeat_ngram=3)
        engine = build_engine(model, SearchShape(1, 12, 0, config, MARKS))
        rows = engine.search
        parts = {name: value for name, value in vars(rows).items() if isinstance(value, torch.Tensor)}
        parts |= {"lengths": engine.cache.lengths, "keys": engine.cache.layers[0].store[0]}
        previous = {name: value.data_ptr() for name, value in parts.items()}
        with torch.no_grad():
            engine.advance()
            engine.advance()
        now = {name: value for name, value in vars(rows).items() if isinstance(value, torch.Tensor)}
        now |= {"lengths": engine.cache.lengths, "keys": engine.cache.layers[0].store[0]}
        assert {name: value.data_ptr() for name, value in now.items()} == previous
        assert engine.cache.lengths.tolist() == [2] * len(rows.tokens)


class Waits(TorchDispatchMode):
    """Counts what would make a device be waited for: numbers that are looked at, shapes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::unique_dim"):
            self.found.append(name)
        if name == "aten::index" or name.startswith("aten::index_put"):  # a mask as an index hides such a shape
            self.found += [name for index in args[1] if index is not None and index.dtype == torch.bool]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "search", [GreedySearch(), Sampling(top_k=9, top_p=0.9, min_p=0.01), BeamSearch(beams=2)], ids=str
)
@pytest.mark.parametrize("name", [DECODERS[0], "made-windows", "llama-7b", PAIRS[0]])
def test_a_step_waits_for_nothing(name: str, search: Any) -> None:
    """But for the one look at the cache's room that a model takes on a CPU."""
    model = model_of(name)
    config = GenerationConfig(
        max_new_tokens=NEW, min_new_tokens=2, search=search, repetition_penalty=1.2, no_repeat_ngram=3
    )
    marks = GenerationTokens(start=3, eos=(5, 9), forced_bos=4, forced_eos=5)
    engine = build_engine(model, SearchShape(2, 12, 4 if model.spec.is_encoder_decoder else 0, config, marks))
    engine._reset()
    with torch.no_grad(), Waits() as waits:
        engine.advance()
    assert waits.found == ["aten::_local_scalar_dense"]


def limited() -> str:
    return next(name for name in DECODERS if CASES[name].max_length == ROOM)


def test_limits() -> None:
    model = model_of(limited())
    full = generate_tokens(model, text(ROOM - NEW), GenerationConfig(max_new_tokens=NEW), generation_tokens=MARKS)
    assert len(full[0][0].tokens) == NEW
    with pytest.raises(UsageError, match=rf"\b{ROOM}\b"):
        generate_tokens(model, text(ROOM), GenerationConfig(max_new_tokens=NEW))
    with pytest.raises(UsageError, match="prompt 2"):
        generate_tokens(model, [[1], []], GenerationConfig(max_new_tokens=2))
    assert generate_tokens(model, []) == []
    with pytest.raises(UsageError, match=r"prompt 1\b.*\b61\b"):
        generate_tokens(model, [[3, 61]], GenerationConfig(max_new_tokens=2))
    short = GenerationConfig(max_new_tokens=2)
    assert generate_tokens(model, [np.array([3, 4], dtype=np.uint32)], short) == generate_tokens(model, [[3, 4]], short)
    with pytest.raises(UsageError, match=r"beams .*\b3\b"):
        generate_tokens(
            model,
            text(3),
            GenerationConfig(max_new_tokens=2, search=BeamSearch(beams=3)),
            generation_tokens=GenerationTokens(eos=tuple(range(90))),
        )


@pytest.mark.parametrize("name", [ENCODERS[0], next(name for name in ENCODERS if "xlnet" in name)])
def test_what_reads_only_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=model_of(name).spec.shape):
        generate_tokens(model_of(name), text(3))


def test_an_unfinished_source_is_part_of_no_prompt() -> None:
    with pytest.raises(UsageError):
        generate_tokens(model_of(DECODERS[0]), text(3), decoder_prompts=[[1]])
    model, source = model_of(PAIRS[0]), text(4)
    full = tokens(model, source)[0]
    rest = generate_tokens(
        model, source, GenerationConfig(max_new_tokens=NEW - 2), generation_tokens=MARKS, decoder_prompts=[full[:2]]
    )
    assert rest[0][0].tokens == full[2:]
