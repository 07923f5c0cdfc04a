"""Few-shot evaluation by generation: greedy decoding after solved examples and a question.

    Paris is the capital of France.
    Question: Which city is it about?
    Answer: ____                             scored by the task's metric: exact match and F1, ROUGE, BLEU

A decoder continues the prompt. An encoder-decoder fills a blank at its end, as in pre-training, or with `text_to_text`
generates the answer of the task's template. An answer is the first line that has a word.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from pretune.core.errors import DataError, UsageError
from pretune.evaluation import EvaluationResult, Truncation
from pretune.evaluation.few_shot import DEFAULT, FewShotConfig, build_result, select_examples
from pretune.evaluation.prompts import BLANK, PromptTemplate, RenderedShots, build_text_to_text_prompt, render_prompt
from pretune.inference.decode import BATCH_ROWS, DecodingCallbacks, check_can_generate, generate_tokens
from pretune.inference.generate import Continuation, StopStrings
from pretune.inference.generation_config import GenerationConfig, GenerationTokens
from pretune.inference.scoring import DEFAULT_SCORING, ScoringConfig, build_scoring_method, get_max_length
from pretune.inference.scoring_queries import CausalScoring, EncoderDecoderScoring
from pretune.inference.text_model import get_predictive_model, get_tokenizer
from pretune.metrics.question_answering import normalise
from pretune.tasks.example import Example, Examples, Prediction
from pretune.tasks.task import Task
from pretune.tasks.types import get_type
from pretune.tasks.types.base import AnswerPrompt
from pretune.tasks.types.span import NO_ANSWER

MAX_NEW_TOKENS = 64
"""Default maximum number of tokens of an answer; at most half of the model's maximum length."""
BATCH_EXAMPLES = {"cpu": 64, "cuda": 4096}
"""Examples per chunk; large on CUDA, where graphs are captured per length and reused inside a chunk."""

_ARTICLE = PromptTemplate(text="Article: {text}\nSummary: {answer}")
_GERMAN = PromptTemplate(text="English: {text}\nGerman: {answer}")
PROMPTS: Mapping[str, PromptTemplate] = {
    "squad2": PromptTemplate(
        text="{pair}\nQuestion: {text} (If the text does not say it, the answer is 'unanswerable'.)\nAnswer: {answer}"
    ),
    "xsum": _ARTICLE,
    "cnndm": _ARTICLE,
    "samsum": PromptTemplate(text="{text}\nSummary: {answer}"),
    **dict.fromkeys(("triviaqa", "nq_open", "eli5"), PromptTemplate(text="Question: {text}\nAnswer: {answer}")),
    "coqa": PromptTemplate(text="{pair}\n{text}\nA: {answer}"),
    "convai2": PromptTemplate(text="{text}\n{answer}"),
    **dict.fromkeys(("multi30k", "wmt14_en_de"), _GERMAN),
    "wmt14_en_fr": PromptTemplate(text="English: {text}\nFrench: {answer}"),
    "wmt16_en_ro": PromptTemplate(text="English: {text}\nRomanian: {answer}"),
}
"""Prompts by task; others have that of their type."""


