"""The calls of this back end in torch's profile: their names, and the shapes that went in or were asked for."""

import unittest

import ranks
import torch
import torch.distributed as dist


def shapes_by_name():
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 5))
        dist.all_gather_into_tensor(torch.empty(2 * size), torch.ones(2))
        dist.broadcast(torch.ones(4), 0)
        if rank == 0:
            dist.send(torch.ones(7), 1)
            dist.send(torch.ones(7), 1)
        else:
            dist.recv(torch.empty(7), 0)
            dist.recv(torch.empty(7))
    return {event.name: event.input_shapes for event in profile.events() if event.name.startswith("bimetal:")}


def short_profiles():
    """How often a profile that ends with a call, whose waiter comes at once, has its event."""
    found, tensor = 0, torch.ones(40_000)
    for turn in range(150):
        with torch.autograd.profiler.profile(record_shapes=True) as profile:
            if turn % 2:
                dist.all_reduce(tensor, async_op=True).wait()
            else:
                dist.all_reduce(tensor)
        found += sum(event.name == "bimetal:all_reduce" for event in profile.function_events)
    return found


class Profile(unittest.TestCase):
    def test_names_and_shapes(self):
        of_all = {"bimetal:all_reduce": [[3, 5]], "bimetal:all_gather_into_tensor": [[2]], "bimetal:broadcast": [[4]]}
        of_each = [{"bimetal:send": [[7]]}, {"bimetal:recv": [[7]], "bimetal:recvAnySource": [[7]]}]
        for found, own in zip(ranks.on_ranks(2, shapes_by_name), of_each, strict=True):
            self.assertEqual(found, of_all | own)

    def test_a_profile_that_ends_with_the_call(self):
        self.assertEqual(ranks.on_ranks(3, short_profiles), [150] * 3)


if __name__ == "__main__":
    ranks.main(globals())
