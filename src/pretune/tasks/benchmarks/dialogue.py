"""ConvAI2 (Dinan et al., 2020), the dialogues of Persona-Chat (Zhang et al., 2018) in the format of ParlAI.

Every line has a number, which starts again with each dialogue; a turn has the partner's utterance, the response and,
between two tabs and bars, the candidates for hits@1.

    1 your persona: i like to remodel homes .
    2 hi , how are you doing ?<TAB>i am remodeling a house .<TAB><TAB>i like tea .|i am remodeling a house .
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table import read_lines
from pretune.tasks.task import SplitFile, Task, Template

PERSONA = ("your persona: ", "partner's persona: ")


@spec
class DialogueReader:
    """A reader of turns: the persona and the last utterances as text, the response as target.

    With `with_candidates` the candidates are the choices, and the response is the right one.
    """

    utterances: int = 5  # of both speakers, the last one included
    with_candidates: bool = False

    def __call__(self, path: Path) -> Iterator[Example]:
        name = os.fspath(path)
        persona: list[str] = []
        history: list[str] = []
        dialogue = 0
        for line, content in read_lines(path):
            if not content.strip():
                continue
            number, _, rest = content.partition(" ")
            if not number.isdecimal():
                raise DataError(f"{name}:{line}: expected a number and a turn, got {content[:40]!r}")
            if int(number) == 1:
                persona, history, dialogue = [], [], dialogue + 1
            if rest.startswith(PERSONA):
                persona.append(rest.partition(": ")[2].strip())
                continue
            utterance, *cells = rest.split("\t")
            response = cells[0].strip() if cells else ""
            if not response:
                raise DataError(f"{name}:{line}: a turn needs an utterance, a tab and a response")
            history.append(utterance.strip())
            text = "\n".join([*persona, *history[-self.utterances :]])
            candidates = [text.strip() for text in cells[2].split("|")] if len(cells) > 2 else []
            facts = {"persona": " ".join(persona), "utterance": history[-1]}
            group = str(dialogue)
            if self.with_candidates:
                if response not in candidates:
                    raise DataError(
                        f"{name}:{line}: the response is not among the {len(candidates)} candidates; use a file with "
                        "candidates"
                    )
                label = candidates.index(response)
                yield Example(text=text, choices=tuple(candidates), label=label, id=str(line), group=group, facts=facts)
            else:
                yield Example(text=text, target=response, answers=(response,), id=str(line), group=group, facts=facts)
            history.append(response)


_turns, _choices = DialogueReader(), DialogueReader(with_candidates=True)
_FILES = {"train": ("train_self_original", 131438), "dev": ("valid_self_original", 7801)}
CONVAI2 = Task(
    name="convai2",
    kind="generation",
    metrics=("answer_f1",),
    splits={
        split: (
            SplitFile(f"{stem}_no_cands.txt", _turns, rows=rows),
            SplitFile(f"{stem}.txt", _turns, rows=rows),
        )
        for split, (stem, rows) in _FILES.items()
    },
    template=Template(source="dialogue: {text}", target="{target}"),
    group_field="group",
)
"""ConvAI2: the next response of a chat, given a persona; F1 and perplexity (Dinan et al., 2020)"""

CONVAI2_CHOICE = Task(
    name="convai2_choice",
    kind="choice",
    metrics=("choice_accuracy",),
    folders=("convai2",),
    splits={split: (SplitFile(f"{stem}.txt", _choices, rows=rows),) for split, (stem, rows) in _FILES.items()},
    group_field="group",
)
"""ConvAI2 as a choice among 20 candidate responses: hits@1 (Dinan et al., 2020)"""
