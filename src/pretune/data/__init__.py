"""TOKENS -> BATCHES: shards on disk, samples cut from them, packed into rows, laid out as input batches."""