def evaluate_generation(
    model: nn.Module,
    task: Task,
    shots: int = 0,
    config: FewShotConfig = DEFAULT,
    scoring: ScoringConfig = DEFAULT_SCORING,
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Evaluate generated answers with `shots` solved examples before each question."""
    if config.calibrate or config.length is not None:
        raise UsageError(
            f"task '{task.name}' is evaluated by generation: length normalization and calibration do not apply"
        )
    selection = select_examples(task, config, shots)
    examples = selection.examples
    generator = AnswerGenerator(
        model,
        _resolve_prompt(task, config),
        selection.shots,
        replace(scoring, conditional=config.text_to_text),
        max_tokens=get_answer_prompt(task).max_answer_tokens,
    )
    texts, truncation = generator.generate(examples, on_progress)
    empty = sum(not text for text in texts)
    return build_result(
        task,
        shots,
        config,
        selection,
        truncation,
        scores=compute_scores(task, examples, texts),
        counts={"empty": empty} if empty else {},
        prompt=f"{generator.render(examples[0])}\n\n(generated: {texts[0]})" if config.show else None,
    )


def get_answer_prompt(task: Task) -> AnswerPrompt:
    """Return the prompt of a task's type, whose answers are generated."""
    evaluator = get_type(task).scoring.evaluator
    assert isinstance(evaluator, AnswerPrompt)
    return evaluator


def compute_scores(task: Task, examples: Examples, texts: Sequence[str]) -> dict[str, float]:
    """Compute the task's metrics, the official one first; for generation also `lead`, the score of the first words."""
    scoring = get_type(task).scoring
    no_answer = get_answer_prompt(task).no_answer
    predictions = [Prediction(text="" if normalise(text) == no_answer else text) for text in texts]
    metrics = scoring.score(task, examples, predictions)
    if scoring.gold == "text":
        mean = max(1, round(float(np.mean([len((example.target or "").split()) for example in examples]))))
        lead = [Prediction(text=" ".join(example.text.split()[:mean])) for example in examples]
        metrics["lead"] = next(iter(scoring.score(task, examples, lead).values()))
    return metrics


@dataclass(slots=True)
class AnswerGenerator:
    """Generator of answers: a model, a prompt that ends in its blank, and the shots before every question."""

    model: nn.Module
    prompt: PromptTemplate
    shots: Examples = ()
    scoring: ScoringConfig = DEFAULT_SCORING
    max_tokens: int = MAX_NEW_TOKENS
    scoring_method: CausalScoring | EncoderDecoderScoring = field(init=False)
    max_new_tokens: int = field(init=False)  # per answer
    max_prompt_tokens: int | None = field(init=False)  # per prompt
    _rendered_shots: RenderedShots = field(init=False)

    def __post_init__(self) -> None:
        language_model = get_predictive_model(self.model)
        check_can_generate(language_model)
        method = build_scoring_method(language_model, get_tokenizer(self.model), self.scoring)
        assert isinstance(method, CausalScoring | EncoderDecoderScoring)
        self.scoring_method, max_length = method, get_max_length(language_model)
        self.max_new_tokens = self.max_tokens if max_length is None else max(1, min(self.max_tokens, max_length // 2))
        self.max_prompt_tokens = None if max_length is None else self._compute_prompt_room(max_length)
        if self.prompt.text.partition(BLANK)[2].strip():
            raise UsageError(f"generation needs a prompt that ends with {BLANK}")
        shot_texts = [render_prompt(self.prompt, shot, get_answer(shot)).text + self.prompt.join for shot in self.shots]
        self._rendered_shots = RenderedShots(get_tokenizer(self.model), shot_texts)

    def generate(
        self, examples: Examples, on_progress: Callable[[int, int], None] | None = None
    ) -> tuple[list[str], Truncation]:
        """Generate an answer for each example; return them with what was truncated."""
        if not examples:
            raise DataError("no examples to evaluate; is the file empty?")
        texts: list[str] = []
        dropped_shots: list[int] = []
        truncated_texts = 0
        size = BATCH_EXAMPLES.get(get_predictive_model(self.model).tokens.weight.device.type, BATCH_EXAMPLES["cpu"])
        for low in range(0, len(examples), size):
            questions, shot_counts = self._render_questions(examples[low : low + size])
            dropped_shots += [len(self.shots) - count for count in shot_counts]
            tokens = self._encode(questions)
            if self.max_prompt_tokens is not None:
                truncated_texts += sum(len(prompt) > self.max_prompt_tokens for prompt in tokens)
                tokens = [prompt[-self.max_prompt_tokens :] for prompt in tokens]
            texts += self._generate(tokens)
            if on_progress is not None:
                on_progress(len(texts), len(examples))
        return texts, Truncation(dropped_shots, truncated_texts)

    def render(self, example: Example) -> str:
        """Return the model's input for an example, with the blank shown."""
        (text,), _ = self._render_questions([example])
        return f"{text} ____"

    def _compute_prompt_room(self, max_length: int) -> int:
        """Return the maximum prompt length; if the decoder reads the prompt too, the answer's tokens are subtracted."""
        if isinstance(self.scoring_method, CausalScoring):
            return max_length - len(self.scoring_method.lead) - self.max_new_tokens
        room = self.scoring_method.get_max_passage(max_length)
        return room - self.max_new_tokens if self.scoring_method.whole_text else room

    def _render_questions(self, examples: Examples) -> tuple[list[str], list[int]]:
        """Render questions up to their blanks with the shots that fit; return them and the numbers of shots."""
        questions = [render_prompt(self.prompt, example, "").text.rstrip() for example in examples]
        shot_counts = self._rendered_shots.count_fitting(questions, self.max_prompt_tokens)
        pairs = zip(questions, shot_counts, strict=True)
        return [self._rendered_shots.join(count) + text for text, count in pairs], shot_counts

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts; special tokens spelled out in them are treated as text."""
        encodings = get_tokenizer(self.model).encode_batch(texts, literal=True)
        return [encodings[i].tolist() for i in range(len(texts))]

    def _generate(self, questions: Sequence[list[int]]) -> list[str]:
        tokenizer, stops = get_tokenizer(self.model), StopStrings("\n", after_text=True)
        prompts, decoder_prompts, generation_tokens = self._build_inputs(questions)
        if isinstance(self.scoring_method, CausalScoring):
            contexts = prompts
        else:
            contexts = (decoder_prompts if self.scoring_method.whole_text else None) or [[]] * len(questions)
        decoders = [Continuation(tokenizer, context) for context in contexts]
        half = torch.bfloat16 if self.scoring.precision == "bfloat16" else None
        batch = BATCH_ROWS
        while True:
            try:
                with torch.autocast(
                    get_predictive_model(self.model).tokens.weight.device.type, half, enabled=half is not None
                ):
                    outputs = generate_tokens(
                        self.model,
                        prompts,
                        GenerationConfig(max_new_tokens=self.max_new_tokens),
                        generation_tokens=generation_tokens,
                        decoder_prompts=decoder_prompts,
                        callbacks=DecodingCallbacks(
                            lambda request, number, tokens: stops.truncate(decoders[request](tokens))[1]
                        ),
                        batch=batch,
                    )
                break
            except torch.OutOfMemoryError:  # retry with smaller batches; each answer stays the same
                if batch == 1:
                    raise
                batch //= 2
                torch.cuda.empty_cache()
        return [
            stops.truncate(decode(output[0].tokens))[0].strip()
            for decode, output in zip(decoders, outputs, strict=True)
        ]

    def _build_inputs(
        self, questions: Sequence[list[int]]
    ) -> tuple[list[list[int]], list[list[int]] | None, GenerationTokens]:
        """Return the input tokens, the decoder prefix of an encoder-decoder, and the tokens that control generation."""
        method, generation_tokens = self.scoring_method, GenerationTokens.from_model(get_predictive_model(self.model))
        if isinstance(method, CausalScoring):
            return [[*method.lead, *tokens] for tokens in questions], None, generation_tokens
        prefix, suffix = ([token for token, _ in part] for part in (method.template.prefix, method.template.suffix))
        sources = [[*prefix, *tokens, *method.blank, *suffix] for tokens in questions]
        if not method.blank:
            return sources, None, generation_tokens
        infill_tokens = replace(generation_tokens, start=method.lead[0], forced_bos=None, forced_eos=None)
        if method.whole_text:
            return sources, [[*prefix, *tokens] for tokens in questions], infill_tokens
        sentinels = get_tokenizer(self.model).sentinels
        stop_tokens = replace(infill_tokens, eos=(*infill_tokens.eos, *sentinels))
        return sources, [[*method.lead[1:]]] * len(sources), stop_tokens


def get_answer(example: Example) -> str:
    """Return the answer of a solved example, on one line."""
    if example.target is not None:
        return " ".join(example.target.split())
    return example.answers[0] if example.answers else NO_ANSWER


def _resolve_prompt(task: Task, config: FewShotConfig) -> PromptTemplate:
    if isinstance(config.prompt, PromptTemplate):
        return config.prompt
    if config.prompt is not None:
        return PromptTemplate(text=config.prompt)
    if not config.text_to_text:
        return PROMPTS.get(task.name) or PromptTemplate(text=get_answer_prompt(task).text)
    return build_text_to_text_prompt(task)
