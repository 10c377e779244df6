"""LoRA on two unequal machines: a Hugging Face model with PEFT's adapters, trained by Hugging Face's Trainer on text, whose
batches follow each rank's speed. Two lines are Bimetal's: the import, and `balanced(...)`.

    pip install transformers accelerate peft
    bimetal launch -n 2 examples/python/lora.py --cpu          # or torchrun, on several machines
"""

import argparse
import pathlib
from dataclasses import dataclass, field

import torch
from bimetal.hf import balanced
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

BYTES, BEGIN, PAD = 256, 256, 257  # the vocabulary: every byte, and two more


@dataclass
class Options:
    text: pathlib.Path = pathlib.Path(__file__).parents[2] / "LICENSE"
    out: str = "lora-adapter"
    epochs: float = 1
    micro_batch: int = 4
    accumulation: int = 2
    cpu: bool = False
    sampler: dict = field(default_factory=dict)  # as BalancedBatchSampler takes them


def paragraphs(path):
    """Texts of unequal length, as bytes."""
    texts = [text.strip() for text in path.read_text().split("\n\n")]
    return [{"input_ids": [BEGIN, *text.encode()[:191]]} for text in texts if text]


def pad(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    rows = [sample["input_ids"] + [PAD] * (longest - len(sample["input_ids"])) for sample in samples]
    ids = torch.tensor(rows)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": ids.masked_fill(ids == PAD, -100)}


def make_model():
    """A small one with random weights, the same on every rank: what from_pretrained() would give."""
    torch.manual_seed(1)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=BYTES + 2, n_positions=192, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0,
                                      embd_pdrop=0, attn_pdrop=0, bos_token_id=BEGIN, eos_token_id=PAD, pad_token_id=PAD))
    return get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True,
                                           task_type="CAUSAL_LM"))


def make_trainer(options, **more):
    data = paragraphs(options.text)
    held_out = data[::10]
    data = [sample for i, sample in enumerate(data) if i % 10]
    args = TrainingArguments(output_dir=options.out, num_train_epochs=options.epochs, learning_rate=3e-3,
                             per_device_train_batch_size=options.micro_batch,
                             gradient_accumulation_steps=options.accumulation, use_cpu=options.cpu, save_strategy="no",
                             report_to="none", disable_tqdm=True, logging_strategy="epoch", remove_unused_columns=False)
    trainer = balanced(Trainer)(model=make_model(), args=args, train_dataset=data, eval_dataset=held_out,
                                data_collator=pad, **more)
    trainer.sampler_options |= {"lengths": [len(sample["input_ids"]) for sample in data], **options.sampler}
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", type=pathlib.Path, default=Options.text, help="paragraphs to learn")
    parser.add_argument("--out", default=Options.out, help="a folder for the adapter")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--cpu", action="store_true", help="even where there is an accelerator")
    given = parser.parse_args()
    torch.distributed.init_process_group("bimetal")  # Trainer takes the group that it finds
    trainer = make_trainer(Options(text=given.text, out=given.out, epochs=given.epochs, cpu=given.cpu))
    trainer.train()
    trainer.save_model()  # adapter_model.safetensors, by rank 0
    print(f"rank {torch.distributed.get_rank()}: loss on what was held out {trainer.evaluate()['eval_loss']:.3f}, "
          f"tokens of each rank in a batch {trainer.sampler.shares}")
    torch.distributed.destroy_process_group()
