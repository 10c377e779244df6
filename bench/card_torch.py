#!/usr/bin/env python3
"""PyTorch's side of bench/card.py: GPT-2 or a ResNet-50 on one device as its users train them, with autocast or TF32, channels last,
fused AdamW (SGD), and torch.compile where that is asked for. Prints samples a second as JSON."""

import argparse
import contextlib
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.after(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, width, heads, block, vocabulary):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return F.linear(self.last(self.blocks(x)), self.tokens.weight)


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.reduce, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), nn.GroupNorm(32, width)
        self.conv, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.GroupNorm(32, width)
        self.expand, self.norm3 = nn.Conv2d(width, out, 1, bias=False), nn.GroupNorm(32, out)
        self.beside = None
        if stride != 1 or channels != out:
            self.beside = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.GroupNorm(32, out))

    def forward(self, x):
        y = F.relu(self.norm1(self.reduce(x)), inplace=True)
        y = F.relu(self.norm2(self.conv(y)), inplace=True)
        return F.relu(self.norm3(self.expand(y)).add_(self.beside(x) if self.beside else x), inplace=True)


def resnet50(channels):
    layers = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.GroupNorm(32, 64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            layers.append(Bottleneck(before, 64 << stage, 2 if stage and not block else 1))
            before = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def synchronize(device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", help="JSON: model, device, precision, channels_last, compile, batch, steps and the model's sizes")
    asked = json.loads(parser.parse_args().what)
    device = torch.device(asked["device"])
    torch.backends.cudnn.benchmark = True
    if asked["precision"] == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    if asked["model"] == "gpt2":
        model = GPT2(asked["layers"], asked["width"], asked["heads"], asked["block"], asked["vocabulary"])
        x = torch.randint(asked["vocabulary"], (asked["batch"], asked["block"] + 1))
        x, y = x[:, :-1].contiguous(), x[:, 1:].contiguous()
    else:
        model = resnet50(asked["channels"])
        x, y = torch.randn(asked["batch"], asked["channels"], asked["side"], asked["side"]), torch.randint(10, (asked["batch"],))
    model = model.to(device)
    if asked["channels_last"]:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    x, y = x.to(device), y.to(device)
    if asked["model"] == "gpt2":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    run = torch.compile(model) if asked["compile"] else model

    def step():
        half = asked["precision"] == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16) if half else contextlib.nullcontext():
            outputs = run(x)
            loss = F.cross_entropy(outputs.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(asked["warm_up"]):
        step()
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(asked["steps"]):
        loss = step()
    loss.item()
    print(json.dumps({"samples_per_s": asked["batch"] * asked["steps"] / (time.perf_counter() - begin)}))


if __name__ == "__main__":
    main()
