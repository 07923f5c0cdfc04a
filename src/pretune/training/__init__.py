"""Training: one loop and its components (optimizers, schedules, checkpoints, data loading, devices)."""
