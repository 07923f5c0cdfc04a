"""EXAMPLES -> BATCHES: the examples of a task as token sequences for a model, and the stream of batches to train on.

    model = adapt(pt.load("runs/base"), head_of(task, base.spec, base.tokenizer))
    encoder = TaskEncoder.of(task, model)
    items = encoder.encode(parts.train)                # items.counts: what was cut
    stream = TaskStream(items, batch=32, seed=0)       # for train.feed.Feed

Read in this order: `pool` (texts as tokens, special tokens, what is cut), `rules`, one file for each way to learn
(`whole`, `tagging`, `span`, `choice`, `written`), `items` (what comes out), `encoder` (all of it), `stream`,
`alternating` (several tasks in turn).
"""

from pretune.tasks.encode.alternating import Alternating
from pretune.tasks.encode.encoder import TaskEncoder
from pretune.tasks.encode.heads import head_of
from pretune.tasks.encode.items import Counts, Items, mixed
from pretune.tasks.encode.stream import TaskStream

__all__ = ["Alternating", "Counts", "Items", "TaskEncoder", "TaskStream", "head_of", "mixed"]
