"""EXAMPLES -> BATCHES: the examples of a task as token sequences for a model, and the stream of batches to train on.

    model = adapt(pt.load("runs/base"), head_of(task, base.spec, base.tokenizer))
    encoder = TaskEncoder.of(task, model)
    items = encoder.encode(parts.train)                # items.counts: what was cut
    stream = TaskStream(items, batch=32, seed=0)       # for train.feed.Feed

Read in this order: `tokenize` (texts as tokens, special tokens, what is cut), `rules`, one file for each way to learn
(`normalise_score`, `tagging`, `span`, `choice`, `is_generative`), `items` (what comes out), `encoder` (all of it), `stream`,
`alternating` (several tasks in turn).
"""

from pretune.tasks.encode.alternating import MultiTaskStream
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.heads import build_head
from pretune.tasks.encode.items import Counts, Items, mix_items
from pretune.tasks.encode.stream import TaskStream

__all__ = ["MultiTaskStream", "Counts", "Items", "TaskEncoder", "TaskStream", "build_head", "mix_items"]
