"""The head of a task for a model."""

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
    """Return the resolved head of a task for a model (or a spec); reject a model that cannot have it.

    With `text_to_text` the answer is generated, by the task's template. That is the default for an encoder-decoder
    whose vocabulary has sentinels (it was pre-trained to generate) if the task has a template. `lm_loss_weight` is the
    weight of the auxiliary language modeling loss of a classification (Radford et al., 2018).
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
        raise UsageError(f"task '{task.name}' has no template, so it cannot be text-to-text")
    head = Generation() if text_to_text else _build_head_by_kind(task, lm_loss_weight)
    if isinstance(model, LanguageModel):
        head = use_stored_pooling(head, model)
    return head.resolve(spec)


def _build_head_by_kind(task: Task, lm_loss_weight: float) -> TaskHead:
    if task.kind in ("classification", "pair"):
        return Classification(classes=len(task.labels), labels=task.labels, lm_loss_weight=lm_loss_weight)
    if lm_loss_weight:
        raise UsageError(f"a language modeling loss needs a classification task; '{task.name}' is {task.kind}")
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
        f"task '{task.name}' ({task.kind}) is for evaluation only; use `pretune evaluate`, or choose another task"
    )
