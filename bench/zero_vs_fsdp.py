#!/usr/bin/env python3
"""ZeRO's levels beside PyTorch's FSDP2 on Gloo, in one run: each rank's peak of resident memory above that without a model, and
the median time of a step. A GPT-2 on random tokens, AdamW, float32, recomputed, ranks of one machine with a thread each.

FSDP2 trains transformers' GPT2LMHeadModel, a shard for each block; its shards are equal by design. Those of Bimetal are given
by --shards. Both see as many tokens in a step and compute one block at a time. --deepspeed takes the Python of an environment with
DeepSpeed (build/deepspeed/bin/python after `make test-deepspeed`) and adds its ZeRO-3 on Gloo.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import zero_memory
from made_tokens import made_tokens


SIZES = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20),
         "gpt2-xl": (48, 1600, 25)}  # layers, width, heads


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(zero_memory.ROOT / "build" / "bimetal"))
    parser.add_argument("--torchrun", default=str(pathlib.Path(sys.executable).with_name("torchrun")))
    parser.add_argument("--model", default="gpt2", choices=list(SIZES))
    parser.add_argument("--shards", default="1,1", help="weights of Bimetal's shards; as many ranks")
    parser.add_argument("--levels", default="0,1,2,3,3b", help="of ZeRO; 3b: 3 with zero.update = \"backward\"")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2, help="blocks in a step over all ranks")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--deepspeed", default="", help="Python of an environment that has it")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.offload, args.folder, args.recompute, args.memory, args.save = "none", "", "all", "", False
    args.precision = "float32"
    return args


def memory(name):
    """VmRSS or VmHWM of this process in MiB."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def fsdp_rank(args):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sizes = SIZES[args.model]
    base = memory("VmRSS")
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=sizes[0], n_embd=sizes[1], n_head=sizes[2], n_positions=args.block,
                                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))
    model.gradient_checkpointing_enable()
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 256, (args.batch // dist.get_world_size(), args.block))

    def step():
        optimizer.zero_grad()
        for i, block in enumerate(tokens):
            model.set_is_last_backward(i + 1 == len(tokens))
            model(input_ids=block[None], labels=block[None]).loss.backward()
        optimizer.step()

    tell_steps("FSDP2", args.steps, step, base)


def tell_steps(name, count, step, base):
    """Makes the steps on all ranks; rank 0 prints each one's peak above `base` MiB and median seconds, behind `name`. Ends the group."""
    import torch.distributed as dist

    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
    mine = {"peak": memory("VmHWM") - base, "seconds": statistics.median(seconds[1:])}
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    if dist.get_rank() == 0:
        print(f"{name} " + json.dumps(everybody))
    dist.destroy_process_group()


def command_of(args, script, *more):
    """The command of one rank, which finds the others by torchrun's variables."""
    return [script, *more, "--model", args.model, "--steps", str(args.steps), "--batch", str(args.batch), "--block", str(args.block)]


def fsdp_command(args):
    return command_of(args, __file__, "--rank")


def deepspeed_command(args):
    return command_of(args, str(pathlib.Path(__file__).with_name("deepspeed_rank.py")))


def run_peer(name, torchrun, command, ranks):
    done = subprocess.run([*torchrun, "--nproc-per-node", str(ranks), *command], capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    for told in done.stdout.splitlines():
        if told.startswith(name + " "):
            of_ranks = json.loads(told.removeprefix(name + " "))
            return line(name, [rank["peak"] for rank in of_ranks], max(rank["seconds"] for rank in of_ranks))
    return sys.exit(f"{name} has failed:\n{done.stderr[-2000:]}")


def line(name, peaks, seconds):
    print(f"{name:9}  peaks " + " : ".join(f"{peak:6.0f}" for peak in peaks) + f"   sum {sum(peaks):6.0f}   {seconds:6.2f} s a step",
          flush=True)


def main():
    args = arguments()
    if args.rank:
        return fsdp_rank(args)
    print(json.dumps(machine.describe(args.program)))
    ranks = len(args.shards.split(","))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = made_tokens(args.program, folder)
        tiny = f"layers = 1\nwidth = 8\nheads = 1\ncontext = {args.block}"
        base, report = zero_memory.run(args, folder, data, 0, "none", "gpt2", tiny)
        if base is None:
            sys.exit(report)
        print(f"{args.model}, {ranks} ranks, Bimetal's shards {args.shards}; MiB above a rank without a model")
        run_peer("FSDP2", [args.torchrun], fsdp_command(args), ranks)
        if args.deepspeed:
            run_peer("DeepSpeed", [args.deepspeed, "-m", "torch.distributed.run"], deepspeed_command(args), ranks)
        for level in args.levels.split(","):
            peaks, report = zero_memory.run(args, folder, data, int(level[0]), "none", args.model,
                                            f"vocabulary = 50257\ncontext = {args.block}",
                                            update="backward" if level.endswith("b") else "step")
            if peaks is None:
                print(f"level {level}: {report}")
                continue
            line(f"level {level}", [peak - least for peak, least in zip(peaks, base)],
                 args.batch * args.block / report["samples_per_s"])
    return None


if __name__ == "__main__":
    main()
