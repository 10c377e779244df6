"""Finds losses that are means over tokens but are treated as means over samples."""

import sys
import warnings
from typing import Any

from torch import nn

from bimetal._errors import error
from bimetal.balance.step_check import ddp_with

# Ends of the names of Hugging Face's classes whose own loss is a mean over tokens.
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_TOKEN_MEANS = (*_CAUSAL, "ForMaskedLM", "ForConditionalGeneration", "ForTokenClassification")


def warn_of_token_means(sampler: Any) -> None:
    """Once for each sampler, on rank 0: a UserWarning if a language model of Hugging Face's trains with it."""
    if not sampler.first_look() or "transformers" not in sys.modules:
        return
    ddp = ddp_with(lambda one: any(state is sampler for _, state in vars(one).get("_comm_hooks", ())))
    for module in () if ddp is None else ddp.modules():
        if _averages_tokens(type(module)):
            warnings.warn(
                f"{type(module).__name__} averages its loss over tokens, but bimetal.sample_exact_hook weighs each "
                "rank by its samples: where sequences have unequal numbers of labels, the gradients are not those "
                "of the mean. Use model.register_comm_hook(sampler, bimetal.token_exact_hook), and before each "
                "backward sampler.count_tokens(labels, shifted=True) (shifted=False unless the model is a causal "
                "one); docs/python.md, \"Token means\".", stacklevel=2)
            return


def uncounted_labels(module: nn.Module) -> int | None:
    """How many labels at the beginning of each row the own loss of one of Hugging Face's causal models leaves out: 1, as labels are
    shifted, or 0 where PEFT puts virtual tokens before the first. None: it is no such model. Adapters of PEFT and torch.compile stand
    before it.

    Raises:
        bimetal.Error: ``unsupported`` where PEFT changes the labels themselves.
    """
    if "transformers" not in sys.modules:
        return None
    virtual = False
    while True:
        if _is_of_peft(module):
            virtual = virtual or _puts_tokens_first(module.active_peft_config)
            module = module.get_base_model()
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            break
    if not _named_like(type(module), _CAUSAL):
        return None
    return 0 if virtual else 1


def _is_of_peft(module: nn.Module) -> bool:
    return any(base.__name__ == "PeftModel" for base in type(module).__mro__)


def _puts_tokens_first(config: Any) -> bool:
    """Prompt tuning and its kin do; prefixes of keys and values lengthen no sequence."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind == "CPT":
        raise error("PEFT's CPT has a loss of its own, over labels that it changes, so that what it is the mean of is not known here: "
                    "train it with torch's DistributedDataParallel, bimetal.token_exact_hook and sampler.set_tokens(n)", "unsupported")
    return bool(config.is_prompt_learning) and kind not in ("PREFIX_TUNING", "CARTRIDGE")


def _averages_tokens(kind: type) -> bool:
    return _named_like(kind, _TOKEN_MEANS)


def _named_like(kind: type, ends: tuple[str, ...]) -> bool:
    names = [base.__name__ for base in kind.__mro__]
    return "PreTrainedModel" in names and any(name.endswith(ends) for name in names)
