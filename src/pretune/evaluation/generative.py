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
from pretune.evaluation.few_shot import USUAL, Lost, Trial, asked, notes_of
from pretune.evaluation.prompts import BLANK, Prompt, put
from pretune.evaluation.result import Result
from pretune.evaluation.shots import fitting
from pretune.inference.decode import ROWS, Watch, check, complete
from pretune.inference.generation_config import Decoding
from pretune.inference.generation_tokens import Marks
from pretune.inference.scoring import PLAIN, Asking
from pretune.inference.scoring.logprobs import form_of, limit
from pretune.inference.scoring.queries import Causal, Given, Infilled, Sentinel
from pretune.inference.stop_strings import Stops
from pretune.inference.streaming import Continuation
from pretune.inference.text_model import body, tokenizer_of
from pretune.metrics.question_answering import normalise
from pretune.tasks.decode import Prediction, score
from pretune.tasks.example import Example
from pretune.tasks.task import Task

KINDS = ("span", "generation")
"""Tasks whose answers are written here."""
NEW = {"span": 32, "generation": 64}
"""Tokens of an answer at most, or half of what a model reads where that is less."""
SLAB = {"cpu": 64, "cuda": 4096}
"""So many questions are put between two reports; where a step is captured for each length, many together need fewer."""
UNANSWERED = "unanswerable"
"""How it is said that a passage has no answer."""

_ARTICLE = Prompt(text="Article: {text}\nSummary: {answer}")
PROMPTS: Mapping[str, Prompt] = {
    "squad1": Prompt(text="{pair}\nQuestion: {text}\nAnswer: {answer}"),
    "squad2": Prompt(
        text="{pair}\nQuestion: {text} (If the text does not say it, the answer is 'unanswerable'.)\nAnswer: {answer}"
    ),
    "xsum": _ARTICLE,
    "cnndm": _ARTICLE,
    "samsum": Prompt(text="{text}\nSummary: {answer}"),
    "multi30k": Prompt(text="English: {text}\nGerman: {answer}"),
}
"""By task."""
PLAINLY = {
    "span": PROMPTS["squad1"],
    "generation": Prompt(text="Text: {text}\nAnswer: {answer}"),
}
"""For others, by kind."""


def written(
    model: nn.Module,
    task: Task,
    shots: int = 0,
    trial: Trial = USUAL,
    asking: Asking = PLAIN,
    tell: Callable[[int, int], None] | None = None,
) -> Result:
    """How good the answers are that a model writes, with so many solved examples before each question."""
    if trial.calibrate or trial.length is not None:
        raise UsageError(f"task '{task.name}' is answered in writing: nothing is compared by length or calibrated")
    split, examples, solved, source = asked(task, trial, shots)
    writer = Writer(model, _put(task, trial), solved, replace(asking, given=trial.text_to_text), most=NEW[task.kind])
    texts, lost = writer.write(examples, tell)
    counts = {
        "examples": len(examples),
        "empty": sum(not text for text in texts),
        "cut": lost.cut,
        "shots_dropped": sum(lost.dropped),
        "questions_with_fewer_shots": sum(count > 0 for count in lost.dropped),
    }
    return Result(
        task=task.name,
        split=split,
        shots=shots,
        scores=scores(task, examples, texts),
        counts={name: count for name, count in counts.items() if count or name == "examples"},
        notes=notes_of(task, lost, shots, solved, (source, split), trial),
        prompt=f"{writer.text(examples[0])}\n\n(written: {texts[0]})" if trial.show else None,
    )


