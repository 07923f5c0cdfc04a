"""TEXT -> TOKENS on disk: clean, tokenise and split a corpus in parallel, and publish it with a card, or not at all.

    units       work of about a megabyte: places in files, or documents read here
    encoding    a unit becomes arrays, in any process
    pool        processes, results in order, bounded memory
    stage       everything that was read, on disk, in order
    settle      duplicates and what is held out; the shards of each split
    card        what is in it
    run         all of it: `prepare`, and `merge` for slices made on several machines

The bytes that come out depend on the text, the tokenizer and the settings; not on the number of workers or slices.
"""

from pretune.data.prepare.prepared_data import PreparedData
from pretune.data.prepare.run import merge, prepare

__all__ = ["PreparedData", "merge", "prepare"]
