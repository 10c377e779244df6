#!/usr/bin/env python3
"""The differences between an accelerator and a CPU, as a report that can be sent: for people with a machine that no
test has run on.

    make device-report DEVICE=mps                 probes, and `make test-accelerator DEVICE=mps`: half an hour or so
    scripts/device_report.py mps --no-tests       probes alone, in a minute

The report (device-report.md, or --out) has the versions, each probe's result beside the CPU's, and each test that failed with its last
lines. The home folder and the names of user and machine are taken out of it. Nothing is sent: attach it to an issue.
"""

import argparse
import getpass
import pathlib
import platform
import re
import socket
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINES = 25  # of each failure


def text_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def facts(device):
    yield "system", f"{platform.system()} {platform.mac_ver()[0] or platform.release()}, {platform.machine()}"
    yield "processor", text_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or "not known"
    yield "Python", platform.python_version()
    yield "torch", torch.__version__
    yield "revision", text_of("git", "-C", str(ROOT), "describe", "--always", "--dirty") or "not known"
    if device == "mps":
        yield "recommended most memory", f"{torch.mps.recommended_max_memory() / 2**30:.1f} GiB"


def numbers(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


# Each takes a device and gives what is compared with the CPU's, or None where it is enough that it works.


def float64(device):
    return numbers(8, 8, dtype=torch.float64).to(device) @ numbers(8, 8, dtype=torch.float64).to(device)


def autocast(dtype):
    def probe(device):
        weight = numbers(32, 32).to(device).requires_grad_()
        with torch.autocast(torch.device(device).type, dtype):
            out = F.linear(numbers(4, 32).to(device), weight)
        if out.dtype != dtype:
            raise RuntimeError(f"computes in {out.dtype}")
        out.float().sum().backward()
        return weight.grad
    return probe


def convolution(memory_format):
    def probe(device):
        x = numbers(4, 8, 9, 9).to(device).contiguous(memory_format=memory_format)
        weight = numbers(16, 8, 3, 3).to(device).requires_grad_()
        out = F.group_norm(F.conv2d(x, weight, padding=1), 4)
        out.square().sum().backward()
        return weight.grad
    return probe


def attention(heads):
    def probe(device):
        q, k, v = numbers(2, 4, 16, 8), numbers(2, heads, 16, 8), numbers(2, heads, 16, 8)
        q, k, v = (part.to(device).requires_grad_() for part in (q, k, v))
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != 4).sum().backward()
        return torch.cat([part.grad.flatten() for part in (q, k, v)])
    return probe


def optimizer(kind, **options):
    def probe(device):
        weight = numbers(64, 3).to(device).requires_grad_()
        made = kind([weight], lr=0.01, **options)
        for _ in range(3):
            weight.grad = weight.detach().sin()
            made.step()
        return weight.detach()
    return probe


def foreach_norm(device):
    return torch.stack(torch._foreach_norm([numbers(50).to(device), numbers(7, 9).to(device)], 2))


def unscaling(device):
    gradient, found = numbers(50).to(device), torch.zeros(1, device=device)
    torch._amp_foreach_non_finite_check_and_unscale_([gradient], found, torch.full((1,), 0.5, device=device))
    return torch.cat([gradient, found])


def events(device):
    kind = torch.device(device).type
    first, second = (torch.Event(kind, enable_timing=True) for _ in range(2))
    first.record()
    work = numbers(256, 256).to(device)
    for _ in range(20):
        work = work @ work / 256
    second.record()
    second.synchronize()
    if not first.elapsed_time(second) >= 0:
        raise RuntimeError("times run backwards")


def streams(device):
    beside = torch.Stream(device)
    with beside:
        made = torch.ones(1000, device=device)
    torch.accelerator.current_stream().wait_stream(beside)
    return made


def page_locked(device):
    made = torch.empty(1000, pin_memory=True)
    if not made.is_pinned():
        raise RuntimeError("the memory is not page-locked")
    made.copy_(torch.ones(1000, device=device), non_blocking=True)
    torch.accelerator.synchronize()
    return made


