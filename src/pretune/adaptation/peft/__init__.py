"""Parameter-efficient methods: few numbers are trained, the rest of the model stays as it is.

    method = Lora(rank=8)
    names = method.apply(model)             # in place; the names of what is trained, all else is frozen
    …                                       # the one training loop
    save_adapter(model, method, "adapter")  # a small directory, which peft reads where it has the method
    method.merge(model)                     # the plain model again, with what was learned in its weights

A method is a frozen spec; see `method.py` for what it promises.
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
        "prompt": "pretune.adaptation.peft.prompt:Prompt",
        "lora": "pretune.adaptation.peft.lora:Lora",
        "qlora": "pretune.adaptation.peft.qlora:Qlora",
        "ia3": "pretune.adaptation.peft.ia3:IA3",
        "bitfit": "pretune.adaptation.peft.bitfit:Bitfit",
    },
)
