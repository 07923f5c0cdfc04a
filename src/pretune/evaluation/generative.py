"""Tasks whose answers are written, without training: the likeliest tokens after some solved examples and a question.

    Paris is the capital of France.
    Question: Which city is it about?
    Answer: ____                             and the task's own metric: exact match and F1, ROUGE, BLEU

A decoder goes on from the prompt. An encoder-decoder fills a blank at its end, as it was trained to, or with
`text_to_text` writes what the task's template asks for. An answer is the first line with a word in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from pretune.core.errors import DataError, UsageError
from pretune.evaluation.few_shot import DEFAULT, FewShotConfig, Truncation, build_notes, select_examples
from pretune.evaluation.prompts import BLANK, PromptTemplate, render_prompt
from pretune.evaluation.result import EvaluationResult
from pretune.evaluation.shots import count_fitting
from pretune.inference.decode import BATCH_ROWS, DecodingCallbacks, check_can_generate, generate_tokens
from pretune.inference.generation_config import GenerationConfig
from pretune.inference.generation_tokens import GenerationTokens
from pretune.inference.scoring import DEFAULT_SCORING, ScoringConfig
from pretune.inference.scoring.logprobs import build_scoring_method, get_max_length
from pretune.inference.scoring.queries import CausalScoring, ConditionalScoring, InfillScoring, SentinelScoring
from pretune.inference.stop_strings import StopStrings
from pretune.inference.streaming import Continuation
from pretune.inference.text_model import get_language_model, get_tokenizer
from pretune.metrics.question_answering import normalise
from pretune.tasks.decode import Prediction, score
from pretune.tasks.example import Example
from pretune.tasks.task import Task

KINDS = ("span", "generation")
"""Tasks whose answers are written here."""
MAX_NEW_TOKENS = {"span": 32, "generation": 64}
"""Tokens of an answer at most, or half of what a model reads where that is less."""
BATCH_EXAMPLES = {"cpu": 64, "cuda": 4096}
"""So many questions are put between two reports; where a step is captured for each length, many together need fewer."""
UNANSWERED = "unanswerable"
"""How it is said that a passage has no answer."""

_ARTICLE = PromptTemplate(text="Article: {text}\nSummary: {answer}")
PROMPTS: Mapping[str, PromptTemplate] = {
    "squad1": PromptTemplate(text="{pair}\nQuestion: {text}\nAnswer: {answer}"),
    "squad2": PromptTemplate(
        text="{pair}\nQuestion: {text} (If the text does not say it, the answer is 'unanswerable'.)\nAnswer: {answer}"
    ),
    "xsum": _ARTICLE,
    "cnndm": _ARTICLE,
    "samsum": PromptTemplate(text="{text}\nSummary: {answer}"),
    "multi30k": PromptTemplate(text="English: {text}\nGerman: {answer}"),
}
"""By task."""
DEFAULT_PROMPTS = {
    "span": PROMPTS["squad1"],
    "generation": PromptTemplate(text="Text: {text}\nAnswer: {answer}"),
}
"""For others, by kind."""


def evaluate_generation(
    model: nn.Module,
    task: Task,
    shots: int = 0,
    config: FewShotConfig = DEFAULT,
    scoring: ScoringConfig = DEFAULT_SCORING,
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """How good the answers are that a model writes, with so many solved examples before each question."""
    if config.calibrate or config.length is not None:
        raise UsageError(f"task '{task.name}' is answered in writing: nothing is compared by length or calibrated")
    split, examples, solved, source = select_examples(task, config, shots)
    writer = AnswerGenerator(
        model,
        _resolve_prompt(task, config),
        solved,
        replace(scoring, given=config.text_to_text),
        max_tokens=MAX_NEW_TOKENS[task.kind],
    )
    texts, lost = writer.generate(examples, on_progress)
    counts = {
        "examples": len(examples),
        "empty": sum(not text for text in texts),
        "cut": lost.truncated,
        "shots_dropped": sum(lost.dropped_shots),
        "questions_with_fewer_shots": sum(count > 0 for count in lost.dropped_shots),
    }
    return EvaluationResult(
        task=task.name,
        split=split,
        shots=shots,
        scores=compute_scores(task, examples, texts),
        counts={name: count for name, count in counts.items() if count or name == "examples"},
        notes=build_notes(task, lost, shots, solved, (source, split), config),
        prompt=f"{writer.render(examples[0])}\n\n(written: {texts[0]})" if config.show else None,
    )


def compute_scores(task: Task, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
    """The task's metrics, the official one first; of texts also what their first words would get (`lead`)."""
    said = ["" if normalise(text) == UNANSWERED else text for text in texts] if task.kind == "span" else texts
    told = score(task, examples, [Prediction(text=text) for text in said])
    if task.kind == "generation":
        mean = max(1, round(float(np.mean([len((example.target or "").split()) for example in examples]))))
        lead = [Prediction(text=" ".join(example.text.split()[:mean])) for example in examples]
        told["lead"] = next(iter(score(task, examples, lead).values()))
    return told


