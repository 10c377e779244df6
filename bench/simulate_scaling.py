#!/usr/bin/env python3
"""How far the planner sees a cluster scale: plans a described cluster (examples/clusters/*.toml) with 1, 2, 4, … of its hosts, or of
its devices where it has but a few, and prints the best plan of each size, its samples a second and what part that is of all
devices' own: of the operations that they could do in the time of a step, those that the model takes.

The batch stays, unless it is to grow with the devices. Nothing is run.
"""

import argparse
import copy
import json
import pathlib
import resource
import subprocess
import tempfile
import tomllib

import ranks

CLUSTERS = ranks.ROOT / "examples" / "clusters"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster", nargs="*", default=["home", "lab", "mixed"], help="names there, or files")
    parser.add_argument("--most", type=int, default=1 << 12, help="devices")
    parser.add_argument("--multiply", type=int, default=1, help="so many times the hosts that are described")
    parser.add_argument("--grow", action="store_true", help="the batch with the devices: its size is that of the whole cluster")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def toml_of(table):
    """Enough of TOML for a cluster: [model], [[host]], [[host.device]]."""
    def lines(values):
        return [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, list)]
    text = ["[model]", *lines(table["model"])]
    for host in table["host"]:
        text += ["[[host]]", *lines(host)]
        for device in host["device"]:
            text += ["[[host.device]]", *lines(device)]
    return "\n".join(text) + "\n"


def taken(hosts, many):
    """`many` devices, of the first hosts first."""
    left, some = many, []
    for host in hosts:
        each = sum(device.get("count", 1) for device in host["device"])
        whole = min(host.get("count", 1), left // each)
        if whole:
            some.append({**host, "count": whole})
            left -= whole * each
        if left and whole < host.get("count", 1):
            part = {**copy.deepcopy(host), "count": 1, "device": []}
            for device in host["device"]:
                count = min(left, device.get("count", 1))
                left -= count
                if count:
                    part["device"].append({**device, "count": count})
            some.append(part)
    return some


def planned(table):
    with tempfile.TemporaryDirectory() as name:
        file = pathlib.Path(name, "cluster.toml")
        file.write_text(toml_of(table))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = subprocess.run([ranks.BIMETAL, "plan", "--simulate", str(file), "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["mesh"], resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def scaling(table, most, grow):
    """For each number of devices: its best plan, samples a second, part of what all could do, and processor seconds to plan."""
    hosts = table["host"]
    all_devices = sum(host.get("count", 1) * sum(device.get("count", 1) for device in host["device"]) for host in hosts)
    counts = [1 << power for power in range(13) if 1 << power < min(all_devices, most)] + [min(all_devices, most)]
    for count in counts:
        some = {"model": dict(table["model"]), "host": taken(hosts, count)}
        if grow:
            some["model"]["global_batch"] = max(1, table["model"]["global_batch"] * count // all_devices)
        mesh, seconds = planned(some)
        row = {"devices": count, "tried": mesh["tried"], "plan_s": seconds, "title": "nothing fits"}
        if mesh["best"]:
            best = mesh["best"][0]
            rate = some["model"]["global_batch"] / best["step_s"]
            speed = sum(host.get("count", 1) * device.get("count", 1) * device["teraflops"] * 1e12
                        for host in some["host"] for device in host["device"])
            used = [device for stage in best["stages"] for device in stage["devices"]]
            operations = sum(device["operations"] or 0 for device in used)
            row |= {"title": best["title"], "samples_per_s": rate, "efficiency": operations / best["step_s"] / speed,
                    "used": len(used)}
        yield row


def main():
    args = arguments()
    figures = {}
    for name in args.cluster:
        file = pathlib.Path(name) if pathlib.Path(name).exists() else CLUSTERS / f"{name}.toml"
        table = tomllib.loads(file.read_text())
        for host in table["host"]:
            host["count"] = host.get("count", 1) * args.multiply
        print(f"{file.stem}\n  {'devices':>7} {'samples/s':>10} {'efficiency':>10} {'tried':>7} {'to plan':>8}  best")
        figures[file.stem] = []
        for row in scaling(table, args.most, args.grow):
            figures[file.stem].append(row)
            rate = f"{row['samples_per_s']:10.3g} {row['efficiency']:9.0%} " if "used" in row else " " * 21
            used = f" (uses {row['used']})" if row.get("used", row["devices"]) < row["devices"] else ""
            print(f"  {row['devices']:7} {rate} {row['tried']:7} {row['plan_s']:7.1f}s  {row['title']}{used}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
