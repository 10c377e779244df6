"""Small models and data for the tests: the CNN of the examples, and a GPT of two blocks."""

import torch
from torch import nn


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(16 * 5 * 5, 10)

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.before_attention(x)).split(width, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary=64, width=32, heads=4, blocks=2, length=16):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make(name):
    torch.manual_seed(0)
    return Cnn() if name == "cnn" else Gpt()


def batch(name, step, rank, size=4):
    """Inputs and targets of one rank at one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    if name == "cnn":
        return torch.randn(size, 1, 28, 28, generator=generator), torch.randint(0, 10, (size,), generator=generator)
    ids = torch.randint(0, 64, (size, 17), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def loss_of(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def difference(parameters, reference):
    """The largest distance of any parameter, given as lists, from its reference, relative to that one's largest."""
    return max(((torch.tensor(p, dtype=torch.float64) - r).abs().max() / r.abs().max()).item()
               for p, r in zip(parameters, reference, strict=True))
