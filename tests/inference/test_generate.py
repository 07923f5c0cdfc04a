"""Prompts and texts: what is read before writing, stops wherever they fall, streams, and what is refused."""

from copy import deepcopy
from typing import Any

import pytest
import torch

import pretune as pt
from pretune.core.errors import CheckpointError, UsageError
from pretune.inference.generate import (
    Continuation,
    GeneratedText,
    StopStrings,
    TextStreamer,
    choose_max_new_tokens,
    generate_texts,
)
from pretune.inference.generation_config import CONFIG_FILE, GenerationTokens, build_generation_config
from pretune.inference.prompts import EncodedPrompts, encode_prompts
from pretune.inference.text_model import get_tokenizer
from pretune.models.model import LanguageModel
from pretune.text.tokenizer import Tokenizer
from tests.inference.speakers import bart, bert, gpt, speaker, t5, tokenizer

ONCE = "Once upon a time"


def write(model: LanguageModel, prompt: str = ONCE, stop: Any = (), start: Any = None, **options: Any) -> GeneratedText:
    """The single text for a prompt."""
    ((result,),) = generate_texts(model, [prompt], build_generation_config(**options), stop=stop, start=start)
    return result


def encode(model: LanguageModel, words: Tokenizer, prompt: str, new: int = 4, **options: Any) -> EncodedPrompts:
    """A prompt with room for new tokens, by default after the model's start token."""
    tokens = options.pop("tokens", None) or GenerationTokens.from_model(model)
    return encode_prompts(model, words, [prompt], tokens, max_new_tokens=new, **{"truncate": False, **options})


def test_the_prompt_is_included_as_it_was_written() -> None:
    (text,) = pt.generate(gpt(), [ONCE], max_new_tokens=6, seed=4)
    assert text.startswith(ONCE) and len(text) > len(ONCE)
    assert pt.generate(gpt(), [ONCE], max_new_tokens=6, seed=4) == [text]
    assert pt.generate(gpt(), [ONCE], max_new_tokens=6, seed=5) != [text]
    assert len(pt.generate(gpt(), [ONCE, "The"], max_new_tokens=3, num=3)) == 6
    lower = speaker("gpt2-small", "wordpiece", "cls-sep")
    assert pt.generate(lower, ["  The  KING "], max_new_tokens=2, temperature=0)[0].startswith("  The  KING ")


def test_an_encoder_decoder_gives_what_it_writes_alone() -> None:
    (text,) = pt.generate(t5(), [ONCE], max_new_tokens=6, temperature=0)
    assert not text.startswith(ONCE)


def test_how_much_is_written_by_default() -> None:
    assert choose_max_new_tokens(gpt()) == 24 and choose_max_new_tokens(t5()) == 64
    assert write(gpt(), "The", max_new_tokens=choose_max_new_tokens(gpt()), min_new_tokens=24).tokens == 24


def test_prompts_as_the_layouts_say() -> None:
    words = tokenizer("bpe", "endoftext")
    ids, cut = encode(gpt(), words, "The king")
    king = words.encode("The king", add_special_tokens=False)
    assert ids == [[words.special["bos"], *king]] and not cut, "a run's decoder starts with its bos"
    assert encode(gpt(), words, "The king", tokens=GenerationTokens(start=None)).ids == [king]
    framed = tokenizer("wordpiece", "cls-sep")
    result = encode(speaker("gpt2-small", "wordpiece", "cls-sep"), framed, "The").ids
    expected = [framed.special["cls"], *framed.encode("The", add_special_tokens=False)]
    assert result == [expected], "nothing is put behind a prompt"
    ended = tokenizer("unigram", "sentinels")
    expected = [*ended.encode("The king", add_special_tokens=False), ended.special["eos"]]
    assert encode(t5(), ended, "The king").ids == [expected]


def test_special_tokens_may_be_spelled() -> None:
    words = tokenizer("bpe", "endoftext")
    ids = encode(gpt(), words, "<|endoftext|>", tokens=GenerationTokens(start=None)).ids
    assert ids == [[words.special["bos"]]]


