"""The steps of recompute_step.cpp in Python, with torch.utils.checkpoint: same arguments, same output."""

import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY = 512


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.dropout(self.out(attended.transpose(1, 2).flatten(2)), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm2(x)))), 0.1)


def memory(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(field)


def main():
    how = sys.argv[1]
    layers, width, heads, tokens, batch, steps, threads = map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    table, head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
    blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
    ids = torch.randint(VOCABULARY, (batch, tokens))

    def step():
        x = table(ids)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False) if how == "all" else block(x)
        functional.cross_entropy(head(x).flatten(0, 1), ids.flatten()).backward()

    step()
    before = memory("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    print(statistics.median(seconds), memory("VmHWM") - before)


if __name__ == "__main__":
    main()
