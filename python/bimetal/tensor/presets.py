"""How Hugging Face's models are cut."""

from __future__ import annotations

import glob

from torch import nn

_LLAMA = {
    "*embed_tokens": "vocabulary",
    "*lm_head": "vocabulary",
    "*self_attn.q_proj": "columns:heads",
    "*self_attn.k_proj": "columns:heads",
    "*self_attn.v_proj": "columns:heads",
    "*self_attn.o_proj": "rows",
    "*mlp.gate_proj": "columns",
    "*mlp.up_proj": "columns",
    "*mlp.down_proj": "rows",
}

# By the base class of a model's classes.
_PRESETS = {
    "GPT2PreTrainedModel": {
        "*wte": "vocabulary",
        "*lm_head": "vocabulary",
        "*.attn.c_attn": "columns:qkv",
        "*.attn.c_proj": "rows",
        "*.attn.split_size": "count",
        "*.mlp.c_fc": "columns",
        "*.mlp.c_proj": "rows",
    },
    "LlamaPreTrainedModel": _LLAMA,
    "MistralPreTrainedModel": _LLAMA,
    "Qwen2PreTrainedModel": _LLAMA,
    "Qwen3PreTrainedModel": {**_LLAMA, "*self_attn.q_norm": "inside", "*self_attn.k_norm": "inside"},
}

NAMES = ", ".join(sorted(name.removesuffix("PreTrainedModel") for name in _PRESETS))


def preset_of(module: nn.Module) -> dict[str, str] | None:
    """A plan for a module that is, or has in it, models of transformers that are known here, and for nothing beside them:
    others' layers may have the same names, as those of a picture's encoder."""
    plan: dict[str, str] = {}
    known: list[str] = []
    for path, part in module.named_modules():
        name = None if any(path.startswith(outer) for outer in known) else _known_class(part)
        if name is not None:
            known.append(f"{path}." if path else "")
            plan.update({glob.escape(known[-1]) + pattern: word for pattern, word in _PRESETS[name].items()})
    return plan or None


def _known_class(module: nn.Module) -> str | None:
    return next((kind.__name__ for kind in type(module).__mro__
                 if kind.__name__ in _PRESETS and kind.__module__.startswith("transformers.")), None)