def test_prompts_that_are_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    long = " ".join(["king"] * 60)
    with pytest.raises(UsageError, match=r"prompt 2\b.*\b37\b.*\b10\b.*--max-new-tokens"):
        pt.generate(gpt(), ["The", long], max_new_tokens=10)
    (text,) = pt.generate(gpt(), [long], max_new_tokens=10, truncate=True)
    assert text.startswith(long)
    words = tokenizer("bpe", "endoftext")
    full = words.encode(long, add_special_tokens=False)
    assert f"{len(full) - 37} tokens" in capsys.readouterr().err
    (remaining,), cut = encode(gpt(), words, long, 10, tokens=GenerationTokens(start=None), truncate=True)
    assert remaining == full[-38:] and cut == len(full) - 38, "a decoder keeps the end"
    spelled = tokenizer("bpe", "s-mask")
    (remaining,), _ = encode(bart(), spelled, long, 10, truncate=True)
    full = spelled.encode(long, add_special_tokens=False)
    assert remaining[1:-1] == full[:46] and len(remaining) == 48, "a source keeps its beginning"
    with pytest.raises(UsageError, match=r"\b48\b"):
        pt.generate(gpt(), ["The"], max_new_tokens=48)


def test_prompts_that_are_nothing() -> None:
    with pytest.raises(UsageError, match="prompt 2"):
        pt.generate(gpt(), ["The", ""])
    with pytest.raises(UsageError):
        pt.generate(gpt(), "The")  # type: ignore[arg-type]
    assert pt.generate(gpt(), []) == []


def test_models_that_cannot_write() -> None:
    with pytest.raises(UsageError, match="'encoder'"):
        pt.generate(bert(), ["The"])
    with pytest.raises(UsageError, match="Linear"):
        pt.generate(torch.nn.Linear(1, 1), ["The"])
    mute = deepcopy(gpt())
    mute.assets.tokenizer = None
    with pytest.raises(UsageError, match="tokenizer"):
        pt.generate(mute, ["The"])


def test_the_file_beside_the_weights_has_the_last_word() -> None:
    model = deepcopy(t5())
    model.assets.files[CONFIG_FILE] = b'{"eos_token_id": [7, 9], "forced_bos_token_id": 5, "decoder_start_token_id": 2}'
    assert GenerationTokens.from_model(model) == GenerationTokens(start=2, eos=(7, 9), forced_bos=5)
    model.assets.files[CONFIG_FILE] = b'{"decoder_start_token_id": 99999}'
    with pytest.raises(CheckpointError, match=f"{CONFIG_FILE}.*99999"):
        GenerationTokens.from_model(model)
    model.assets.files[CONFIG_FILE] = b"{"
    with pytest.raises(CheckpointError, match=CONFIG_FILE):
        GenerationTokens.from_model(model)


def test_a_decoder_may_be_started_with_another_token() -> None:
    first, other = (write(t5(), start=start, max_new_tokens=4, temperature=0).new for start in (None, "<extra_id_5>"))
    assert first != other
    with pytest.raises(UsageError, match="'de_DE'"):
        pt.generate(t5(), [ONCE], start="de_DE")


def test_a_text_ends_before_a_stop_wherever_tokens_end() -> None:
    """Stops of every place and length, most of which cross the borders of tokens."""
    options = {"max_new_tokens": 24, "seed": 2}
    full = write(gpt(), **options).new
    for start in range(1, len(full) - 6):
        for size in (1, 2, 5):
            stop = full[start : start + size]
            if "\ufffd" in stop:
                continue
            result = write(gpt(), stop=[stop, "never said"], **options)
            assert result.new == full[: full.index(stop)]
            assert result.finish_reason == "stop" and result.text == ONCE + result.new
        if start > 12:
            break


def test_a_stop_in_the_prompt_stops_nothing() -> None:
    assert write(gpt(), stop=["Once"], max_new_tokens=4, temperature=0).finish_reason != "stop"


