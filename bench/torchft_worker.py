"""One replica of a torchft job for elastic.py, or with --lighthouse the service by which its replicas find each other.

A replica writes a line for each step that it commits and takes part in: time.monotonic(), how many did, and the step's number.
It sums gradients by Manager.allreduce: torchft's DistributedDataParallel ends in an AssertionError on those who are left.
"""

import argparse
import datetime
import time

TIMEOUT = datetime.timedelta(seconds=30)


def make_model(hidden):
    from torch import nn

    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def make_manager(options, model, optimizer):
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT), min_replica_size=1, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        timeout=TIMEOUT, quorum_timeout=TIMEOUT, connect_timeout=TIMEOUT, hostname="127.0.0.1",
        heartbeat_interval=datetime.timedelta(milliseconds=options.heartbeat_ms), rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=options.lighthouse_address, replica_id=options.name)
    return store, manager


def train(options):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = make_model(options.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    images, labels = torch.rand(1024, 784), torch.randint(0, 10, (1024,))
    loss_of = torch.nn.CrossEntropyLoss()
    store, manager = make_manager(options, model, optimizer)
    with open(options.commits, "w", buffering=1) as commits:
        while True:
            manager.start_quorum()
            chosen = torch.randint(0, len(images), (options.batch,))
            optimizer.zero_grad()
            loss_of(model(images[chosen]), labels[chosen]).backward()
            sums = [manager.allreduce(parameter.grad) for parameter in model.parameters()]
            for each in sums:
                each.wait()
            took_part = manager.is_participating()
            if manager.should_commit():
                optimizer.step()
                if took_part:
                    commits.write(f"{time.monotonic()} {manager.num_participants()} {manager.current_step()}\n")


def serve(options):
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=options.join_ms,
                              quorum_tick_ms=options.tick_ms, heartbeat_timeout_ms=options.silence_ms)
    print(server.address(), flush=True)
    while True:
        time.sleep(3600)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lighthouse", action="store_true")
    parser.add_argument("--join-ms", type=int, help="of the lighthouse: wait for those who are there and have not come")
    parser.add_argument("--tick-ms", type=int, help="of the lighthouse: look who has come")
    parser.add_argument("--silence-ms", type=int, help="of the lighthouse: who is silent for as long is lost")
    parser.add_argument("--lighthouse-address")
    parser.add_argument("--name", help="of the replica")
    parser.add_argument("--commits", help="the file of committed steps")
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--batch", type=int, help="samples of this replica's step")
    parser.add_argument("--heartbeat-ms", type=int)
    options = parser.parse_args()
    serve(options) if options.lighthouse else train(options)


if __name__ == "__main__":
    main()
