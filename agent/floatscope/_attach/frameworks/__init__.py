"""Frameworks that know more of a training than its loop shows.

Each is a module here with ``on_import(module) -> None``, called once, in a process that ``floatscope run`` attaches to,
right after the module that the table names was imported. What it raises is logged and does no harm. Modules here are
imported no sooner, and may import torch.
"""

from __future__ import annotations

__all__ = ["FRAMEWORKS"]

FRAMEWORKS: dict[str, str] = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "lightning.pytorch.trainer.trainer": "lightning",
    "llamafactory.train.tuner": "llamafactory",
    "megatron.core.distributed.distributed_data_parallel": "megatron",
    "megatron.core.optimizer.optimizer": "megatron",
    "pytorch_lightning.trainer.trainer": "lightning",
    "transformers.trainer": "transformers",
}
"""Dotted name of the module whose import is waited for -> name of the module here."""
