"""A parameter server as Ray's own tutorials write it, on Fashion-MNIST: what bimetal.ray's server mode is compared with.

One actor holds the weights and the optimizer; each worker actor computes the gradient of an equal part of every batch.
Weights and gradients are float32 and dense. Nothing here is of Bimetal. On a cluster whose nodes offer what is named:

    ray start --head && ray start --address=HEAD:6379 --resources '{"fast": 1}'    # … and '{"slow": 1}'
    python examples/ray_plain_parameter_server.py --worker fast --worker slow --steps 200

The arrays go as Ray has them fastest: the weights are put into the object store once per step, all workers of a node read
them there without a copy, and gradients go from worker to server directly, never by way of this program.
"""

import argparse
import gzip
import json
import pathlib
import time
import warnings

import ray
import torch
from torch import nn

FOLDERS = [pathlib.Path.home() / ".cache/bimetal/fashion-mnist", pathlib.Path("/usr/share/datasets/fashion-mnist")]
HIDDEN_25M = 4632  # 25.1 million parameters in all


def make_model(name):
    torch.manual_seed(1)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, HIDDEN_25M), nn.ReLU(), nn.Linear(HIDDEN_25M, HIDDEN_25M),
                             nn.ReLU(), nn.Linear(HIDDEN_25M, 10))
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def read_idx(folder, name):
    content = bytearray(gzip.decompress((pathlib.Path(folder) / f"{name}.gz").read_bytes()))
    shape = [int.from_bytes(content[4 + 4 * d:8 + 4 * d], "big") for d in range(content[3])]
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * content[3]).reshape(shape)


def read_images(folder, part):
    images = read_idx(folder, f"{part}-images-idx3-ubyte").unsqueeze(1).float() / 255
    return images, read_idx(folder, f"{part}-labels-idx1-ubyte").long()


def use_threads(threads):
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # shared memory: only read


class ParameterServer:
    def __init__(self, model, threads):
        use_threads(threads)
        self.parameters = list(make_model(model).parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.05, momentum=0.9)
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def weights(self):
        return [parameter.detach().numpy() for parameter in self.parameters]

    def update(self, *gradients):
        """One array per parameter from each worker; Ray calls this when the last one has come."""
        self.optimizer.zero_grad(set_to_none=False)  # the same memory again
        for parameter, parts in zip(self.parameters, zip(*gradients)):
            for part in parts:
                parameter.grad.add_(torch.from_numpy(part), alpha=1 / len(parts))
        self.optimizer.step()
        return self.weights()


class Worker:
    def __init__(self, model, folder, number, workers, batch, threads, speed):
        use_threads(threads)
        self.model = make_model(model)
        self.images, self.labels = read_images(folder, "train")
        self.number, self.batch, self.global_batch, self.speed = number, batch // workers, batch, speed
        self.epoch, self.order = -1, None

    def gradient(self, weights, step):
        began = time.perf_counter()
        for parameter, array in zip(self.model.parameters(), weights):
            parameter.data = torch.from_numpy(array)  # where it lies in the object store
            parameter.grad = None
        batch = self.indices(step)
        nn.functional.cross_entropy(self.model(self.images[batch]), self.labels[batch]).backward()
        gradients = [parameter.grad.numpy() for parameter in self.model.parameters()]
        time.sleep((time.perf_counter() - began) * (1 / self.speed - 1))
        return gradients

    def indices(self, step):
        """This worker's part of the step's batch, of an order that all agree on."""
        epoch, within = divmod(step, len(self.labels) // self.global_batch)
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(epoch))
        begin = within * self.global_batch + self.number * self.batch
        return self.order[begin:begin + self.batch]


def accuracy(name, weights, folder):
    model, (images, labels) = make_model(name), read_images(folder, "t10k")
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), weights):
            parameter.copy_(torch.from_numpy(array))
        found = torch.cat([model(part).argmax(1) for part in images.split(1000)])
    return (found == labels).float().mean().item()


def train(options):
    server = ray.remote(ParameterServer).options(num_cpus=0, resources=options.server).remote(
        options.model, options.threads)
    workers = []
    for number, (resource, speed) in enumerate(options.worker):
        workers.append(ray.remote(Worker).options(num_cpus=0, resources={resource: 1}).remote(
            options.model, str(options.data), number, len(options.worker), options.batch, options.threads, speed))
    weights = server.weights.remote()
    windows, began = [], None
    for step in range(options.warm_up + options.steps):
        if step == options.warm_up:
            began = window_began = time.perf_counter()
        gradients = [worker.gradient.remote(weights, step) for worker in workers]
        weights = server.update.remote(*gradients)
        ray.wait([weights], fetch_local=False)  # every step ends for all at once; nothing is copied to here
        if began and (step + 1 - options.warm_up) % options.window == 0:
            now = time.perf_counter()
            windows.append(options.batch * options.window / (now - window_began))
            window_began = now
            print(f"step {step + 1}: {windows[-1]:.0f} images/s", flush=True)
    seconds = time.perf_counter() - began
    use_threads(options.threads)
    report = {"model": options.model, "workers": len(workers), "global_batch": options.batch, "steps": options.steps,
              "samples_per_s": options.batch * options.steps / seconds, "windows": windows,
              "test_accuracy": accuracy(options.model, ray.get(weights), options.data)}
    for actor in (server, *workers):
        ray.kill(actor)
    return report


def worker_argument(text):
    resource, _, speed = text.partition("=")
    return resource, float(speed or 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="append", required=True, type=worker_argument, metavar="RESOURCE[=SPEED]",
                        help="a worker on the node that offers this; below 1 it pauses, as a slower device would take")
    parser.add_argument("--server", type=lambda name: {name: 0.001}, default={}, metavar="RESOURCE",
                        help="the server's node (default: any)")
    parser.add_argument("--model", choices=["cnn", "mlp"], default="cnn", help="mlp has 25 million parameters")
    parser.add_argument("--batch", type=int, default=256, help="images per step, over all workers")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=10, help="steps before those")
    parser.add_argument("--window", type=int, default=20, help="steps per line of output")
    parser.add_argument("--threads", type=int, default=1, help="of each actor's torch")
    parser.add_argument("--data", type=pathlib.Path, default=next((f for f in FOLDERS if f.is_dir()), FOLDERS[-1]),
                        help="folder with the four IDX files, on every node")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    ray.init(address="auto", ignore_reinit_error=True)
    report = train(options)
    print(f"{report['samples_per_s']:.0f} images/s, test accuracy {report['test_accuracy']:.4f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
