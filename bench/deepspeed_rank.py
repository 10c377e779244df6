#!/usr/bin/env python3
"""One rank of DeepSpeed's ZeRO-3 on Gloo: a GPT-2 of transformers on random tokens, AdamW, float32, each block recomputed, one block
at a time. zero_vs_fsdp.py and zero_limits.py start it (--deepspeed); it finds the others by torchrun's variables.

Rank 0 prints "DeepSpeed " and, of each rank, the peak of resident memory above that without a model, in MiB, and the median seconds
of a step.
"""

import argparse
import os

from zero_vs_fsdp import SIZES, memory, tell_steps

os.environ.setdefault("DS_ACCELERATOR", "cpu")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2", choices=list(SIZES))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2, help="blocks in a step over all ranks")
    parser.add_argument("--block", type=int, default=128)
    return parser.parse_args()


def engine_of(args, ranks):
    import deepspeed
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads = SIZES[args.model]
    config = {"train_batch_size": args.batch, "train_micro_batch_size_per_gpu": 1,
              "gradient_accumulation_steps": args.batch // ranks, "zero_optimization": {"stage": 3},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 10**9}
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=args.block, resid_pdrop=0,
                                           embd_pdrop=0, attn_pdrop=0, use_cache=False))
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def main():
    args = arguments()
    import deepspeed
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    # Collectives in shared memory of its own, which it would compile first.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    base = memory("VmRSS")
    torch.manual_seed(1)
    engine = engine_of(args, dist.get_world_size())
    tokens = torch.randint(0, 256, (args.batch // dist.get_world_size(), args.block))

    def step():
        for block in tokens:
            engine.backward(engine(input_ids=block[None], labels=block[None]).loss)
            engine.step()

    tell_steps("DeepSpeed", args.steps, step, base)


if __name__ == "__main__":
    main()
