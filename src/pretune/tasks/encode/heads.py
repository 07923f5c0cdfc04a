"""Which head a task puts on a model."""

from typing import Any

from pretune.adaptation.heads.base import TaskHead, use_stored_pooling
from pretune.adaptation.heads.choice import Choice
from pretune.adaptation.heads.classification import Classification
from pretune.adaptation.heads.generation import Generation
from pretune.adaptation.heads.regression import Regression
from pretune.adaptation.heads.span import Span
from pretune.adaptation.heads.tagging import Tagging
from pretune.core.errors import UsageError
from pretune.inference.text_model import get_tokenizer
from pretune.models.model import LanguageModel
from pretune.models.spec import Model
from pretune.tasks.task import Task
from pretune.text.tokenizer import Tokenizer


def build_head(
    task: Task,
    model: LanguageModel | Model,
    tokenizer: Any = None,
    *,
    text_to_text: bool | None = None,
    lm_loss_weight: float = 0.0,
) -> TaskHead:
    """The head of a task on a model (or on one of a spec), resolved; a model that cannot have it is refused.

    With `text` the answer is written, by the task's template. That is the default for an encoder-decoder whose
    vocabulary has sentinels (it was pre-trained to write) where the task has a template. `language` is the weight of
    the language model's own loss beside a classification (Radford et al., 2018).
    """
    spec = model.spec if isinstance(model, LanguageModel) else model
    if tokenizer is None and isinstance(model, LanguageModel) and model.tokenizer is not None:
        tokenizer = get_tokenizer(model)
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer(tokenizer)
    if text_to_text is None:
        text_to_text = bool(
            spec.shape == "encoder-decoder" and spec.head and task.template and tokenizer and tokenizer.sentinels
        )
    if text_to_text and task.template is None and task.kind != "generation":
        raise UsageError(f"task '{task.name}' has no template, so its answers cannot be written; leave text out")
    head = Generation() if text_to_text else _build_head_by_kind(task, lm_loss_weight)
    if isinstance(model, LanguageModel):
        head = use_stored_pooling(head, model)
    return head.resolve(spec)


def _build_head_by_kind(task: Task, lm_loss_weight: float) -> TaskHead:
    if task.kind in ("classification", "pair"):
        return Classification(classes=len(task.labels), labels=task.labels, language=lm_loss_weight)
    if lm_loss_weight:
        raise UsageError(f"a language loss beside the task is for classification; '{task.name}' is {task.kind}")
    match task.kind:
        case "regression":
            return Regression()
        case "tagging":
            return Tagging(classes=len(task.labels), labels=task.labels)
        case "span":
            return Span()
        case "choice":
            return Choice()
        case "generation":
            return Generation()
    raise UsageError(
        f"task '{task.name}' ({task.kind}) is scored without training; see `pretune evaluate`, or choose another task"
    )
