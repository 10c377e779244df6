"""Finds out where a mean over samples is taken for what is a mean over tokens."""

import gc
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Ends of the names of Hugging Face's classes whose own loss is a mean over tokens.
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_TOKEN_MEANS = (*_CAUSAL, "ForMaskedLM", "ForConditionalGeneration", "ForTokenClassification")


def warn_of_token_means(sampler: Any) -> None:
    """Once for each sampler, on rank 0: a UserWarning if a language model of Hugging Face's trains with it."""
    if not sampler.first_look() or "transformers" not in sys.modules:
        return
    for model in _models_of(sampler):
        for module in model.modules():
            if _averages_tokens(type(module)):
                warnings.warn(
                    f"{type(module).__name__} averages its loss over tokens, but bimetal.sample_exact_hook weighs each "
                    "rank by its samples: where sequences have unequal numbers of labels, the gradients are not those "
                    "of the mean. Use model.register_comm_hook(sampler, bimetal.token_exact_hook), and before each "
                    "backward sampler.count_tokens(labels, shifted=True) (shifted=False unless the model is a causal "
                    "one); docs/python.md, \"Token means\".", stacklevel=2)
                return


def is_causal_model(module: nn.Module) -> bool:
    """Whether a module is one of Hugging Face's whose own loss is the mean over the labels, shifted by one. Adapters of PEFT and
    torch.compile stand before it and change nothing of that."""
    if "transformers" not in sys.modules:
        return False
    while (inner := _inner(module)) is not None:
        module = inner
    return _named_like(type(module), _CAUSAL)


def _inner(module: nn.Module) -> nn.Module | None:
    if any(base.__name__ == "PeftModel" for base in type(module).__mro__):
        return module.get_base_model()
    return getattr(module, "_orig_mod", None)


def _models_of(sampler: Any) -> Iterator[nn.Module]:
    """What is trained with it. A hook is not told, so that this looks through all objects of the program."""
    for thing in gc.get_objects():
        # type(), because isinstance() would wake up proxies.
        if issubclass(type(thing), DistributedDataParallel):
            if any(state is sampler for _, state in vars(thing).get("_comm_hooks", ())):
                yield thing.module


def _averages_tokens(kind: type) -> bool:
    return _named_like(kind, _TOKEN_MEANS)


def _named_like(kind: type, ends: tuple[str, ...]) -> bool:
    names = [base.__name__ for base in kind.__mro__]
    return "PreTrainedModel" in names and any(name.endswith(ends) for name in names)
