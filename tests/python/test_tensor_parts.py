"""bimetal.tensor.parts: Hugging Face's models and others with their matrices in parts, in float64 as one process trains."""

import ranks
import torch
import torch.distributed as dist
from chains import as_lists, distance, loss_of, make_optimizer
from parted_models import InParts, batches, learn_in_parts, make, plan_of
from torch.nn.parallel import DistributedDataParallel

import bimetal
from bimetal.pipeline.loss import causal_weight

def parted_training(name, options):
    model, found = learn_in_parts(name, {}, loss_of, **plan_of(name), **options)
    return [*found, sum(parameter.numel() for parameter in model.parameters())]


def with_replicas(name, weights):
    """Two replicas of two parts each, which DDP joins: each has a part of every batch."""
    mine = dist.get_rank()
    tensor_groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replica_groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    model = make(name)
    optimizer = make_optimizer(model)
    parted = bimetal.tensor.parts(model, optimizer, **plan_of(name), weights=weights, group=tensor_groups[mine // 2])
    joined = DistributedDataParallel(model, process_group=replica_groups[mine % 2])
    norms = []
    for number, batch in enumerate(batches(name)):
        ends = [0, len(batch["labels"]) // 3, len(batch["labels"])]
        own = {key: value[ends[mine // 2]:ends[mine // 2 + 1]] for key, value in batch.items()}
        part = causal_weight(own["labels"]) / causal_weight(batch["labels"])
        (loss_of(joined, own) * part * 2 / 2).backward()  # DDP takes the mean over both; two batches are a step
        if number % 2 == 1:
            norms.append(parted.clip_grad_norm_(0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    return [norms, as_lists(parted.state_dict())]


TRAININGS = {
    2: [("gpt2", {}), ("gpt2", {"weights": [3, 1], "checkpointing": "saved tensors"}), ("llama", {"follow": 0}),
        ("llama", {"weights": [3, 1], "checkpointing": "reentrant"}), ("qwen3", {"weights": [1, 3]}), ("qwen2", {"weights": [3, 1]}),
        ("mistral", {"weights": [3, 1]}), ("bert", {"weights": [3, 1]}), ("plain", {}),
        ("plain", {"weights": [3, 1]})],
    3: [("gpt2", {}), ("llama", {"weights": [1, 2, 1]}), ("plain", {"weights": [5, 2, 1]})],
}


@ranks.needs("transformers")
class Exact(InParts):
    def compare(self, world):
        results = ranks.several(world, [(parted_training, *training) for training in TRAININGS[world]], timeout=400)
        for number, (name, options) in enumerate(TRAININGS[world]):
            with self.subTest(name, **options):
                of_rank = [rank[number] for rank in results]
                self.check(of_rank, name, {})
                self.check_sizes(name, options.get("weights", [1] * world), [mine[4] for mine in of_rank])

    def check_sizes(self, name, weights, here):
        every = sum(parameter.numel() for parameter in make(name).parameters())
        for one, weight in enumerate(weights):
            self.assertLess(here[one], every)
            for other, less in enumerate(weights):
                if less < weight:
                    self.assertLess(here[other], here[one])

    def test_two_ranks(self):
        self.compare(2)

    def test_three_ranks(self):
        self.compare(3)

    def test_two_replicas_of_two_ranks(self):
        calls = [(with_replicas, "plain", [3, 1]), (with_replicas, "llama", [1, 1])]
        results = ranks.several(4, calls, timeout=400)
        for number, (_, name, _) in enumerate(calls):
            _, norms, state, _ = self.reference(name, {})
            for rank, result in enumerate(results):
                torch.testing.assert_close(result[number][0], norms, rtol=1e-12, atol=1e-12)
                if rank % 2 == 0:
                    self.assertLess(distance(result[number][1], state), 1e-12)


if __name__ == "__main__":
    ranks.main(globals())
