"""Modules whose matrices the tests cut into parts: Hugging Face's, and one with all that a plan has words for."""

import unittest

import chains
import torch
import torch.distributed as dist
from torch import nn

import bimetal

WIDTH, HEADS, INNER, SEED = 16, 4, 10, 5


class Attention(nn.Module):
    """Queries, keys and values in one matrix, each head's queries normalised by what all heads share."""

    def __init__(self):
        super().__init__()
        self.heads, self.inner = HEADS, WIDTH
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH // HEADS)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).split(self.inner, -1))
        y = nn.functional.scaled_dot_product_attention(self.norm(q), k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """Two matrices in one, the first a gate of the second, a factor of each column, and a matrix without a bias."""

    def __init__(self):
        super().__init__()
        self.both, self.down = nn.Linear(WIDTH, 2 * INNER), nn.Linear(INNER, WIDTH, bias=False)
        self.factor = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        gate, value = self.both(x).chunk(2, -1)
        return self.down(torch.sigmoid(gate) * value * self.factor)


class Plain(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.table = nn.Embedding(chains.WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "attention": Attention(), "mlp": Gated()})
                                    for _ in range(blocks))
        self.head = nn.Linear(WIDTH, chains.WORDS)

    def forward(self, input_ids):
        x = self.table(input_ids)
        for block in self.blocks:
            x = x + block["attention"](block["norm"](x))
            x = x + block["mlp"](x)
        return self.head(x)


PLAN = {"blocks.*.qkv": "columns:qkv", "blocks.*.out": "rows", "*.attention.inner": "count", "*.attention.norm": "inside",
        "*.mlp.both": "columns:pair", "*.mlp.down": "rows", "*.mlp.factor": "inside"}

# For a model without a preset, whose rows are in other modules than the columns before them.
BERT = {"*.attention.self.query": "columns:heads", "*.attention.self.key": "columns:heads", "*.attention.self.value": "columns:heads",
        "*.attention.output.dense": "rows:heads", "*.self.all_head_size": "count", "*.intermediate.dense": "columns=5",
        "*layer.?.output.dense": "rows=5"}


def make(name, **changed):
    """Of 4 heads, or 8 on 4 of keys and values. GPT-2 has dropout where its activations are whole."""
    torch.manual_seed(3)
    if name == "plain":
        return Plain().double()
    import transformers
    if name == "gpt2":
        config = {"n_positions": chains.LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
                  "attn_pdrop": 0.0}
        return _drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(**_words(config | changed))))
    if name == "bert":
        config = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2, "num_attention_heads": HEADS,
                  "max_position_embeddings": 16, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0}
        return _drawn(transformers.BertForMaskedLM(transformers.BertConfig(**_words(config | changed))))
    config = {"hidden_size": 32, "intermediate_size": 22, "num_hidden_layers": 2, "num_attention_heads": 8,
              "num_key_value_heads": 4, "head_dim": 4, "max_position_embeddings": 16}
    own = {"attention_bias": True, "mlp_bias": True} if name == "llama" else {}
    kind = name.capitalize()
    made = getattr(transformers, f"{kind}ForCausalLM")
    return _drawn(made(getattr(transformers, f"{kind}Config")(**_words(config | own | changed))))


def _drawn(model):
    """Biases, too, which begin with zeros."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.double()


def plan_of(name):
    return {"plan": {"plain": PLAN, "bert": BERT}.get(name)}


def batches(name):
    return chains.batches("gpt2" if name != "plain" else name)


def learn_in_parts(name, changed, loss_of, **options):
    """Steps as chains.learnt() makes them. Returns the parts that were cut, and rank 0's losses, norms, and both
    states."""
    model = make(name, **changed)
    if dist.get_rank() > 0:  # rank 0's count
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    checkpointing, look = options.pop("checkpointing", None), options.pop("look", lambda _: None)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
    torch.manual_seed(SEED + dist.get_rank())
    optimizer = chains.make_optimizer(model)
    parted = bimetal.tensor.parts(model, optimizer, **options)
    look(model)
    losses, norms = [], []
    for number, batch in enumerate(batches(name)):
        loss = loss_of(model, batch)
        (loss / 2).backward()
        losses.append(loss.item())
        if number % 2 == 1:
            norms.append(parted.clip_grad_norm_(0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    known = parted.optimizer_state_dict() or {"state": {}}
    return model, [losses, norms, chains.as_lists(parted.state_dict()),
                   {place: chains.as_lists(state) for place, state in known["state"].items()}]


class InParts(unittest.TestCase):
    references = {}

    def reference(self, name, changed):
        """One process's result."""
        key = (name, *changed.items())
        if key not in self.references:
            model = make(name, **changed)
            torch.manual_seed(SEED)
            self.references[key] = chains.learnt(model, batches(name))
        return self.references[key]

    def check(self, of_rank, name, changed):
        losses, norms, state, known = self.reference(name, changed)
        for mine in of_rank:
            torch.testing.assert_close(mine[:2], [losses, norms], rtol=1e-12, atol=1e-12)
        self.assertLess(chains.distance(of_rank[0][2], state), 1e-12)
        self.assertEqual(set(of_rank[0][3]), {str(place) for place in known})
        for place, part in known.items():
            self.assertEqual(of_rank[0][3][str(place)].keys(), part.keys())
            for field, value in part.items():  # BERT's biases of keys have gradients of nothing but rounding
                off = (torch.tensor(of_rank[0][3][str(place)][field], dtype=torch.float64) - value).abs().max()
                self.assertLess(off, 1e-10 * value.abs().max() + 1e-16)
        self.assertEqual([mine[2:4] for mine in of_rank[1:]], [[{}, {}]] * (len(of_rank) - 1))


def _words(config):
    return {"vocab_size": chains.WORDS, "bos_token_id": None, "eos_token_id": None} | config
