"""Retrieval-augmented generation (Lewis et al., 2020): hits in the prompt of a generative model."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from pretune.core import log
from pretune.core.errors import UsageError
from pretune.core.log import format_count
from pretune.inference.decode import check_can_generate
from pretune.inference.generate import StopStrings, generate_texts
from pretune.inference.generation_config import build_generation_config
from pretune.inference.index import Hit
from pretune.inference.prompts import get_length_limits
from pretune.inference.text_model import get_language_model, get_tokenizer

PROMPT = "Answer the question from the passages.\n\n{passages}\n\nQuestion: {question}\nAnswer:"
PASSAGE = "[{number}] {text}"
SOURCE = "question: {question} context: {passages}"
"""Source of an encoder-decoder: T5's format of question answering, also used by `pretune finetune --task squad1`."""
MARGIN = 8
"""Tokens reserved for special tokens around a prompt."""


class RagAnswer(NamedTuple):
    """Generated answer, number of hits in the prompt, and the prompt."""

    text: str
    hits_read: int
    prompt: str


def answer_questions(
    reader: nn.Module, questions: Sequence[str], hits: Sequence[Sequence[Hit]], *, max_new_tokens: int = 64
) -> list[RagAnswer]:
    """Answer each question by greedy decoding, from as many of its hits, best first, as fit into the model.

    If the reader has no limit of positions, at least one hit is used, even beyond its training length.
    """
    config = build_generation_config(max_new_tokens=max_new_tokens, temperature=0)
    check_can_generate(get_language_model(reader))
    spec, limits = get_language_model(reader).spec, get_length_limits(get_language_model(reader))
    limit = limits[0 if spec.is_encoder_decoder else 1]
    max_length = spec.context if limit is None else limit
    reserved_tokens = MARGIN + (0 if spec.is_encoder_decoder else max_new_tokens)
    prompt_tokens = None if max_length is None else max_length - reserved_tokens
    if prompt_tokens is not None and prompt_tokens < 1:
        raise UsageError(f"max_new_tokens must leave room for a question in {max_length} tokens, got {max_new_tokens}")
    min_hits = 0 if spec.max_length is not None else 1
    pairs = zip(questions, hits, strict=True)
    prompts = [build_prompt(reader, question, found_hits, prompt_tokens, min_hits) for question, found_hits in pairs]
    dropped_hits = sum(map(len, hits)) - sum(hits_read for _, hits_read in prompts)
    if dropped_hits:
        log.warn(f"{format_count(dropped_hits, 'hits')} dropped: they do not fit into {max_length} tokens")
    texts = generate_texts(reader, [text for text, _ in prompts], config, stop=StopStrings("\n", after_text=True))
    return [
        RagAnswer(generated_texts[0].new.strip(), hits_read, text)
        for generated_texts, (text, hits_read) in zip(texts, prompts, strict=True)
    ]


def build_prompt(
    reader: nn.Module, question: str, hits: Sequence[Hit], room: int | None, min_hits: int = 0
) -> tuple[str, int]:
    """Build the prompt with as many hits as fit into `room` tokens (at least `min_hits`), and return their number."""
    tokenizer, is_encoder_decoder = get_tokenizer(reader), get_language_model(reader).spec.is_encoder_decoder
    for hit_count in range(len(hits), -1, -1):
        if is_encoder_decoder:
            text = SOURCE.format(question=question, passages=" ".join(hit.text for hit in hits[:hit_count]))
        else:
            passages = "\n".join(PASSAGE.format(number=i, text=hit.text) for i, hit in enumerate(hits[:hit_count], 1))
            text = PROMPT.format(passages=passages, question=question)
        if (
            room is None
            or hit_count == min(min_hits, len(hits)) > 0
            or len(tokenizer.encode(text, add_special_tokens=False)) <= room
        ):
            return text, hit_count
    raise UsageError(f"the question has more than {room} tokens, the limit of the reader; shorten it")
