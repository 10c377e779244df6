"""Small modules that are cut in one way or another, their batches and how they learn, for the tests of stages and of tensors in
parts."""

import models
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bimetal.pipeline.loss import causal_loss_sum, causal_weight

WORDS, LENGTH = 24, 8
SAMPLES = [10, 7, 11, 6]  # of the batches


class Sequence(nn.Sequential):
    """Blocks of which some work in place and some have nothing to learn."""

    def __init__(self):
        super().__init__(nn.Embedding(WORDS, 12), nn.Linear(12, 20), nn.ReLU(inplace=True), nn.Linear(20, 20), nn.Tanh(),
                         nn.LayerNorm(20), nn.Linear(20, WORDS))


class Pairs(nn.Module):
    """Blocks that return a tuple, a parameter of the module's own, and a list that is not the largest one's sibling."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(12, 12)

        def forward(self, hidden, factor):
            return hidden + torch.tanh(self.layer(hidden)) * factor, None

    def __init__(self):
        super().__init__()
        self.begin = nn.Parameter(torch.randn(12))
        self.table = nn.Embedding(WORDS, 12)
        self.norm = nn.LayerNorm(12)
        self.blocks = nn.ModuleList(self.Block() for _ in range(4))
        self.head = nn.Linear(12, WORDS)

    def forward(self, input_ids):
        hidden = self.norm(self.table(input_ids) + self.begin)
        for block in self.blocks:
            hidden = block(hidden, factor=input_ids[..., None].to(hidden.dtype) / WORDS)[0]
        return self.head(hidden)


class Outside(nn.Module):
    """Does what no chain does: "adds" up outside of its blocks, "skips" to behind them or "gives" to each what stands before,
    or "hides" from autograd what they return."""

    def __init__(self, does):
        super().__init__()
        self.does = does
        self.table = nn.Embedding(WORDS, 12)
        self.blocks = nn.ModuleList((nn.Bilinear(12, 12, 12) if does == "gives" else nn.Linear(12, 12)) for _ in range(3))
        self.head = nn.Linear(12, WORDS)

    def forward(self, input_ids):
        first = hidden = self.table(input_ids)
        for block in self.blocks:
            if self.does == "adds":
                hidden = hidden + block(hidden)
            elif self.does == "hides":
                hidden = checkpoint(block, hidden, use_reentrant=True)
            else:
                hidden = block(hidden, first) if self.does == "gives" else block(hidden)
        return self.head(hidden + first if self.does == "skips" else hidden)


def make(name):
    torch.manual_seed(3)
    if name in ("sequence", "pairs"):
        return {"sequence": Sequence, "pairs": Pairs}[name]().double()
    if name == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM
        return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=3,
                                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
                                            bos_token_id=None, eos_token_id=None)).double()
    from transformers import GPT2Config, GPT2LMHeadModel
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=3, n_head=2,
                                      bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0,
                                      attn_pdrop=0.0))
    if name == "lora":
        from peft import LoraConfig, get_peft_model
        gpt2 = get_peft_model(gpt2, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM",
                                               init_lora_weights=False))
    return gpt2.double()


def batches(name):
    """Rows of unequal numbers of tokens, padded on the left or on the right."""
    generator = torch.Generator().manual_seed(4)
    made = []
    for samples in SAMPLES:
        ids = torch.randint(0, WORDS, (samples, LENGTH), generator=generator)
        mask = torch.ones_like(ids)
        for number, row in enumerate(mask):
            row[LENGTH - number % 5:] = 0
        batch = {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100)}
        made.append(batch | ({"attention_mask": mask} if name in ("gpt2", "llama", "lora") else {}))
    return made


def make_optimizer(model):
    flat = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    rest = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    return torch.optim.AdamW([{"params": rest}, {"params": flat, "weight_decay": 0.0}], lr=0.01, weight_decay=0.1, eps=1e-5)


def loss_of(model, batch):
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    outputs = model(inputs["input_ids"]) if isinstance(model, nn.Sequential) else model(**inputs)
    return causal_loss_sum(outputs, batch["labels"]) / causal_weight(batch["labels"])


def alone(name):
    """One process's result."""
    return learnt(make(name), batches(name))


def learnt(model, given):
    """Losses, norms, and both states. Two batches are a step."""
    optimizer = make_optimizer(model)
    losses, norms = [], []
    for number, batch in enumerate(given):
        loss = loss_of(model, batch)
        (loss / 2).backward()
        losses.append(loss.item())
        if number % 2 == 1:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    return [losses, norms, model.state_dict(), optimizer.state_dict()["state"]]


def as_lists(state):
    return {name: value.tolist() for name, value in state.items()}


def distance(found, reference):
    assert found.keys() == reference.keys(), (found.keys(), reference.keys())
    return max(models.difference([value], [reference[name].double()]) for name, value in found.items())
