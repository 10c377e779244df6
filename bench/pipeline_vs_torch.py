#!/usr/bin/env python3
"""A pipeline on unequal workers beside torch.distributed.pipelining on Gloo, in turns in one run: a Llama in Bimetal's job, cut
where Bimetal puts the cuts, transformers' cut at the same layers, and transformers' cut into as many layers for each stage.

Both sides: 1F1B, as many micro-batches, float32, random tokens, AdamW, the same sizes, workers held to parts of a core by the
system. Prints seconds a step and, of each round, how many times as long torch takes.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

import job_file
import machine
import pipeline
import ranks
from made_tokens import made_tokens

SIZES = ("layers", "width", "heads", "hidden", "vocabulary", "block", "batch", "micro-batches", "steps")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, size in zip(SIZES, (12, 192, 4, 512, 2048, 64, 32, 16, 8)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--case", choices=list(pipeline.CASES), action="append")
    parser.add_argument("--period-ms", type=float, default=10, help="of the CPU quota")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cuts", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def size_of(options, name):
    return getattr(options, name.replace("-", "_"))


def make_stage(options, first, last, begin, end):
    """Layers begin … end - 1 of transformers' Llama, with the embedding before the first and the head after the last."""
    import torch
    import transformers
    from transformers.models.llama import modeling_llama

    config = transformers.LlamaConfig(
        num_hidden_layers=options.layers, hidden_size=options.width, num_attention_heads=options.heads,
        num_key_value_heads=options.heads, intermediate_size=options.hidden, vocab_size=options.vocabulary,
        max_position_embeddings=options.block, use_cache=False, attn_implementation="sdpa")

    class Stage(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(options.vocabulary, options.width) if first else None
            self.layers = torch.nn.ModuleList(modeling_llama.LlamaDecoderLayer(config, i) for i in range(begin, end))
            self.rotary = modeling_llama.LlamaRotaryEmbedding(config)
            self.norm = modeling_llama.LlamaRMSNorm(options.width) if last else None
            self.head = torch.nn.Linear(options.width, options.vocabulary, bias=False) if last else None

        def forward(self, values):
            if self.embedding is not None:
                values = self.embedding(values)
            positions = torch.arange(values.shape[1])[None]
            angles = self.rotary(values, positions)
            for layer in self.layers:
                values = layer(values, attention_mask=None, position_ids=positions, position_embeddings=angles)
                values = values[0] if isinstance(values, tuple) else values
            return values if self.head is None else self.head(self.norm(values))

    return Stage().train()


def train_in_torch(options):
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    layers = [0, *options.cuts, options.layers]
    torch.manual_seed(1)
    part = make_stage(options, rank == 0, rank + 1 == stages, layers[rank], layers[rank + 1])
    schedule = Schedule1F1B(
        PipelineStage(part, rank, stages, torch.device("cpu")), options.micro_batches,
        loss_fn=lambda logits, targets: torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4, weight_decay=0, fused=True)
    seconds = []
    for _ in range(options.steps):
        tokens = torch.randint(256, (options.batch, options.block + 1))  # the same on all: they have one seed
        dist.broadcast(tokens, 0)
        begun = time.perf_counter()
        optimizer.zero_grad()
        schedule.step(*[tokens[:, :-1]] * (rank == 0), **({"target": tokens[:, 1:]} if rank + 1 == stages else {}))
        optimizer.step()
        dist.barrier()
        seconds.append(time.perf_counter() - begun)
    dist.destroy_process_group()
    print(json.dumps({"seconds": statistics.median(seconds[2:])}))


def of_torch(options, speeds, cuts):
    command = [sys.executable, __file__, "--cuts", json.dumps(cuts)]
    for name in SIZES:
        command += [f"--{name}", str(size_of(options, name))]
    outputs = ranks.run_ranks([command] * len(speeds), speeds, options.period_ms)
    return max(json.loads(out.splitlines()[-1])["seconds"] for out in outputs)


def write_job(options, folder):
    made_tokens(ranks.BIMETAL, folder)
    return job_file.write_job(
        folder / "job.toml",
        model={"name": "llama", "layers": options.layers, "width": options.width, "heads": options.heads,
               "kv_heads": options.heads, "hidden": options.hidden, "vocabulary": options.vocabulary,
               "context": options.block},
        data=job_file.tokens(folder, options.block),
        train={"steps": options.steps, "epochs": 1000, "global_batch": options.batch, "optimizer": "adamw",
               "learning_rate": 1e-4, "evaluate": False},
        mesh={"micro_batches": options.micro_batches}, checkpoint={"dir": ""})


def measure(options, folder, job, speeds):
    report = pipeline.run(job, folder, speeds, options.period_ms, [])
    ours = pipeline.median_step(report)
    cuts = [begin - 1 for begin in report["mesh"]["begins"][1:]]  # units: the embedding, the layers, the head
    equal = [options.layers * stage // len(speeds) for stage in range(1, len(speeds))]
    return {"cuts": cuts, "bimetal": ours, "torch, same cuts": of_torch(options, speeds, cuts),
            "torch, equal cuts": of_torch(options, speeds, equal)}


def main():
    options = arguments()
    if options.cuts is not None:
        train_in_torch(options)
        return
    print(json.dumps(machine.describe(ranks.BIMETAL) | {name: size_of(options, name) for name in SIZES}))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        job = write_job(options, folder)
        for case in options.case or pipeline.CASES:
            rounds = [measure(options, folder, job, pipeline.CASES[case]) for _ in range(options.rounds)]
            print(case, "cuts", rounds[-1]["cuts"])
            print(f"  {'bimetal':20} {statistics.median(one['bimetal'] for one in rounds):.3f} s")
            for what in ("torch, same cuts", "torch, equal cuts"):
                print(f"  {what:20} {statistics.median(one[what] for one in rounds):.3f} s, "
                      f"{statistics.median(one[what] / one['bimetal'] for one in rounds):.2f} times as long", flush=True)


if __name__ == "__main__":
    main()
