"""bimetal.hf with PEFT: the example's adapter is the one that a single process would have trained."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

import ranks
import torch
import torch.distributed as dist

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"
NEEDED = ("transformers", "accelerate", "peft")


def in_float64(outputs, labels, num_items_in_batch=None):
    """Hugging Face's own loss is computed in float32 whatever the model's type."""
    logits = outputs["logits"][..., :-1, :].double().flatten(0, -2)
    return torch.nn.functional.cross_entropy(logits, labels[..., 1:].flatten(), reduction="sum") / num_items_in_batch


def trained(folder, weights, micro_batch, accumulation, workers=0):
    """The adapter's parameters after some steps, each rank's samples, where a checkpoint goes on, tokens seen, losses logged."""
    sys.path.insert(0, str(EXAMPLES))
    import lora as example

    options = example.Options(out=folder, micro_batch=micro_batch, accumulation=accumulation, cpu=True, epochs=9,
                              sampler={"balance": "fixed", "weights": weights, "seed": 5})
    trainer = example.make_trainer(options, compute_loss_func=in_float64)
    trainer.model.double()
    trainer.args.max_steps, trainer.args.save_strategy, trainer.args.save_steps = 5, "steps", 3
    # Adam's steps are of one length however small the gradient: of those that are 0 it would show the rounding.
    trainer.args.optim, trainer.args.learning_rate = "sgd", 0.5
    trainer.args.include_num_input_tokens_seen = "non_padding"
    trainer.args.logging_strategy, trainer.args.logging_steps = "steps", 1
    if workers:
        trainer.args.dataloader_num_workers, trainer.args.dataloader_prefetch_factor = workers, 1
    trainer.train()
    trainer.save_model()
    if dist.is_initialized():
        dist.barrier()
    found = {name: p.flatten().tolist() for name, p in trainer.model.named_parameters() if p.requires_grad}
    position = json.loads(pathlib.Path(folder, "checkpoint-3", "bimetal_sampler.json").read_text())
    return [found, trainer.sampler.shares, position, trainer.state.num_input_tokens_seen, logged_losses(trainer)]


def logged_losses(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def tuned(folder, weights, micro_batch, accumulation, **more):
    """Likewise by trl's SFTTrainer, which makes tokens of texts itself, and gathers figures in every micro-batch."""
    sys.path.insert(0, str(EXAMPLES))
    import lora as example
    from datasets import Dataset
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from bimetal.hf import balanced

    words = {word: number for number, word in enumerate(["<eos>", "<pad>", *"abcdefghij"])}
    model = Tokenizer(WordLevel(words, unk_token="<eos>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>", pad_token="<pad>", unk_token="<eos>")
    texts = [" ".join("abcdefghij"[(first + i) % 10] for i in range(3 + 7 * first % 19)) for first in range(80)]
    args = SFTConfig(output_dir=folder, max_steps=4, per_device_train_batch_size=micro_batch,
                     gradient_accumulation_steps=accumulation, use_cpu=True, bf16=False, optim="sgd", learning_rate=0.5,
                     max_length=64, gradient_checkpointing=False, report_to="none", disable_tqdm=True, save_strategy="no",
                     logging_steps=1)
    trainer = balanced(SFTTrainer)(model=example.make_model(), args=args, train_dataset=Dataset.from_dict({"text": texts}),
                                   processing_class=tokenizer, **more)
    trainer.sampler_options |= {"balance": "fixed", "weights": weights, "seed": 5}
    trainer.model.double()
    trainer.train()
    found = {name: p.flatten().tolist() for name, p in trainer.model.named_parameters() if p.requires_grad}
    return [found, trainer.sampler.shares, [row for row in trainer.state.log_history if "mean_token_accuracy" in row],
            logged_losses(trainer)]


def twice_tuned(*arguments):
    """With a loss in float64, and with trl's own in float32."""
    return [tuned(*arguments, compute_loss_func=in_float64), tuned(*arguments)]


def no_items(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def learnt(kind, weights, per_device, folder, **options):
    """Parameters of a small model after two steps in float64, whose loss is of that kind, and what became of the arguments."""
    from transformers import (BertConfig, BertForSequenceClassification, BertForTokenClassification, GPT2Config, GPT2LMHeadModel,
                              Trainer, TrainingArguments)

    from bimetal.hf import balanced

    class OwnLoss(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs["labels"]
            outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            loss = no_items(outputs, labels)
            if kind == "partly":
                loss = loss + outputs.logits.square().sum() / (num_items_in_batch or 1)
            return (loss, outputs) if return_outputs else loss

    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(3)
    bert = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_labels": 1 if kind == "regression" else 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if kind in ("classes", "regression"):
        model = BertForSequenceClassification(BertConfig(**bert))
    elif kind == "labels":
        model = BertForTokenClassification(BertConfig(**bert))
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
                                           resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    if kind == "prompt":  # virtual tokens come before the first, which then has a prediction
        from peft import PromptTuningConfig, get_peft_model
        model = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    data = []
    for number in range(16):
        ids = torch.randint(1, 30, (6,), generator=draw)
        labels = {"classes": torch.tensor(number % 3), "regression": torch.randn((), generator=draw, dtype=torch.float64),
                  "labels": ids % 3}.get(kind, ids.clone())
        if labels.dim():
            labels[: number % 6] = -100  # rows have unlike numbers of labels
        data.append({"input_ids": ids, "attention_mask": torch.ones(6, dtype=torch.long), "labels": labels})
    args = TrainingArguments(folder, per_device_train_batch_size=per_device, max_steps=2, learning_rate=0.5, optim="sgd", max_grad_norm=0,
                             lr_scheduler_type="constant", report_to=[], save_strategy="no", disable_tqdm=True, data_seed=5,
                             logging_steps=1, remove_unused_columns=False, **options)
    before = dict(vars(args))
    trainer = balanced(OwnLoss if kind in ("own", "partly") else Trainer)(model=model.double(), args=args, train_dataset=data)
    trainer.sampler_options.update(balance="fixed", weights=weights)
    trainer.train()
    trainer.train()  # again, from where the model is
    changed = [name for name, value in vars(args).items() if not name.startswith("_") and before[name] != value]
    return [torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), changed, trainer.args.world_size]


@ranks.needs(*NEEDED)
class Means(unittest.TestCase):
    """Losses that are not divided by num_items_in_batch, and GPT-2's in float32 with PEFT's prompt tuning. The ranks are not told to
    use the CPU."""

    def test_unequal_ranks_train_what_one_process_does(self):
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory(prefix="bimetal-test-") as folder:
            kinds = {"classes": 1e-10, "regression": 1e-10, "labels": 1e-10, "own": 1e-10, "prompt": 1e-5}
            results = ranks.several(2, [(learnt, kind, [3, 1], 4, folder) for kind in kinds])
            for (kind, most), *of_rank in zip(kinds.items(), *results, strict=True):
                with self.subTest(kind):
                    expected, changed, _ = learnt(kind, [1], 8, folder, use_cpu=True)
                    self.assertEqual(changed, [], "the caller's arguments are others now")
                    for found, changed, world in of_rank:
                        self.assertEqual((changed, world), ([], 2))
                        self.assertLess(max(abs(a - b) for a, b in zip(found, expected, strict=True)), most)

    def test_what_no_weight_makes_right_is_refused(self):
        with tempfile.TemporaryDirectory(prefix="bimetal-test-") as folder:
            with self.assertRaisesRegex(ValueError, "a part of this loss is divided by num_items_in_batch"):
                learnt("partly", [1], 8, folder, use_cpu=True)
            for option, said in ({"train_sampling_strategy": "group_by_length"}, "leave out train_sampling_strategy"), (
                    {"auto_find_batch_size": True}, "leave out auto_find_batch_size"):
                with self.assertRaisesRegex(ValueError, said):
                    learnt("classes", [1], 8, folder, use_cpu=True, **option)


@ranks.needs(*NEEDED, "trl", "datasets")
class Sft(unittest.TestCase):
    def test_the_sft_trainer_of_unequal_ranks(self):
        """Two ranks whose numbers of micro-batches differ: three and one."""
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory(prefix="bimetal-test-") as folder:
            references = twice_tuned(folder, [1], 16, 1)  # in a process that has no group
            for results in ranks.on_ranks(2, twice_tuned, folder, [3, 1], 4, 2):
                for (found, shares, logged, losses), (reference, *_, expected), most in zip(
                        results, references, (1e-10, 1e-5), strict=True):
                    self.assertEqual(shares, [12, 4])
                    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
                    self.assertEqual(len(logged), 4)
                    self.assertEqual(set(found), set(reference))
                    for name, values in found.items():
                        difference = max(abs(a - b) for a, b in zip(values, reference[name], strict=True))
                        self.assertLess(difference, most, name)
            for reference, *_ in references:
                self.assertGreater(max(abs(a) for name in reference if "lora_B" in name for a in reference[name]), 1e-4)


class Micro(unittest.TestCase):
    def test_micro_batches_are_padded_one_by_one(self):
        from bimetal.hf.trainer import InPieces

        def pad(samples):
            longest = max(len(sample["input_ids"]) for sample in samples)
            rows = [[*sample["input_ids"], *[0] * (longest - len(sample["input_ids"]))] for sample in samples]
            return {"input_ids": torch.tensor(rows), "attention_mask": (torch.tensor(rows) != 0).long()}

        lengths = [2, 9, 3, 1, 8, 2, 3, 9, 1]
        batch = InPieces(pad, 4)([{"input_ids": [length] * length} for length in lengths])
        self.assertEqual([list(part["input_ids"].shape) for part in batch.parts], [[3, 9], [3, 3], [3, 2]])
        self.assertEqual(sorted(row[0].item() for part in batch.parts for row in part["input_ids"]), sorted(lengths))
        self.assertEqual(batch["attention_mask"].sum(), sum(lengths))
        self.assertEqual(len(InPieces(pad, 4)([{"input_ids": [1]}] * 8).parts), 2)

        def pad_what_needs_it(samples):
            padded = pad(samples)
            return padded if (padded["input_ids"] == 0).any() else {"input_ids": padded["input_ids"]}

        batch = InPieces(pad_what_needs_it, 2)([{"input_ids": [length] * length} for length in (3, 3, 2, 1)])
        self.assertEqual(["attention_mask" in part for part in batch.parts], [False, True])
        self.assertEqual(batch["attention_mask"].tolist(), [1] * 6 + [1, 1, 1, 0])
        texts = InPieces(lambda samples: {"texts": samples}, 2)(["bb", "a", "ccc"])  # of no length that it knows
        self.assertEqual([part["texts"] for part in texts.parts], [["bb"], ["a", "ccc"]])


@ranks.needs(*NEEDED)
class HuggingFace(unittest.TestCase):
    def test_an_adapter_of_unequal_ranks(self):
        with tempfile.TemporaryDirectory(prefix="bimetal-test-") as folder:
            alone = os.path.join(folder, "alone")
            together = os.path.join(folder, "together")
            torch.set_num_threads(1)
            reference, _, place, tokens, expected = trained(alone, [1], 16, 1)  # in a process that has no group
            for found, shares, position, seen, losses in ranks.on_ranks(2, trained, together, [3, 1], 4, 2, 2):
                self.assertEqual(position, place)
                self.assertEqual(len(losses), 5)
                torch.testing.assert_close(losses, expected, rtol=1e-6, atol=0)  # the Trainer has them in float32
                self.assertEqual(seen, tokens)
                self.assertGreater(shares[0], 2 * shares[1])
                self.assertEqual(set(found), set(reference))
                for name, values in found.items():
                    difference = max(abs(a - b) for a, b in zip(values, reference[name], strict=True))
                    self.assertLess(difference, 1e-10, name)
            self.assertGreater(max(abs(a) for name in reference if "lora_B" in name for a in reference[name]), 1e-4,
                               "B begins at 0: nothing was learnt")
            self.loads(together, reference)

    def test_what_is_asked_of_the_loader(self):
        from transformers import Trainer, TrainingArguments

        from bimetal.hf import balanced

        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(())

        def trainer(dataset, **options):
            args = TrainingArguments(output_dir=tempfile.gettempdir(), use_cpu=True, report_to="none", max_steps=1, **options)
            return balanced(Trainer)(model=torch.nn.Linear(1, 1), args=args, train_dataset=dataset)

        asked = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "pin_memory": False}
        loader = trainer([1, 2, 3], **{f"dataloader_{name}": value for name, value in asked.items()}).get_train_dataloader()
        self.assertEqual({name: getattr(loader, name) for name in asked}, asked)
        self.assertEqual(loader.batch_sampler._prefetch, 6)
        with self.assertRaisesRegex(ValueError, "leave out dataloader_drop_last"):
            trainer([1, 2, 3], dataloader_drop_last=True)
        with self.assertRaisesRegex(ValueError, "a train_dataset with a length"):
            trainer(Stream()).get_train_dataloader()

    def loads(self, folder, reference):
        """PEFT reads what was saved."""
        sys.path.insert(0, str(EXAMPLES))
        import lora as example
        from peft import PeftModel

        self.assertTrue(pathlib.Path(folder, "adapter_model.safetensors").exists())
        base = example.make_model().unload().double()
        read = PeftModel.from_pretrained(base, folder, is_trainable=True)
        for name, parameter in read.named_parameters():
            if parameter.requires_grad:
                expected = torch.tensor(reference[name], dtype=torch.float64)
                torch.testing.assert_close(parameter.detach().flatten().double(), expected, rtol=1e-6, atol=1e-6)


if __name__ == "__main__":
    ranks.main(globals())