PROBES = {
    "float64": float64,
    "autocast to bfloat16": autocast(torch.bfloat16),
    "autocast to float16": autocast(torch.float16),
    "convolution and group norm": convolution(torch.contiguous_format),
    "the same, channels last": convolution(torch.channels_last),
    "attention": attention(4),
    "attention with shared keys": attention(2),
    "fused AdamW": optimizer(torch.optim.AdamW, fused=True),
    "fused Adam": optimizer(torch.optim.Adam, fused=True),
    "fused SGD with momentum": optimizer(torch.optim.SGD, momentum=0.9, fused=True),
    "AdamW by foreach": optimizer(torch.optim.AdamW, foreach=True),
    "norms by foreach": foreach_norm,
    "unscaling of gradients": unscaling,
    "events with times": events,
    "a stream of its own": streams,
    "page-locked memory": page_locked,
}


def outcome(probe, device):
    """In words."""
    try:
        here = probe(device)
    except Exception as error:
        return f"no: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if here is None:
        return "works"
    try:
        there = probe("cpu")
    except Exception:
        return "works (the CPU has nothing to compare with)"
    difference = ((here.cpu().double() - there.double()).abs().max() / there.double().abs().max()).item()
    return f"works, {difference:.1e} from the CPU"


def require_usable(device):
    """Torch's words on what it lacks are long where its build has no code for a kind of device."""
    try:
        torch.ones(1, device=device)
        return
    except Exception as error:
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        why = str(error).splitlines()[0].split(". ")[0]
    there = f"finds {found}" if found else "finds no accelerator"
    sys.exit(f"error: torch {torch.__version__} cannot use {device} here ({why}); it {there}.\n"
             "`bimetal devices` lists what there is; DEVICE=cuda:0, say, names another.")


def run_tests(device):
    begin = time.monotonic()
    done = subprocess.run(["make", "-C", str(ROOT), "test-accelerator", f"DEVICE={device}"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode, time.monotonic() - begin, done.stdout


def failures(output):
    """Names of what failed, with the last lines of each, from unittest's own words."""
    parts = re.split(r"\n=+\n(?=(?:FAIL|ERROR): )", output)
    for part in parts[1:]:
        title, _, rest = part.partition("\n")
        body = re.split(r"\n-{60,}\nRan \d+ tests?", rest)[0]
        yield title, "\n".join(body.strip("-\n").splitlines()[-LINES:])


def anonymous(text):
    """Without what tells whose machine it was."""
    for told, put in ((str(ROOT), "<repository>"), (str(pathlib.Path.home()), "~"), (socket.gethostname(), "<machine>")):
        if len(told) > 1:
            text = text.replace(told, put)
    return re.sub(rf"\b{re.escape(getpass.getuser())}\b", "<user>", text)


def report(args):
    yield f"# Bimetal on {args.device}\n"
    yield from (f"- {name}: {value}" for name, value in facts(args.device))
    yield "\n## Probes\n\n| | |\n|---|---|"
    for name, probe in PROBES.items():
        yield f"| {name} | {outcome(probe, args.device).replace('|', '/')} |"
    yield "\n## Tests\n"
    if args.no_tests:
        yield "not run"
        return
    status, seconds, output = run_tests(args.device)
    counts = re.findall(r"^.*\d+ passed, \d+ failed.*$", output, re.M)
    yield f"`make test-accelerator DEVICE={args.device}` ended with status {status} after {seconds / 60:.0f} minutes: " + (
        counts[-1] if counts else "no count")
    found = list(failures(output))
    for title, lines in found:
        yield f"\n### {title}\n\n```\n{lines}\n```"
    if status and not found:
        yield "\n```\n" + "\n".join(output.splitlines()[-2 * LINES:]) + "\n```"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="as torch names it: mps, cuda:0, xpu:0")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--only-look", action="store_true", help="say whether torch can use the device, and end")
    parser.add_argument("--out", default="device-report.md")
    args = parser.parse_args()
    require_usable(args.device)
    if args.only_look:
        return
    text = anonymous("\n".join(report(args)) + "\n")
    pathlib.Path(args.out).write_text(text)
    print(text)
    print(f"written to {args.out}: look at it, and attach it to an issue")


if __name__ == "__main__":
    main()
