"""EXAMPLES -> BATCHES: the examples of a task as token sequences for a model, and the stream of training batches.

    model = adapt(pt.load("runs/base"), build_head(task, base.spec, base.tokenizer))
    encoder = TaskEncoder.from_task(task, model)
    items = encoder.encode(parts.train)                # items.counts: truncation statistics
    stream = TaskStream(items, batch=32, seed=0)       # for `training.dataloader`

Read in this order: `token_pool` (tokens, special tokens, truncation), `base`, one file per kind of task (`sequence`,
`tagging`, `span`, `choice`, `text_to_text`), `items` (the result), `encoder` (all of it), `stream`, `alternating`
(several tasks).
"""

from pretune.tasks.encode.alternating import MultiTaskStream
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.heads import build_head
from pretune.tasks.encode.items import Counts, Items, mix_items
from pretune.tasks.encode.stream import TaskStream

__all__ = ["MultiTaskStream", "Counts", "Items", "TaskEncoder", "TaskStream", "build_head", "mix_items"]
