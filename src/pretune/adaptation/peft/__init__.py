"""Parameter-efficient fine-tuning: few parameters are trained, the base model is frozen.

    method = LoRA(rank=8)
    names = method.apply(model)             # in place; the names of the trained parameters, all others are frozen
    …                                       # the training loop
    save_adapter(model, method, "adapter")  # a small directory, which peft can load if it has the method
    method.merge(model)                     # merges the adapter into the base model's weights

A method is a frozen spec; `base.py` defines the protocol.
"""

from typing import TYPE_CHECKING

from pretune.core.registry import Registry

if TYPE_CHECKING:
    from pretune.adaptation.peft.base import PeftMethod

PEFT_METHODS: "Registry[type[PeftMethod]]" = Registry(
    "method",
    {
        "adapter": "pretune.adaptation.peft.adapter:Adapter",
        "prefix": "pretune.adaptation.peft.prefix:PrefixTuning",
        "prompt": "pretune.adaptation.peft.prefix:PromptTuning",
        "lora": "pretune.adaptation.peft.lora:LoRA",
        "qlora": "pretune.adaptation.peft.qlora:QLoRA",
        "ia3": "pretune.adaptation.peft.vectors:IA3",
        "bitfit": "pretune.adaptation.peft.vectors:BitFit",
    },
)
