#!/usr/bin/env python3
"""Tensor parallelism of two ranks of one host, one thread each: a Llama in Bimetal's job beside transformers' under torch's
DTensor on Gloo (ColwiseParallel, RowwiseParallel, loss_parallel), in turns; with one rank slowed by the system to a part of
a core, parts by speed beside even ones; and sequences in parts, too (mesh.sequence_parallel), beside whole ones, with what memory
both need. Prints milliseconds a step and the ratios: above 1 Bimetal's, parts by speed, or sequences in parts are better.

Both sides: float32, blocks of random bytes, AdamW, no dropout, the same sizes.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

import job_file
import machine
import ranks
from made_tokens import made_tokens

SIZES = ("layers", "width", "heads", "kv-heads", "hidden", "vocabulary", "block", "batch", "steps")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, size in zip(SIZES, (4, 768, 12, 6, 2048, 8192, 128, 4, 8)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--speeds", default="1,0.5", help="parts of a core for the two ranks of the second comparison; on a busy "
                        "machine take less of both, so that these limits are what slows them")
    parser.add_argument("--period-ms", type=float, default=10, help="of these limits, which are a millisecond of it at least")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="dtensor,uneven,sequence", help="what to measure")
    parser.add_argument("--recompute", default="none", help="train.recompute of Bimetal's jobs")
    parser.add_argument("--dropout", type=float, default=0, help="of Bimetal's jobs")
    parser.add_argument("--side", choices=["torch"], help=argparse.SUPPRESS)
    return parser.parse_args()


def cut_by_dtensor(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {
            **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}, "self_attn.o_proj": RowwiseParallel(),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()})


def train_in_torch(options):
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.tensor.parallel import loss_parallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_hidden_layers=options.layers, hidden_size=options.width, num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads, intermediate_size=options.hidden, vocab_size=options.vocabulary,
        max_position_embeddings=options.block, use_cache=False, attn_implementation="sdpa")).train()
    cut_by_dtensor(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    seconds = []
    for _ in range(options.steps):
        tokens = torch.randint(256, (options.batch, options.block + 1))
        dist.broadcast(tokens, 0)
        begun = time.perf_counter()
        optimizer.zero_grad()
        logits = model(tokens[:, :-1]).logits
        with loss_parallel():
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    dist.destroy_process_group()
    print(json.dumps({"ms": 1000 * statistics.median(seconds[2:]), "loss": loss.item()}))


def dtensor_ms(options):
    command = [sys.executable, __file__, "--side", "torch"]
    for name in SIZES:
        command += [f"--{name}", str(getattr(options, name.replace("-", "_")))]
    outputs = ranks.run_ranks([command] * 2, [1.0, 1.0], options.period_ms)
    return max(json.loads(out.splitlines()[-1])["ms"] for out in outputs)


@contextlib.contextmanager
def resident_memory():
    """Gives a list that gets MiB of this process's children together, looked at until the end."""
    seen, over = [], threading.Event()

    def look():
        own = pathlib.Path(f"/proc/{os.getpid()}/task")
        while not over.wait(0.005):
            pages = 0
            for child in {pid for thread in own.iterdir() for pid in (thread / "children").read_text().split()}:
                with contextlib.suppress(OSError):
                    pages += int(pathlib.Path(f"/proc/{child}/statm").read_text().split()[1])
            seen.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        over.set()
        looker.join()


def steps_mib(options, folder, **mesh):
    """The most that both ranks have at once in the second half of a job, whose first steps and start are in the first."""
    with resident_memory() as seen:
        bimetal_ms(options, folder, [1.0, 1.0], [1, 1], **mesh)
    return max(seen[len(seen) // 2:])


def measure_sequences(options, folder):
    ways = {"in parts": {"sequence_parallel": True}, "whole": {}}
    compare(options, "sequences in parts beside whole ones",
            *(lambda mesh=mesh: bimetal_ms(options, folder, [1.0, 1.0], [1, 1], **mesh) for mesh in ways.values()))
    print(json.dumps({"measured": "MiB of both ranks, of sequences"}
                     | {way: statistics.median(steps_mib(options, folder, **mesh) for _ in range(options.rounds))
                        for way, mesh in ways.items()}), flush=True)


def bimetal_ms(options, folder, speeds, weights, **mesh):
    report = folder / "report.json"
    job = job_file.write_job(
        folder / "job.toml",
        model={"name": "llama", "layers": options.layers, "width": options.width, "heads": options.heads,
               "kv_heads": options.kv_heads, "hidden": options.hidden, "vocabulary": options.vocabulary,
               "context": options.block, "dropout": options.dropout},
        data=job_file.tokens(folder, options.block),
        train={"steps": options.steps, "global_batch": options.batch, "micro_batch": options.batch, "optimizer": "adamw",
               "learning_rate": 1e-4, "recompute": options.recompute, "evaluate": False},
        mesh={"tensor": 2, "tensor_weights": weights} | mesh, checkpoint={"dir": ""})
    command = [ranks.BIMETAL, "train", str(job), "--report", str(report)] + ["--worker", "cpu:threads=1"] * 2
    ranks.run_ranks([command] * 2, speeds, options.period_ms)
    ends = [point["elapsed_s"] for point in json.loads(report.read_text())["history"]]
    return 1000 * statistics.median(after - before for before, after in zip(ends[1:], ends[2:]))


def compare(options, what, ours, theirs):
    """Both in turns; `ours` and `theirs` give milliseconds."""
    rounds = [(ours(), theirs()) for _ in range(options.rounds)]
    figures = {"measured": what, "ms": statistics.median(a for a, _ in rounds),
               "other_ms": statistics.median(b for _, b in rounds),
               "ratio": statistics.median(b / a for a, b in rounds)}
    print(json.dumps(figures), flush=True)


def main():
    options = arguments()
    if options.side:
        train_in_torch(options)
        return
    print(json.dumps(machine.describe(ranks.BIMETAL) | {name: getattr(options, name.replace("-", "_")) for name in SIZES}))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made_tokens(ranks.BIMETAL, folder)
        parts = options.parts.split(",")
        if "dtensor" in parts:
            compare(options, "even parts beside DTensor on Gloo",
                    lambda: bimetal_ms(options, folder, [1.0, 1.0], [1, 1]), lambda: dtensor_ms(options))
        if "sequence" in parts:
            measure_sequences(options, folder)
        if "uneven" in parts:
            speeds = [float(speed) for speed in options.speeds.split(",")]
            compare(options, f"at speeds {options.speeds}: parts by speed beside even ones",
                    lambda: bimetal_ms(options, folder, speeds, speeds),
                    lambda: bimetal_ms(options, folder, speeds, [1, 1]))


if __name__ == "__main__":
    main()
