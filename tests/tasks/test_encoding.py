"""Examples as sequences: specials, what is cut and counted, words and answers at their tokens, slots, bad labels."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw

from pretune.adaptation.adapted import adapt
from pretune.adaptation.heads.token import END, START
from pretune.core.errors import DataError, UsageError
from pretune.core.types import IGNORE_INDEX
from pretune.tasks.encoder import TaskEncoder, build_head
from pretune.tasks.example import Example
from pretune.tasks.stream import TaskStream
from pretune.tasks.types.choice import split_context
from pretune.tasks.types.span import find_characters, find_tokens, get_passage
from tests.selection import scale_examples
from tests.tasks.small import KINDS, SHAPES, body, encoder_for, examples_of, model_for, task_of, tokenizer

WORDS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1, max_size=30)


@given(texts=st.lists(st.tuples(st.text(max_size=60), st.text(min_size=1, max_size=60)), min_size=1, max_size=4))
@settings(max_examples=scale_examples(40))
def test_a_pair_is_what_the_template_makes_of_it(texts: list[tuple[str, str]]) -> None:
    task, tokenizer_ = task_of("pair"), tokenizer("bert")
    encoder = encoder_for("bert", task, max_length=16)
    examples = [Example(text=first, pair=second, label=0) for first, second in texts]
    items = encoder.encode(examples)
    lost = 0
    for number, (first, second) in enumerate(texts):
        ids = tokenizer_.encode_batch([first, second], literal=True)
        if not len(ids[1]):
            continue  # stands as one text
        fit = tokenizer_.template.fit(ids[0], ids[1], length=16)
        low, high = items.sequences.offsets[number : number + 2]
        assert items.sequences.tokens[low:high].tolist() == fit.ids.tolist()
        assert items.sequences.segments is None or (
            items.sequences.segments[low:high].tolist() == fit.segments.tolist()
        )
        lost += len(ids[0]) + len(ids[1]) + 3 - len(fit.ids)
    assert items.counts.lost >= lost
    assert items.counts.longest <= 16


def test_a_decoder_has_start_delimiter_and_end() -> None:
    found = tokenizer("gpt2")
    end = found.special["eos"]
    items = encoder_for("gpt2", task_of("pair")).encode([Example(text="A bad film.", pair="Good!", label=2)])
    first, second = (found.encode(text, add_special_tokens=False) for text in ("A bad film.", "Good!"))
    assert items.sequences.tokens.tolist() == [end, *first, end, *second, end]
    assert items.sequences.segments is None


def test_the_text_is_on_both_sides_of_an_encoder_decoder() -> None:
    encoder = encoder_for("bart", task_of("pair"))
    items = encoder.encode([Example(text="A bad film.", pair="Good!", label=2)])
    assert items.sequences.source is not None
    assert items.sequences.tokens[1:].tolist() == items.sequences.source.tokens[:-1].tolist()
    assert items.sequences.tokens[0] == encoder.rules.spec.special.start


def test_an_answer_is_written_where_a_model_learnt_to_write() -> None:
    found, task = tokenizer("t5"), task_of("classification")
    items = encoder_for("t5", task).encode([Example(text="Good!", label=1)])
    assert items.sequences.source is not None and items.sequences.targets is not None
    assert found.decode(items.sequences.source.tokens) == "classify: Good!</s>"
    assert found.decode(items.sequences.targets) == "positive</s>"
    assert items.sequences.tokens.tolist() == [0, *items.sequences.targets[:-1].tolist()]


def test_a_decoder_reads_and_writes_in_one_sequence() -> None:
    task = task_of("generation")
    encoder = encoder_for("gpt2", task)
    found = tokenizer("gpt2")
    end = found.special["eos"]
    source, target = (found.encode(text, add_special_tokens=False) for text in ("A bad film.", "A bad"))
    items = encoder.encode([Example(text="A bad film.", target="A bad")])
    assert items.sequences.tokens.tolist() == [end, *source, end, *target, end]
    assert items.sequences.targets is not None
    assert items.sequences.targets.tolist() == [*[IGNORE_INDEX] * (len(source) + 1), *target, end, IGNORE_INDEX]
    prompt = encoder.encode([Example(text="A bad film.")], training=False)
    assert prompt.sequences.tokens.tolist() == [end, *source, end]


@given(words=WORDS)
@settings(max_examples=scale_examples(60))
@pytest.mark.parametrize("shape", ["bert", "gpt2", "t5"])
def test_every_word_has_its_first_token_or_is_counted(shape: str, words: list[str]) -> None:
    task = task_of("tagging")
    tags = tuple("OB"[index % 2] + "-PER" * (index % 2) for index in range(len(words)))
    example = Example(text=" ".join(words), words=tuple(words), tags=tags)
    items = encoder_for(shape, task, max_length=24).encode([example])
    assert items.alignment is not None and items.sequences.targets is not None
    words_with_token = items.alignment[items.alignment >= 0].tolist()
    assert words_with_token == sorted(set(words_with_token)), "each word once, in order"
    assert items.counts.words_lost == len(words) - len(words_with_token)
    is_first = items.alignment >= 0
    assert ((items.sequences.targets != IGNORE_INDEX) == is_first).all()
    assert items.sequences.targets[is_first].tolist() == [task.labels.index(tags[word]) for word in words_with_token]


@pytest.mark.parametrize("shape", ["bert", "gpt2", "t5"])
def test_the_first_token_of_a_word_starts_it(shape: str) -> None:
    example = examples_of("tagging")[2]
    items = encoder_for(shape, task_of("tagging")).encode([example])
    side = items.sequences if items.sequences.source is None else items.sequences.source
    assert items.alignment is not None
    places = [*np.flatnonzero(items.alignment >= 0), len(side.tokens) - 1]
    pieces = [
        tokenizer(shape).decode(side.tokens[low:high], special=False).replace(" ", "")
        for low, high in itertools.pairwise(places)
    ]
    assert pieces == list(example.words)


@given(
    words=st.lists(
        st.sampled_from(("Nina", "sang", "it", "Paris", "😀", "é", "1968,", "xyzzy")), min_size=1, max_size=60
    ),
    data=st.data(),
)
@settings(max_examples=scale_examples(60))
@pytest.mark.parametrize("shape", ["bert", "gpt2"])
def test_an_answer_comes_back_from_its_tokens(shape: str, words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(first + 5, len(words) - 1)))
    start = len(" ".join(words[:first])) + (first > 0)
    answer = " ".join(words[first : last + 1])
    assert text[start : start + len(answer)] == answer
    example = Example(text="Who sang it?", pair=text, spans=((start, start + len(answer)),), answers=(answer,))
    encoder = encoder_for(shape, task_of("span"), max_length=40, stride=8)
    items = encoder.encode([example])
    targets, alignment = items.sequences.targets, items.alignment
    assert targets is not None and alignment is not None
    starts = tokenizer(shape).encode_batch([text], literal=True).starts.astype(np.int64)
    hits = 0
    for low, high in zip(items.sequences.offsets[:-1], items.sequences.offsets[1:], strict=True):
        window_targets, window_alignment = targets[low:high], alignment[low:high]
        labels = np.where(window_targets == IGNORE_INDEX, 0, window_targets)
        assert (labels & START > 0).sum() == 1 and (labels & END > 0).sum() == 1
        a, b = int((labels & START > 0).argmax()), int((labels & END > 0).argmax())
        if window_alignment[a] < 0:
            assert a == b == 0, "no answer is the first token"
            continue
        hits += 1
        begin, end = find_characters(text, starts, int(window_alignment[a]), int(window_alignment[b]))
        assert text[begin:end] == answer
    assert hits > 0 or items.counts.answers_lost == 1
    every = np.unique(alignment[alignment >= 0])
    assert every.tolist() == list(range(len(starts))), "every token of the passage is in a window"


def test_windows_are_those_of_the_library() -> None:
    encoder = encoder_for("bert", task_of("span"), max_length=32, stride=6)
    text = " ".join(get_passage(example) for example in examples_of("span"))
    items = encoder.encode([Example(text="Who sang it?", pair=text)])
    library = Raw.from_str(tokenizer("bert").raw.to_str())
    library.enable_truncation(32, stride=6, strategy="only_second")
    first = library.encode("Who sang it?", text)
    assert items.sequences.tokens.tolist() == [i for window in (first, *first.overflowing) for i in window.ids]


def test_a_long_question_takes_half_of_the_room() -> None:
    items = encoder_for("bert", task_of("span"), max_length=23).encode(
        [Example(text="Who sang it? " * 20, pair="Paris")]
    )
    assert (items.counts.cut, items.counts.longest) == (
        1,
        len(tokenizer("bert").encode("Paris", add_special_tokens=False)) + 3 + 10,
    )


def test_tokens_of_parts_of_words() -> None:
    starts = np.array([0, 3, 3, 7])  # two tokens for one character
    assert find_tokens(starts, (4, 6)) == (1, 2)
    assert find_tokens(starts, (3, 8)) == (1, 3)


def test_options_fill_gaps() -> None:
    context = split_context(Example(text="t", pair="@placeholder sang", choices=("Nina", "John")))
    assert context == ("t", ["Nina sang", "John sang"])
    assert split_context(Example(text="a __ b", choices=("x",))) == ("a __ b", ["x"])
    assert split_context(Example(text="a", pair="why?", choices=("x",))) == ("a why?", ["x"])


def test_too_many_options_are_left_out_but_never_the_right_one() -> None:
    example = Example(text="which?", choices=tuple(f"Nina {number}" for number in range(30)), label=23)
    encoder = encoder_for("gpt2", task_of("choice"))
    items = encoder.encode([example, replace(example, label=0)])
    assert items.sizes.tolist() == [8, 8] and items.counts.options_left == 44
    right = items.sequences.labels
    assert right is not None
    low, high = items.sequences.offsets[right[0] : right[0] + 2]
    assert tokenizer("gpt2").decode(items.sequences.tokens[low:high], special=False).endswith("Nina 23")
    assert len(encoder.encode([example], training=False).sequences) == 30


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_nasty_texts_give_a_finite_loss(shape: str, kind: str) -> None:
    task = task_of(kind)
    if kind == "generation" and shape == "bert":
        with pytest.raises(UsageError, match="generation"):
            model_for(shape, task)
        return
    model = model_for(shape, task)
    encoder = TaskEncoder.from_task(task, model, max_length=32, max_new_tokens=16)
    nasty = ["", " ", "[CLS] [SEP]</s><|endoftext|>", "😀👩‍👩‍👧", "a" * 600, "\u200b\ufeff", "word " * 99, "\ud800"]
    examples = [
        Example(
            text=text, pair=nasty[-index] if kind in ("pair", "regression", "span") else None, label=1,
            words=(text or "x", "y"), choices=(text, "b"), target=nasty[index - 1], heads=(2, 0), predicate=0,
            clusters=(((0, 0), (1, 1)),),
            tags={"multi-label": ("film",), "dependency": ("det", "root")}.get(kind, ("O", "O")),
        )
        for index, text in enumerate(nasty)
    ]  # fmt: skip
    items = encoder.encode(examples)
    assert items.counts.longest <= 32 and items.counts.cut > 0
    assert (items.sequences.lengths > 0).all()
    stream = TaskStream(items, batch=4)
    for step in stream.steps(0):
        batch = stream[step]
        assert torch.isfinite(model.spec.loss(model, batch).mean())


@pytest.mark.slow
def test_a_word_of_a_million_characters() -> None:
    items = encoder_for("gpt2", task_of("classification")).encode([Example(text="ab" * 500_000, label=0)])
    assert (items.counts.cut, items.counts.longest) == (1, 128) and items.counts.lost > 100_000


@pytest.mark.parametrize("kind", ["classification", "tagging", "span"])
def test_slots_stand_before_every_sequence(kind: str) -> None:
    task, examples = task_of(kind), examples_of(kind)
    model = model_for("bert", task)
    items, slot_items = (TaskEncoder.from_task(task, model, slots=slots).encode(examples) for slots in (0, 3))
    assert (slot_items.sequences.lengths == items.sequences.lengths + 3).all()
    assert slot_items.counts.longest == items.counts.longest + 3
    if items.alignment is not None and slot_items.alignment is not None:
        place = slot_items.sequences.compute_positions() >= 3
        assert (
            slot_items.alignment[place].tolist() == items.alignment.tolist()
            and (slot_items.alignment[~place] == -1).all()
        )


def test_scores_are_learnt_between_minus_one_and_one() -> None:
    encoder = encoder_for("bert", task_of("regression"))
    items = encoder.encode([Example(text="a", pair="b", label=label) for label in (0.0, 2.5, 5.0)])
    assert items.sequences.labels is not None
    assert items.sequences.labels.tolist() == [-1, 0, 1]
    assert [encoder.rules.denormalize_score(value) for value in (-1, 0, 1, 7)] == [0.0, 2.5, 5.0, 5.0]


@pytest.mark.parametrize(
    ("kind", "example", "values"),
    [
        ("classification", Example(text="a"), "'a'"),
        ("classification", Example(text="a", label=2), r"\b0\b.*\b1\b.*\b2\b"),
        ("regression", Example(text="a", label=float("nan")), "'a'"),
        ("tagging", Example(text="a", words=("a",), tags=()), r"\b0\b.*\b1\b"),
        ("tagging", Example(text="a", words=("a",), tags=("B-XXX",)), "'B-XXX'"),
        ("choice", Example(text="a", choices=("b", "c"), label=2), r"\b0\b.*\b1\b.*\b2\b"),
        ("choice", Example(text="a", label=0), "'a'"),
        ("span", Example(text="a", pair="bc", spans=((1, 9),)), r"\b2\b.*\(1, 9\)"),
    ],
)
def test_what_cannot_be_learnt_is_named(kind: str, example: Example, values: str) -> None:
    with pytest.raises(DataError, match=values):
        encoder_for("bert", task_of(kind)).encode([examples_of(kind)[0], example])


def test_long_texts_get_longer_sequences() -> None:
    task = task_of("classification")
    model = adapt(body("bert", 512), build_head(task, body("bert", 512)))
    short, long = [Example(text="Good! " * 9, label=0)] * 30, [Example(text="Good! " * 99, label=0)]
    assert TaskEncoder.from_task(task, model).rules.max_length == 128
    assert TaskEncoder.from_task(task, model, examples=[*short, *long]).rules.max_length == 128, "one in thirty is cut"
    assert TaskEncoder.from_task(task, model, examples=long).rules.max_length == 256
    assert TaskEncoder.from_task(task, model, examples=long, max_length=64).rules.max_length == 64
    assert TaskEncoder.from_task(task, model, examples=[Example(text="Good! " * 999, label=0)]).rules.max_length == 512


def test_lengths_that_cannot_be() -> None:
    task = task_of("pair")
    with pytest.raises(UsageError, match=r"max_length.*\b128\b.*\b200\b"):
        encoder_for("bert", task, max_length=200)
    with pytest.raises(UsageError, match=r"max_length.*\b3$"):
        encoder_for("bert", task, max_length=3).encode(examples_of("pair"))
    with pytest.raises(DataError, match=f"'{task.name}'"):
        encoder_for("bert", task).encode([])
    with pytest.raises(UsageError, match="cloze"):
        build_head(replace(task, kind="cloze"), model_for("bert", task).model.spec)


@pytest.mark.parametrize("shape", ["t5", "gpt2"])
def test_what_is_cut_off_an_answer_is_counted(shape: str) -> None:
    task = replace(task_of("generation"), template=None)
    example = Example(text="Good!", target="the old man looked for the boat")
    full_counts = encoder_for(shape, task, max_new_tokens=60).encode([example]).counts
    short = encoder_for(shape, task, max_new_tokens=3).encode([example]).counts
    tokens = len(tokenizer(shape).encode(example.target or "", add_special_tokens=False))
    assert (full_counts.cut, full_counts.lost) == (0, 0) and (short.cut, short.lost) == (1, tokens - 3)
