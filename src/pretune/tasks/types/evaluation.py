"""Types of tasks that models are evaluated on without training."""

from pretune.tasks.example import Example
from pretune.tasks.types.base import TaskType


class MinimalPairs(TaskType):
    """A better and a worse sentence: the better one should be more likely."""

    evaluator = "minimal_pairs"
    has_single_text = False


class Cloze(TaskType):
    """The next word of a context."""

    evaluator = "cloze"
    has_single_text = False

    def has_answer(self, example: Example) -> bool:
        return example.target is not None


class Retrieval(TaskType):
    """The documents that are relevant to a query, found by embeddings."""

    evaluator = "retrieval"
    has_single_text = False
