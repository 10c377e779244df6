"""The machine and software of a measurement; every benchmark prints them beside its figures."""

import os
import pathlib
import platform
import subprocess


def cpu_name() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe(bimetal: str) -> dict:
    import torch

    version = subprocess.run([bimetal, "--version"], capture_output=True, text=True, check=True)
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cards": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "bimetal": version.stdout.strip(),
    }
