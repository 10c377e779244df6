"""A real Slurm of the test's own: munge, slurmctld and two slurmd on this machine, in one folder.

All of it runs in a mount namespace whose /etc/hosts knows the two nodes, so that they are found by
their names as in a cluster. Needs root.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import daemons

PROGRAMS = ["slurmctld", "slurmd", "munged", "srun", "sbatch", "scancel", "sinfo"]
PATIENCE_S = 60


def find(program):
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def why_not():
    """None where a cluster can be started, else the reason."""
    missing = [program for program in PROGRAMS if not find(program)]
    if missing:
        return f"no {', '.join(missing)} here (Debian: apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "Slurm's daemons of a test run as root alone"
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"no mount namespaces here: {probe.stderr.strip()}"


class SlurmCluster:
    """Nodes bm1 and bm2 with `slots` processors each."""

    def __init__(self, folder, slots=4):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(mode=0o755)
        self.processes = []
        try:
            self.write_files(slots)
            self.start("munged", "-F", "--force", f"--key-file={self.folder / 'munge' / 'key'}",
                       f"--socket={self.folder / 'munge.socket'}", f"--pid-file={self.folder / 'munge' / 'pid'}",
                       f"--log-file={self.folder / 'munge' / 'log'}", f"--seed-file={self.folder / 'munge' / 'seed'}")
            self.wait_for((self.folder / "munge.socket").exists, "munge")
            self.start("slurmctld", "-D", "-f", self.config)
            for node in ("bm1", "bm2"):
                self.start("slurmd", "-D", "-N", node, "-f", self.config)
            self.wait_for(self.both_idle, "two idle nodes")
        except BaseException:
            self.stop()
            raise

    def write_files(self, slots):
        (self.folder / "munge").mkdir(mode=0o700)
        (self.folder / "state").mkdir()
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        hosts = self.folder / "hosts"
        hosts.write_text(pathlib.Path("/etc/hosts").read_text() + "\n127.0.0.1 bm1 bm2\n")
        # Every command of the cluster runs behind this.
        self.inside = ["unshare", "-m", "sh", "-c", f"mount --bind {hosts} /etc/hosts && exec \"$0\" \"$@\""]
        self.config = self.folder / "slurm.conf"
        ports = free_ports(3)
        self.config.write_text(CONFIG.format(folder=self.folder, host=socket.gethostname(), slots=slots,
                                             control=ports[0], node1=ports[1], node2=ports[2]))
        self.variables = {"SLURM_CONF": str(self.config)}

    def command(self, *words):
        return [*self.inside, *map(str, words)]

    def start(self, program, *words):
        log = open(self.folder / f"{program}-{len(self.processes)}.out", "wb")
        environment = {**os.environ, **self.variables}
        self.processes.append(daemons.start(self.command(find(program), *words), log, environment))
        log.close()

    def ask(self, *words):
        return subprocess.run(self.command(*words), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                              env={**os.environ, **self.variables}).stdout

    def both_idle(self):
        return self.ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle", "idle"]

    def wait_for(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}"
                                 for path in self.folder.glob("*.out"))
                raise AssertionError(f"Slurm has no {what}:\n{logs}")
            time.sleep(0.1)

    def stop(self):
        """The daemons in the reverse order of their start, and what their jobs may have left."""
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # A step's own daemon outlives slurmd; its command line names the folder's configuration by job.
        for pid in step_daemons(self.folder):
            os.kill(pid, signal.SIGKILL)


def step_daemons(folder):
    """slurmstepd processes of this cluster, known by the SLURM_CONF that slurmd gave them."""
    mark = f"SLURM_CONF={folder}/slurm.conf".encode()
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark in pathlib.Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                if pathlib.Path(f"/proc/{name}/comm").read_text().strip() == "slurmstepd":
                    found.append(int(name))
        except OSError:
            pass  # it has just gone
    return found


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


CONFIG = """ClusterName=bimetal
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
NodeName=bm1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node1} CPUs={slots} State=UNKNOWN
NodeName=bm2 NodeHostname={host} NodeAddr=127.0.0.1 Port={node2} CPUs={slots} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
