"""Fine-tuning of any checkpoint on a task by any method, with baselines: `pretune finetune`, `pt.finetune`."""