def scores(task: Task, examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
    """The task's metrics, the official one first; of texts also what their first words would get (`lead`)."""
    said = ["" if normalise(text) == UNANSWERED else text for text in texts] if task.kind == "span" else texts
    told = score(task, examples, [Prediction(text=text) for text in said])
    if task.kind == "generation":
        mean = max(1, round(float(np.mean([len((example.target or "").split()) for example in examples]))))
        lead = [Prediction(text=" ".join(example.text.split()[:mean])) for example in examples]
        told["lead"] = next(iter(score(task, examples, lead).values()))
    return told


@dataclass(slots=True)
class Writer:
    """A model, a prompt that ends in its blank, and the shots that come before every question."""

    model: nn.Module
    prompt: Prompt
    shots: Sequence[Example] = ()
    asking: Asking = PLAIN
    most: int = NEW["generation"]
    form: Causal | Sentinel | Infilled | Given = field(init=False)
    new: int = field(init=False)  # tokens of an answer
    room: int | None = field(init=False)  # tokens of a prompt
    _shown: list[str] = field(init=False)
    _sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        found = body(self.model)
        check(found)
        form = form_of(found, tokenizer_of(self.model), self.asking)
        assert isinstance(form, Causal | Sentinel | Infilled | Given)
        self.form, longest = form, limit(found)
        self.new = self.most if longest is None else max(1, min(self.most, longest // 2))
        self.room = None if longest is None else self._room(longest)
        if self.prompt.text.partition(BLANK)[2].strip():
            raise UsageError(f"an answer that is written comes last: let the prompt end with {BLANK}")
        self._shown = [put(self.prompt, shot, answer_of(shot)).text + self.prompt.join for shot in self.shots]
        self._sizes = [len(tokens) + 1 for tokens in self._tokens(self._shown)]

    def write(
        self, examples: Sequence[Example], tell: Callable[[int, int], None] | None = None
    ) -> tuple[list[str], Lost]:
        """What the model answers to each example, and what did not fit."""
        if not examples:
            raise DataError("there are no examples to evaluate; is the file empty?")
        texts: list[str] = []
        dropped: list[int] = []
        cut = 0
        size = SLAB.get(body(self.model).tokens.weight.device.type, SLAB["cpu"])
        for low in range(0, len(examples), size):
            asked, kept = self._asked(examples[low : low + size])
            dropped += [len(self.shots) - count for count in kept]
            tokens = self._tokens(asked)
            if self.room is not None:
                cut += sum(len(each) > self.room for each in tokens)
                tokens = [each[-self.room :] for each in tokens]
            texts += self._answers(tokens)
            if tell is not None:
                tell(len(texts), len(examples))
        return texts, Lost(dropped, cut)

    def text(self, example: Example) -> str:
        """What the model reads for an example, with the blank shown."""
        (text,), _ = self._asked([example])
        return f"{text} ____"

    def _room(self, longest: int) -> int:
        """The tokens of a prompt; where the decoder reads it too, those of an answer are taken off."""
        if isinstance(self.form, Causal):
            return longest - len(self.form.lead) - self.new
        return longest - 1 - self.form.frame.extra - (self.new if isinstance(self.form, Infilled) else 0)

    def _asked(self, examples: Sequence[Example]) -> tuple[list[str], list[int]]:
        """Questions up to their blanks with the shots that fit before each, and how many those are."""
        bare = [put(self.prompt, example, "").text.rstrip() for example in examples]
        if self.room is None or not self.shots:
            kept = [len(self.shots)] * len(bare)
        else:
            kept = [fitting(self._sizes, self.room - len(tokens)) for tokens in self._tokens(bare)]
        pairs = zip(bare, kept, strict=True)
        return ["".join(self._shown[len(self._shown) - count :]) + text for text, count in pairs], kept

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts; special ones that are spelled out in them are text."""
        found = tokenizer_of(self.model).encode_batch(texts, literal=True)
        return [found[at].tolist() for at in range(len(texts))]

    def _answers(self, asked: Sequence[list[int]]) -> list[str]:
        tokenizer, stops = tokenizer_of(self.model), Stops("\n", after=True)
        prompts, begun, marks = self._laid(asked)
        before = [*prompts] if isinstance(self.form, Causal) else begun if isinstance(self.form, Infilled) else None
        follow = [Continuation(tokenizer, () if before is None else before[at]) for at in range(len(asked))]
        half = torch.bfloat16 if self.asking.precision == "bfloat16" else None
        batch = ROWS
        while True:
            try:
                with torch.autocast(body(self.model).tokens.weight.device.type, half, enabled=half is not None):
                    found = complete(
                        self.model,
                        prompts,
                        Decoding(max_new_tokens=self.new),
                        marks=marks,
                        begun=begun,
                        watch=Watch(lambda request, number, tokens: stops.cut(follow[request](tokens))[1]),
                        batch=batch,
                    )
                break
            except torch.OutOfMemoryError:  # fewer at a time, each as it was
                if batch == 1:
                    raise
                batch //= 2
                torch.cuda.empty_cache()
        return [stops.cut(say(one[0].tokens))[0].strip() for say, one in zip(follow, found, strict=True)]

    def _laid(self, asked: Sequence[list[int]]) -> tuple[list[list[int]], list[list[int]] | None, Marks]:
        """What is read, what the decoder of an encoder-decoder has already said, and what ends an answer."""
        form, marks = self.form, Marks.of(body(self.model))
        if isinstance(form, Causal):
            return [[*form.lead, *tokens] for tokens in asked], None, marks
        before, after = ([token for token, _ in part] for part in (form.frame.before, form.frame.after))
        if isinstance(form, Given):
            return [[*before, *tokens, *after] for tokens in asked], None, marks
        plain = replace(marks, start=form.start, first=None, last=None)
        if isinstance(form, Infilled):
            sources = [[*before, *tokens, form.mask, *after] for tokens in asked]
            return sources, [[*before, *tokens] for tokens in asked], plain
        sources = [[*before, *tokens, form.sentinel, *after] for tokens in asked]
        others = tokenizer_of(self.model).sentinels
        return sources, [[form.sentinel]] * len(sources), replace(plain, ends=(*plain.ends, *others))


def answer_of(example: Example) -> str:
    """The answer of a solved example, in one line."""
    if example.target is not None:
        return " ".join(example.target.split())
    return example.answers[0] if example.answers else UNANSWERED


def _put(task: Task, trial: Trial) -> Prompt:
    if isinstance(trial.prompt, Prompt):
        return trial.prompt
    if trial.prompt is not None:
        return Prompt(text=trial.prompt)
    if not trial.text_to_text:
        return PROMPTS.get(task.name, PLAINLY[task.kind])
    if task.template is None:
        raise UsageError(f"task '{task.name}' has no text-to-text template; leave --text-to-text away")
    return Prompt(text=f"{task.template.source} {BLANK}")
