"""bimetal.pipeline.stages: Hugging Face's models and others in stages, in float64 as one process trains."""

import unittest

import ranks
import torch
import torch.distributed as dist
from chains import alone, as_lists, batches, distance, make, make_optimizer

import bimetal


def call(name, batch):
    """The module's arguments: nn.Sequential has no names."""
    return ((batch["input_ids"],), {"labels": batch["labels"]}) if name == "sequence" else ((), batch)


def part_of(batch, replica, replicas):
    """Unequal parts."""
    samples = len(batch["labels"])
    ends = [0, samples // 3, samples] if replicas == 2 else [0, samples]
    return {key: value[ends[replica]:ends[replica + 1]] for key, value in batch.items()}


def staged_training(name, options):
    """The same in stages. Returns what rank 0 knows, and of how many parameters this rank has the values."""
    model = make(name)
    if dist.get_rank() > 0:  # rank 0's count
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    if "checkpointing" in options:
        model.gradient_checkpointing_enable({"use_reentrant": options.pop("checkpointing") == "reentrant"})
    optimizer = make_optimizer(model)
    staged = bimetal.pipeline.stages(model, optimizer, **options)
    replicas = staged.replicas
    losses, norms = [], []
    for number, batch in enumerate(batches(name)):
        args, given = call(name, part_of(batch, staged.replica, replicas))
        before = staged.evaluate(*args, **given).item()
        loss = staged.forward_backward(*args, scale=0.5, **given).item()
        assert abs(before - loss) < 1e-12, (before, loss)
        losses.append(loss)
        if number % 2 == 1:
            norms.append(staged.clip_grad_norm_(0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    here = sum(parameter.numel() for parameter in model.parameters() if parameter.device.type != "meta")
    learnt = staged.optimizer_state_dict()
    return [losses, norms, as_lists(staged.state_dict()),
            learnt and {place: as_lists(state) for place, state in learnt["state"].items()}, here, repr(staged)]


# By ranks: what is trained, and how. Units of gpt2 and llama: embedding, three blocks, head; of pairs one block more.
TRAININGS = {
    2: [("gpt2", {"cuts": [3], "schedule": "gpipe", "micro_batches": 3}), ("gpt2", {"cuts": [1], "micro_batches": 4}),
        ("gpt2", {"cuts": [4], "schedule": "zero_bubble"}), ("llama", {"cuts": [2], "micro_batch": 3}),
        ("llama", {"cuts": [1, 2, 3], "schedule": "interleaved", "chunks": 2, "micro_batches": 4}),
        ("gpt2", {"cuts": [1, 2, 4], "schedule": "interleaved", "chunks": 2, "micro_batches": 2,
                  "checkpointing": "saved tensors"}),
        ("gpt2", {"cuts": [2], "schedule": "zero_bubble", "checkpointing": "saved tensors"}),
        ("llama", {"cuts": [2], "checkpointing": "reentrant"}), ("gpt2", {}),
        ("lora", {"cuts": [2], "micro_batches": 3}),
        ("sequence", {"cuts": [2]}), ("pairs", {"cuts": [3], "schedule": "zero_bubble"})],
    3: [("gpt2", {"cuts": [1, 3], "micro_batches": 4}), ("llama", {"cuts": [3, 4], "schedule": "gpipe", "micro_batches": 5}),
        ("llama", {"cuts": [1, 2], "schedule": "zero_bubble", "micro_batches": 40}), ("sequence", {"cuts": [1, 6]}),
        ("pairs", {"cuts": [1, 5]})],
    4: [("gpt2", {"stages": 2, "cuts": [2]}), ("llama", {"stages": 2, "schedule": "zero_bubble"})],
}


@ranks.needs("transformers")
class Exact(unittest.TestCase):
    references = {}

    def reference(self, name):
        if name not in self.references:
            self.references[name] = alone(name)
        return self.references[name]

    def compare(self, world):
        trainings = [training for training in TRAININGS[world]
                     if training[0] != "lora" or ranks.installed("peft")]
        results = ranks.several(world, [(staged_training, *training) for training in trainings], timeout=400)
        for number, (name, options) in enumerate(trainings):
            with self.subTest(name, **options):
                losses, norms, state, learnt = self.reference(name)
                of_rank = [rank[number] for rank in results]
                for mine in of_rank:
                    torch.testing.assert_close(mine[:2], [losses, norms], rtol=1e-12, atol=1e-12)
                self.assertLess(distance(of_rank[0][2], state), 1e-12)
                self.assertEqual(set(of_rank[0][3]), {str(place) for place in learnt})
                for place, part in learnt.items():
                    self.assertLess(distance(of_rank[0][3][str(place)], part), 1e-11)
                self.assertEqual([mine[2:4] for mine in of_rank[1:]], [[{}, {}]] * (world - 1))
                every = sum(parameter.numel() for parameter in make(name).parameters())
                for mine in of_rank:
                    self.assertLess(mine[4], every, mine[5])

    def test_two_stages(self):
        self.compare(2)

    def test_three_stages(self):
        self.compare(3)

    def test_two_stages_with_two_replicas(self):
        self.compare(4)


if __name__ == "__main__":
    ranks.main(globals())
