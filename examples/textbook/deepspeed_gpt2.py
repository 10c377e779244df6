"""A small GPT-2 of Hugging Face's by a script for DeepSpeed: bimetal launch -n 2 -- python SCRIPT.

One import has changed; on machines of unlike speed each gets as much of every batch as it finishes in the same time.
"""

import argparse
import pathlib

import bimetal.deepspeed as deepspeed  # was: import deepspeed
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

CONFIG = pathlib.Path(__file__).with_name("deepspeed_config.json")
TOKENS = 64


def make_model():
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=TOKENS, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                      bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0,
                                      attn_pdrop=0.0))


def make_data(samples):
    """Sequences that count up from somewhere, in steps of some length."""
    generator = torch.Generator().manual_seed(2)
    begin, stride = torch.randint(0, TOKENS, (2, samples, 1), generator=generator)
    return [tokens for tokens in (begin + torch.arange(16) * (stride % 4 + 1)) % TOKENS]


def loss_of(logits, ids):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--samples", type=int, default=320)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save")
    parser = deepspeed.add_config_arguments(parser)
    parser.set_defaults(deepspeed_config=str(CONFIG))
    args = parser.parse_args(arguments)

    deepspeed.init_distributed()
    model = make_model()
    engine, _, loader, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(),
                                                training_data=make_data(args.samples))
    for epoch in range(args.epochs):
        for ids in loader:
            ids = ids.to(engine.device)
            loss = loss_of(engine(ids).logits, ids)
            engine.backward(loss)
            engine.step()
        if engine.local_rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, rate {engine.get_lr()[0]:.6f}", flush=True)
        if args.save:
            engine.save_checkpoint(args.save)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
