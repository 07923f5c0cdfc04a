"""Answers from what was found: hits in a prompt for a model that writes (retrieval-augmented generation, Lewis et al.,
2020)."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.format import format_count
from pretune.inference.decode import check_can_generate
from pretune.inference.generate import generate_texts
from pretune.inference.generation_config import build_generation_config
from pretune.inference.index import Hit
from pretune.inference.stop_strings import StopStrings
from pretune.inference.text_model import get_language_model, get_tokenizer

PROMPT = "Answer the question from the passages.\n\n{passages}\n\nQuestion: {question}\nAnswer:"
PASSAGE = "[{number}] {text}"
SOURCE = "question: {question} context: {passages}"
"""What an encoder-decoder reads: as T5 was taught to answer questions, and as `pretune finetune --task squad1` does."""
MARGIN = 8
"""Tokens kept back for the special ones that a model puts around a prompt."""


class RagAnswer(NamedTuple):
    """What a model said, of how many hits it was told, and the whole prompt."""

    text: str
    hits_read: int
    prompt: str


def answer_questions(
    reader: nn.Module, questions: Sequence[str], hits: Sequence[Sequence[Hit]], *, max_new_tokens: int = 64
) -> list[RagAnswer]:
    """The reader's answer to each question, greedily, from as many of its hits, best first, as fit into the model.

    Where nothing but what it was made for limits a reader, one hit is read even if it is longer.
    """
    check_can_generate(get_language_model(reader))
    spec = get_language_model(reader).spec
    longest = spec.max_length or spec.context
    room = None if longest is None else longest - MARGIN - (0 if spec.is_encoder_decoder else max_new_tokens)
    if room is not None and room < 1:
        raise UsageError(f"{max_new_tokens} new tokens leave no room for a question: the reader has {longest} in all")
    least = 0 if spec.max_length is not None else 1
    prompts = [
        build_prompt(reader, question, found, room, least) for question, found in zip(questions, hits, strict=True)
    ]
    dropped = sum(len(found) - read for found, (_, read) in zip(hits, prompts, strict=True))
    if dropped:
        log.warn(f"{format_count(dropped, 'hits')} left out: no room in the reader's {longest} tokens")
    how = build_generation_config(max_new_tokens=max_new_tokens, temperature=0)
    texts = generate_texts(reader, [text for text, _ in prompts], how, stop=StopStrings("\n", after_text=True))
    return [RagAnswer(found[0].new.strip(), read, text) for found, (text, read) in zip(texts, prompts, strict=True)]


def build_prompt(
    reader: nn.Module, question: str, hits: Sequence[Hit], room: int | None, min_hits: int = 0
) -> tuple[str, int]:
    """The prompt with the most hits that leave it within `room` tokens, and how many; `least` are there anyhow."""
    tokenizer, both = get_tokenizer(reader), get_language_model(reader).spec.is_encoder_decoder
    for read in range(len(hits), -1, -1):
        if both:
            text = SOURCE.format(question=question, passages=" ".join(hit.text for hit in hits[:read]))
        else:
            passages = "\n".join(PASSAGE.format(number=i, text=hit.text) for i, hit in enumerate(hits[:read], 1))
            text = PROMPT.format(passages=passages, question=question)
        if room is None or read == min(min_hits, len(hits)) > 0 or len(tokenizer.encode(text)) <= room:
            return text, read
    raise UsageError(f"the question alone is longer than the {room} tokens that the reader has room for; shorten it")