def test_beams_are_cut_at_a_stop() -> None:
    full = write(gpt(), max_new_tokens=8, beams=2).new
    result = write(gpt(), stop=[full[2:4]], max_new_tokens=8, beams=2)
    assert result.new == full[: full.index(full[2:4])] and result.finish_reason == "stop"


@pytest.mark.parametrize("stop", [[], ["e"], ["ing the", "zz"]])
def test_a_stream_says_the_same(stop: list[str]) -> None:
    pieces: list[str] = []
    (text,) = pt.generate(gpt(), [ONCE], max_new_tokens=24, seed=2, stop=stop, stream=pieces.append)
    assert "".join(pieces) == text == pt.generate(gpt(), [ONCE], max_new_tokens=24, seed=2, stop=stop)[0]
    assert len(pieces) > 2 or stop, "it comes in pieces"
    pieces.clear()
    (text,) = pt.generate(t5(), [ONCE], max_new_tokens=9, seed=2, stream=pieces.append)
    assert "".join(pieces) == text


def test_only_one_text_is_streamed() -> None:
    for options in ({"num": 2}, {"beams": 2}):
        with pytest.raises(UsageError):
            pt.generate(gpt(), [ONCE], stream=print, **options)
    with pytest.raises(UsageError):
        pt.generate(gpt(), [ONCE, "The"], stream=print)


def test_a_stream_takes_nothing_back() -> None:
    messages: list[str] = []
    stream = TextStreamer(messages.append, StopStrings(["END", "D!"]))
    for text in ("a", "a E", "a EN", "a ENx", "a ENx\ufffd", "a ENxé E", "a ENxé END"):
        stream.update(text)
    stream.finish("a ENxé ")
    assert "".join(messages) == "a ENxé " and messages == ["a", " ", "ENx", "é "]


BYTES = "a😀é😀".encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (BYTES, "a😀é😀"),
        *((BYTES[:-size], "a😀é\ufffd") for size in (1, 2, 3)),
        (BYTES[:5] + b"\x80" + BYTES[5:], "a😀\ufffdé😀"),  # invalid, not incomplete
        (b"\xff" + BYTES[:4], "\ufffda\ufffd"),
    ],
)
def test_a_stream_of_byte_tokens(data: bytes, expected: str) -> None:
    """Whole characters stay, whatever follows them; an incomplete one at the end is one placeholder."""
    words = tokenizer("unigram", "sentinels")
    ids = [words.token_to_id(f"<0x{byte:02X}>") for byte in data]
    follow = Continuation(words, words.encode("The king", add_special_tokens=False))
    messages: list[str] = []
    stream = TextStreamer(messages.append, StopStrings())
    for count in range(1, len(ids) + 1):
        stream.update(follow(ids[:count]))
    stream.finish(follow(ids))
    assert "".join(messages) == follow(ids) == expected
    assert follow([*ids, words.special["eos"], *words.encode("went", add_special_tokens=False)]) == f"{expected} went"


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_without_prompts(size: int) -> None:
    with pytest.raises(UsageError, match=str(size)):
        pt.generate(gpt(), ["The king"], max_new_tokens=1, batch=size)


def test_stops_that_mean_nothing() -> None:
    with pytest.raises(UsageError):
        StopStrings(["", "a"])
    assert StopStrings("ab").texts == ("ab",)


@pytest.mark.parametrize(("kind", "style"), [("bpe", "endoftext"), ("unigram", "sentinels"), ("wordpiece", "cls-sep")])
def test_new_tokens_add_to_the_text_before(kind: str, style: str) -> None:
    words: Tokenizer = tokenizer(kind, style)
    full = words.encode("The old king went home", add_special_tokens=False)
    for cut in range(1, len(full)):
        follow = Continuation(words, full[:cut])
        assert words.decode(full[:cut], special=False) + follow(full[cut:]) == words.decode(full, special=False)


def test_one_tokenizer_for_a_model() -> None:
    model = gpt()
    assert get_tokenizer(model) is get_tokenizer(model)
    assert get_tokenizer(model).special == tokenizer("bpe", "endoftext").special