@dataclass(slots=True)
class AnswerGenerator:
    """A model, a prompt that ends in its blank, and the shots that come before every question."""

    model: nn.Module
    prompt: PromptTemplate
    shots: Sequence[Example] = ()
    scoring: ScoringConfig = DEFAULT_SCORING
    max_tokens: int = MAX_NEW_TOKENS["generation"]
    form: CausalScoring | SentinelScoring | InfillScoring | ConditionalScoring = field(init=False)
    max_new_tokens: int = field(init=False)  # tokens of an answer
    max_prompt_tokens: int | None = field(init=False)  # tokens of a prompt
    _shot_texts: list[str] = field(init=False)
    _shot_lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        found = get_language_model(self.model)
        check_can_generate(found)
        form = build_scoring_method(found, get_tokenizer(self.model), self.scoring)
        assert isinstance(form, CausalScoring | SentinelScoring | InfillScoring | ConditionalScoring)
        self.form, longest = form, get_max_length(found)
        self.max_new_tokens = self.max_tokens if longest is None else max(1, min(self.max_tokens, longest // 2))
        self.max_prompt_tokens = None if longest is None else self._compute_prompt_room(longest)
        if self.prompt.text.partition(BLANK)[2].strip():
            raise UsageError(f"an answer that is written comes last: let the prompt end with {BLANK}")
        self._shot_texts = [
            render_prompt(self.prompt, shot, get_answer(shot)).text + self.prompt.join for shot in self.shots
        ]
        self._shot_lengths = [len(tokens) + 1 for tokens in self._encode(self._shot_texts)]

    def generate(
        self, examples: Sequence[Example], on_progress: Callable[[int, int], None] | None = None
    ) -> tuple[list[str], Truncation]:
        """What the model answers to each example, and what did not fit."""
        if not examples:
            raise DataError("there are no examples to evaluate; is the file empty?")
        texts: list[str] = []
        dropped: list[int] = []
        cut = 0
        size = BATCH_EXAMPLES.get(get_language_model(self.model).tokens.weight.device.type, BATCH_EXAMPLES["cpu"])
        for low in range(0, len(examples), size):
            asked, kept = self._render_questions(examples[low : low + size])
            dropped += [len(self.shots) - count for count in kept]
            tokens = self._encode(asked)
            if self.max_prompt_tokens is not None:
                cut += sum(len(each) > self.max_prompt_tokens for each in tokens)
                tokens = [each[-self.max_prompt_tokens :] for each in tokens]
            texts += self._generate(tokens)
            if on_progress is not None:
                on_progress(len(texts), len(examples))
        return texts, Truncation(dropped, cut)

    def render(self, example: Example) -> str:
        """What the model reads for an example, with the blank shown."""
        (text,), _ = self._render_questions([example])
        return f"{text} ____"

    def _compute_prompt_room(self, max_length: int) -> int:
        """The tokens of a prompt; where the decoder reads it too, those of an answer are taken off."""
        if isinstance(self.form, CausalScoring):
            return max_length - len(self.form.lead) - self.max_new_tokens
        return (
            max_length
            - 1
            - self.form.frame.extra
            - (self.max_new_tokens if isinstance(self.form, InfillScoring) else 0)
        )

    def _render_questions(self, examples: Sequence[Example]) -> tuple[list[str], list[int]]:
        """Questions up to their blanks with the shots that fit before each, and how many those are."""
        bare = [render_prompt(self.prompt, example, "").text.rstrip() for example in examples]
        if self.max_prompt_tokens is None or not self.shots:
            kept = [len(self.shots)] * len(bare)
        else:
            kept = [
                count_fitting(self._shot_lengths, self.max_prompt_tokens - len(tokens)) for tokens in self._encode(bare)
            ]
        pairs = zip(bare, kept, strict=True)
        return ["".join(self._shot_texts[len(self._shot_texts) - count :]) + text for text, count in pairs], kept

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts; special ones that are spelled out in them are text."""
        found = get_tokenizer(self.model).encode_batch(texts, literal=True)
        return [found[at].tolist() for at in range(len(texts))]

    def _generate(self, questions: Sequence[list[int]]) -> list[str]:
        tokenizer, stops = get_tokenizer(self.model), StopStrings("\n", after_text=True)
        prompts, begun, marks = self._build_inputs(questions)
        before = (
            [*prompts]
            if isinstance(self.form, CausalScoring)
            else begun
            if isinstance(self.form, InfillScoring)
            else None
        )
        follow = [Continuation(tokenizer, () if before is None else before[at]) for at in range(len(questions))]
        half = torch.bfloat16 if self.scoring.precision == "bfloat16" else None
        batch = BATCH_ROWS
        while True:
            try:
                with torch.autocast(
                    get_language_model(self.model).tokens.weight.device.type, half, enabled=half is not None
                ):
                    found = generate_tokens(
                        self.model,
                        prompts,
                        GenerationConfig(max_new_tokens=self.max_new_tokens),
                        generation_tokens=marks,
                        decoder_prompts=begun,
                        callbacks=DecodingCallbacks(
                            lambda request, number, tokens: stops.truncate(follow[request](tokens))[1]
                        ),
                        batch=batch,
                    )
                break
            except torch.OutOfMemoryError:  # fewer at a time, each as it was
                if batch == 1:
                    raise
                batch //= 2
                torch.cuda.empty_cache()
        return [stops.truncate(say(one[0].tokens))[0].strip() for say, one in zip(follow, found, strict=True)]

    def _build_inputs(
        self, questions: Sequence[list[int]]
    ) -> tuple[list[list[int]], list[list[int]] | None, GenerationTokens]:
        """What is read, what the decoder of an encoder-decoder has already said, and what ends an answer."""
        form, marks = self.form, GenerationTokens.from_model(get_language_model(self.model))
        if isinstance(form, CausalScoring):
            return [[*form.lead, *tokens] for tokens in questions], None, marks
        before, after = ([token for token, _ in part] for part in (form.frame.prefix, form.frame.suffix))
        if isinstance(form, ConditionalScoring):
            return [[*before, *tokens, *after] for tokens in questions], None, marks
        plain = replace(marks, start=form.start, forced_bos=None, forced_eos=None)
        if isinstance(form, InfillScoring):
            sources = [[*before, *tokens, form.mask, *after] for tokens in questions]
            return sources, [[*before, *tokens] for tokens in questions], plain
        sources = [[*before, *tokens, form.sentinel, *after] for tokens in questions]
        others = get_tokenizer(self.model).sentinels
        return sources, [[form.sentinel]] * len(sources), replace(plain, eos=(*plain.eos, *others))


def get_answer(example: Example) -> str:
    """The answer of a solved example, in one line."""
    if example.target is not None:
        return " ".join(example.target.split())
    return example.answers[0] if example.answers else UNANSWERED


def _resolve_prompt(task: Task, config: FewShotConfig) -> PromptTemplate:
    if isinstance(config.prompt, PromptTemplate):
        return config.prompt
    if config.prompt is not None:
        return PromptTemplate(text=config.prompt)
    if not config.text_to_text:
        return PROMPTS.get(task.name, DEFAULT_PROMPTS[task.kind])
    if task.template is None:
        raise UsageError(f"task '{task.name}' has no text-to-text template; leave --text-to-text away")
    return PromptTemplate(text=f"{task.template.source} {BLANK}")
