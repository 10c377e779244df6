"""Which layers of a module are cut, and how: a plan's words, those of Hugging Face's models, and the layers that they
find."""

from __future__ import annotations

import dataclasses
import fnmatch
import glob
import re
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from bimetal._errors import error

_WORD = re.compile(r"(columns|rows|count|inside|vocabulary)(?::(heads|qkv|pair|parts))?(?:=([1-9][0-9]*))?")
_ALLOWED = {"columns": (None, "heads", "qkv", "pair"), "rows": (None, "heads"), "count": (None,), "inside": (None,),
            "vocabulary": (None, "parts")}


@dataclasses.dataclass(frozen=True)
class Word:
    """Attributes: kind: columns, rows, count, inside or vocabulary; by_heads; segments: of which a fused matrix is made, which
    are cut alike; pieces: that stay whole, where the plan says how many; apart: logits stay in parts."""

    kind: str
    by_heads: bool = False
    segments: int = 1
    pieces: int | None = None
    apart: bool = False

    @property
    def cuts_outputs(self) -> bool:
        return self.kind in ("columns", "vocabulary")


def word_of(pattern: str, text: str) -> Word:
    """bimetal.Error ``invalid_argument`` for a word that is none."""
    found = _WORD.fullmatch(text)
    if found is None or found[2] not in _ALLOWED[found[1]] or (found[1] in ("inside", "vocabulary") and found[3]):
        raise error(f"plan: \"{pattern}\" is to be \"{text}\": columns, columns:heads, columns:qkv, columns:pair, rows, "
                    "rows:heads or count, each with =N for N pieces that stay whole, inside, vocabulary or vocabulary:parts",
                    "invalid_argument")
    return Word(found[1], found[2] in ("heads", "qkv"), {"qkv": 3, "pair": 2}.get(found[2], 1),
                int(found[3]) if found[3] else None, found[2] == "parts")


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


# The names under which attention modules, and their configurations, keep their number of heads. Keys and values come
# first, since a head of these stays together with all heads of queries that share it.
_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_heads", "num_attention_heads", "n_heads", "n_head", "heads",
          "nhead")


@dataclasses.dataclass
class Layer:
    """Attributes: parent, which calls it, and its path; pieces: of each segment, that stay whole; features: along what is
    cut."""

    path: str
    module: nn.Module
    parent: nn.Module
    word: Word
    pieces: int
    features: int

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def transposed(self) -> bool:
        return _is_conv1d(self.module)

    def splits(self) -> Iterator[tuple[str, int, int, int]]:
        """Parameter, dimension, grain and segments, as TensorCuts takes them."""
        grain = self.features // (self.word.segments * self.pieces)
        outputs = self.word.cuts_outputs
        yield f"{self.path}.weight", int(outputs == self.transposed), grain, self.word.segments
        if outputs and getattr(self.module, "bias", None) is not None:
            yield f"{self.path}.bias", 0, grain, self.word.segments


@dataclasses.dataclass
class Count:
    """A number that a module keeps of its cut parts, such as its heads."""

    module: nn.Module
    path: str
    attribute: str
    pieces: int


@dataclasses.dataclass
class Plan:
    """Attributes: inside: parameters by name that each rank uses for its part of what is cut."""

    layers: list[Layer]
    counts: list[Count]
    inside: dict[str, nn.Parameter]


def plan_for(module: nn.Module, given: Mapping[str, str] | None) -> Plan:
    """bimetal.Error ``invalid_argument`` and ``unsupported`` for impossible plans."""
    patterns = given if given is not None else preset_of(module)
    if patterns is None:
        raise error(f"how a {type(module).__name__} is cut is not known (of transformers' models {NAMES} are): give "
                    "plan={\"blocks.*.first\": \"columns\", \"blocks.*.second\": \"rows\"} with its own names",
                    "invalid_argument")
    words = {pattern: word_of(pattern, text) for pattern, text in patterns.items()}
    modules = dict(module.named_modules())
    layers = _layers(module, modules, words)
    if given is None:  # nobody has asked for the vocabulary of a model whose embedding others use, too
        tied = [layer.path for layer, _ in _ties(module, layers) if layer.word.kind == "vocabulary"]
        layers = [layer for layer in layers if layer.path not in tied]
    counts = _counts(modules, words, layers)
    inside = {name: parameter for pattern, word in words.items() if word.kind == "inside"
              for name, parameter in module.named_parameters()
              if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.rpartition(".")[0], pattern)}
    _require_matches(given, words, layers, counts, inside, modules)
    _require_untied(module, layers)
    return Plan(layers, counts, inside)


def _layers(root: nn.Module, modules: dict[str, nn.Module], words: dict[str, Word]) -> list[Layer]:
    found: list[Layer] = []
    for path, module in modules.items():
        own = {pattern: word for pattern, word in words.items()
               if word.kind in ("columns", "rows", "vocabulary") and path and fnmatch.fnmatchcase(path, pattern)}
        if not own:
            continue
        if len(set(own.values())) > 1:
            raise error(f"plan: {path} is cut otherwise by {' and '.join(own)}: let one of them name it", "invalid_argument")
        _require_cuttable(path, module, next(iter(own.values())))
        found.append(_layer(root, modules, path, next(iter(own.values())), found))
    return found


