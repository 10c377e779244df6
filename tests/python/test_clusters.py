"""examples/clusters: what the files say is what the clusters' own schemas know, and their commands train, as far as that can be seen
without a cluster."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import yaml
from searches import harness

FOLDER = harness.REPOSITORY / "examples" / "clusters"
ANY = None  # as Kubernetes has it, or a text
POD = {"spec": {"containers": [{"name": ANY, "image": ANY, "command": ANY, "args": ANY, "env": [{"name": ANY, "value": ANY, "valueFrom": ANY}],
                                "resources": {"limits": ANY, "requests": ANY}, "ports": [{"containerPort": ANY, "name": ANY}],
                                "volumeMounts": [{"name": ANY, "mountPath": ANY, "readOnly": ANY}]}],
                "volumes": [{"name": ANY, "configMap": {"name": ANY}, "emptyDir": {"medium": ANY, "sizeLimit": ANY}, "secret": ANY}]},
       "metadata": {"labels": ANY}}
HEAD = {"apiVersion": ANY, "kind": ANY, "metadata": {"name": ANY, "labels": ANY}}
# The fields that are used here, and some that are like them: of Trainer 2.2, KubeRay's ray.io/v1, SkyPilot's tasks.
KNOWN = {
    "TrainingRuntime": HEAD | {"spec": {"mlPolicy": {"numNodes": ANY, "torch": ANY, "mpi": ANY}, "podGroupPolicy": ANY, "template": {
        "metadata": ANY, "spec": {"replicatedJobs": [{"name": ANY, "replicas": ANY, "template": {"metadata": {"labels": ANY},
                                                                                                "spec": {"template": POD}}}]}}}},
    "TrainJob": HEAD | {"spec": {"runtimeRef": {"apiGroup": ANY, "kind": ANY, "name": ANY},
                                 "trainer": {"image": ANY, "command": ANY, "args": ANY, "env": ANY, "numNodes": ANY, "numProcPerNode": ANY,
                                             "resourcesPerNode": {"limits": ANY, "requests": ANY}}}},
    "RayCluster": HEAD | {"spec": {"rayVersion": ANY, "headGroupSpec": {"rayStartParams": ANY, "template": POD}, "workerGroupSpecs": [
        {"groupName": ANY, "replicas": ANY, "minReplicas": ANY, "maxReplicas": ANY, "rayStartParams": ANY, "template": POD}]}},
    None: {"name": ANY, "workdir": ANY, "num_nodes": ANY, "resources": {"accelerators": ANY, "cpus": ANY, "memory": ANY, "image_id": ANY},
           "envs": ANY, "secrets": ANY, "file_mounts": ANY, "setup": ANY, "run": ANY},
}


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def unknown(found, known, place=""):
    """Paths of the fields that the schema does not have."""
    if known is ANY or not isinstance(known, (list, dict)):
        return []
    if isinstance(known, list):
        return [path for number, one in enumerate(found) for path in unknown(one, known[number % len(known)], f"{place}[{number}]")]
    return [path for name, value in found.items()
            for path in ([f"{place}.{name}"] if name not in known else unknown(value, known[name], f"{place}.{name}"))]


class Files(unittest.TestCase):
    def test_fields_are_those_of_the_schemas(self):
        for name in ("kubeflow.yaml", "kuberay.yaml", "skypilot.yaml"):
            for document in documents(name):
                self.assertEqual(unknown(document, KNOWN[document.get("kind")]), [], name)

    def test_volumes_are_there(self):
        pods = [documents("kubeflow.yaml")[0]["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]]
        ray = documents("kuberay.yaml")[0]["spec"]
        pods += [group["template"] for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"])]
        for pod in pods:
            volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
            used = {mount["name"] for container in pod["spec"]["containers"] for mount in container.get("volumeMounts", [])}
            self.assertEqual(used, volumes)

    def test_kubeflows_own_models_know_all(self):
        if importlib.util.find_spec("kubeflow_trainer_api") is None:
            self.skipTest("the package kubeflow_trainer_api is not installed")
        from kubeflow_trainer_api.models.io_k8s_api_core_v1_pod_template_spec import IoK8sApiCoreV1PodTemplateSpec
        from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
        from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime
        ray, = documents("kuberay.yaml")
        pods = [group["template"] for group in (ray["spec"]["headGroupSpec"], *ray["spec"]["workerGroupSpecs"])]
        models = [TrainerV1alpha1TrainingRuntime, TrainerV1alpha1TrainJob] + [IoK8sApiCoreV1PodTemplateSpec] * len(pods)
        for document, model in zip([*documents("kubeflow.yaml"), *pods], models, strict=True):
            self.assertEqual(unknown(document, model.from_dict(document).to_dict()), [])

    def test_the_dockerfile_and_the_scripts(self):
        lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
        self.assertLessEqual(len(lines), 12)
        for line in lines:
            self.assertRegex(line, "^(FROM|RUN|COPY|WORKDIR|ENTRYPOINT|CMD) ")
        for script in (FOLDER / "slurm_enroot.sbatch", *(harness.REPOSITORY / "examples" / "slurm").iterdir()):
            subprocess.run(["bash", "-n", script], check=True)


class Commands(harness.FaultTest):
    """Two nodes of a cluster are two processes here."""

    def setUp(self):
        super().setUp()
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "bimetal").symlink_to(harness.BIMETAL)
        (programs / "torchrun").symlink_to(pathlib.Path(sys.executable).parent / "torchrun")
        self.environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "BIMETAL_TOKEN": "0123456789abcdef" * 2}
        self.job = self.write_job(train__epochs=2)

    def train_on_two(self, command, variables):
        nodes = [self.start(*command[1:], program=[command[0]], environment=variables(number)) for number in range(2)]
        for node in nodes:
            node.done()
        for folder in self.temporary.glob("torchelastic_*"):
            shutil.rmtree(folder)
        self.assertRegex(nodes[0].out, r"trained 32 steps in .*(?s:.*)\n +1  cpu")

    def test_kubeflows_runtime(self):
        runtime, job = documents("kubeflow.yaml")
        container, = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
        command = [str(self.job) if word.endswith("job.toml") else word for word in container["command"]]
        port = harness.free_port()
        self.train_on_two(command, lambda node: {
            "PET_NNODES": str(job["spec"]["trainer"]["numNodes"]), "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port)})

    def test_skypilots_task(self):
        task, = documents("skypilot.yaml")
        script = re.sub(r"--master-port \d+", f"--master-port {harness.free_port()}", task["run"])
        self.train_on_two(["bash", "-euc", script], lambda node: {
            "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1", "SKYPILOT_NODE_RANK": str(node), "SKYPILOT_NUM_GPUS_PER_NODE": "1",
            "SKYPILOT_NUM_NODES": str(task["num_nodes"])})


if __name__ == "__main__":
    unittest.main(verbosity=2)
