"""Fine-tuning: from any checkpoint to a task by any method, with honest scores; `pretune finetune`, `pt.finetune`."""
