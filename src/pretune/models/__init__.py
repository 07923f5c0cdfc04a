"""BLOCKS -> MODELS: the one spec tree, the module it builds, its weights on disk, and the published families."""
