"""The engine: one training loop and what it is made of (optimisers, schedules, checkpoints, devices)."""
