"""Shared foundations: frozen specs, registries, batches, atomic files, seeds, errors and logging.

Nothing is imported here: `import pretune.core.errors` must stay cheap, and `pretune.core.types` needs torch.
"""

__version__ = "0.1.0"
