"""TOKENS -> BATCHES: shards on disk, samples cut out of them, packed into rows, laid out as the batch a model reads."""