def _require_cuttable(path: str, module: nn.Module, word: Word) -> None:
    if word.kind == "vocabulary":
        if type(module) is not nn.Linear and not _looks_up(module):
            raise error(f"plan: {path} is a {type(module).__name__}: Linear, and Embedding without max_norm, scale_grad_by_freq "
                        "and sparse, can be cut by the vocabulary", "unsupported")
    elif type(module) is not nn.Linear and not _is_conv1d(module):
        raise error(f"plan: {path} is a {type(module).__name__}: Linear and transformers' Conv1D can be cut by columns or "
                    "rows; what they stand in is named by names of these layers", "unsupported")


def _layer(root: nn.Module, modules: dict[str, nn.Module], path: str, word: Word, before: list[Layer]) -> Layer:
    module, parent = modules[path], modules[path.rpartition(".")[0]]
    if isinstance(parent, nn.TransformerEncoderLayer):
        raise error(f"plan: {path} stands in an nn.TransformerEncoderLayer, which computes past its layers in evaluations: write "
                    "the block with layers of its own", "unsupported")
    features = module.weight.shape[int(word.cuts_outputs == _is_conv1d(module))]
    width = features // word.segments
    pieces = word.pieces
    if pieces is None and word.by_heads:
        pieces = _heads(root, parent)
        if pieces is None:
            raise error(f"plan: how many heads {path} is of is not known: write \"{word.kind}:…=N\", N being those of keys and "
                        "values", "invalid_argument")
    if pieces is None and word.kind == "rows":
        feeds = [layer.pieces for layer in before if layer.parent is parent and layer.word.kind == "columns"
                 and layer.features == features * layer.word.segments]
        pieces = feeds[-1] if feeds else None
    pieces = pieces or width
    if features % word.segments or width % pieces:
        raise error(f"plan: {path} has {features} features, which are not {word.segments} times {pieces} pieces of one size",
                    "invalid_argument")
    return Layer(path, module, parent, word, pieces, features)


def _heads(root: nn.Module, parent: nn.Module) -> int | None:
    places = (parent, getattr(parent, "config", None), getattr(root, "config", None))
    for name in _HEADS:
        for place in places:
            value = getattr(place, name, None)
            if type(value) is int:
                return value
    return None


def _counts(modules: dict[str, nn.Module], words: dict[str, Word], layers: list[Layer]) -> list[Count]:
    heads = {id(layer.parent): layer.pieces for layer in layers if layer.word.by_heads}
    found = []
    for path, module in modules.items():
        for attribute, value in vars(module).items():
            name = f"{path}.{attribute}" if path else attribute
            said = [word for pattern, word in words.items() if word.kind == "count" and fnmatch.fnmatchcase(name, pattern)]
            if type(value) is not int or not (said or (attribute in _HEADS and id(module) in heads)):
                continue
            pieces = (said[0].pieces if said else None) or heads.get(id(module), value)
            if value % pieces:
                raise error(f"plan: {name} is {value}, which are not {pieces} pieces of one size", "invalid_argument")
            found.append(Count(module, path, attribute, pieces))
    return found


def _require_matches(given: Mapping[str, str] | None, words: dict[str, Word], layers: list[Layer], counts: list[Count],
                     inside: dict[str, nn.Parameter], modules: dict[str, nn.Module]) -> None:
    cuttable = [path for path, module in modules.items()
                if type(module) in (nn.Linear, nn.Embedding) or _is_conv1d(module)]
    names = {"count": [f"{count.path}.{count.attribute}".lstrip(".") for count in counts],
             "inside": [*inside, *(name.rpartition(".")[0] for name in inside)],
             **dict.fromkeys(("columns", "rows", "vocabulary"), [layer.path for layer in layers])}
    for pattern, word in words.items() if given is not None else []:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names[word.kind]):
            what = {"count": "no whole number that a module keeps", "inside": "no parameter"}.get(word.kind, "no layer")
            raise error(f"plan: \"{pattern}\" names {what}; the module's matrices are {_some(cuttable)}", "invalid_argument")
    kinds = {layer.word.kind for layer in layers} - {"vocabulary"}
    if kinds != {"columns", "rows"} and (kinds or not layers):
        raise error(f"plan: {'nothing' if not kinds else 'only ' + kinds.pop()} is cut: what is cut by columns is given to a "
                    f"layer that is cut by rows, which makes it whole; the module's matrices are {_some(cuttable)}",
                    "invalid_argument")


def _require_untied(root: nn.Module, layers: list[Layer]) -> None:
    for layer, names in _ties(root, layers):
        alike = ", or let each of them be \"vocabulary\"" if layer.word.kind == "vocabulary" else ""
        raise error(f"plan: {' and '.join(names)} are one tensor: leave it whole{alike}", "unsupported")


def _ties(root: nn.Module, layers: list[Layer]) -> Iterator[tuple[Layer, list[str]]]:
    """Layers with a parameter that others have, too, and its names. An embedding and an output layer are cut alike."""
    alike = {f"{layer.path}.weight" for layer in layers if layer.word.kind == "vocabulary"}
    names: dict[int, list[str]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for layer in layers:
        for parameter in layer.module.parameters():
            own = names[id(parameter)]
            if len(own) > 1 and not (layer.word.kind == "vocabulary" and alike.issuperset(own)):
                yield layer, own


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "none"


def _looks_up(module: nn.Module) -> bool:
    """Only that, and nothing that hangs on how often or how long a row is."""
    return type(module) is nn.Embedding and module.max_norm is None and not (module.scale_grad_by_freq or module.sparse)


def _is_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") and \
        isinstance(module.weight, torch.Tensor)
