"""The trackers. Each begins a run when it is made, and says ``where`` that is; its own variables (WANDB_…, MLFLOW_…, TRACKIO_…) hold as
in any script. Without a network or an account they write to this machine's disk."""

from __future__ import annotations

import netrc
import os
import urllib.parse
from typing import Any

from bimetal.trackers.figures import Figures

_PROJECT = "bimetal"


def _name_of(task: dict[str, Any]) -> str:
    """The run's: the folder of its checkpoints, or its model."""
    return os.path.basename(os.path.normpath(task["folder"])) if task["folder"] else task["job"]["model"]["name"] or "run"


class Trackio:
    def __init__(self, task: dict[str, Any]):
        import trackio

        self._trackio = trackio
        project = os.environ.get("TRACKIO_PROJECT", _PROJECT)
        self._run = trackio.init(project=project, name=f"{_name_of(task)}-{os.getpid()}", config=task["job"], embed=False)
        self.where = f"{self._run.name}; look at it with: trackio show --project {project}"

    def figures(self, several: list[Figures]) -> None:
        for one in several:
            self._run.log(one.values, step=one.step)

    def words(self, step: int, title: str, text: str, level: str) -> None:
        levels = self._trackio.AlertLevel
        self._run.alert(title, text, levels.WARN if level == "warn" else levels.INFO, step=step)

    def checkpoint(self, step: int, path: str) -> None:
        self._run.log_artifact(path, name="checkpoint", type="model", aliases=[f"step-{step}"])

    def end(self, how: str) -> None:
        self._run.finish()


class WandB:
    def __init__(self, task: dict[str, Any]):
        import wandb

        options: dict[str, Any] = {"project": os.environ.get("WANDB_PROJECT", _PROJECT), "config": task["job"],
                                   "name": os.environ.get("WANDB_NAME", _name_of(task))}
        if "WANDB_DIR" not in os.environ and task["folder"]:
            options["dir"] = task["folder"]
        if "WANDB_MODE" not in os.environ and not _knows_account():
            options["mode"] = "offline"
        self._wandb = wandb
        try:
            self._run = wandb.init(**options)
        except wandb.Error:
            if options.get("mode") == "offline" or os.environ.get("WANDB_MODE", "online") != "online":
                raise
            self._run = wandb.init(**options, mode="offline")  # nobody answers
        self.where = self._run.url if not self._run.offline else f"without a network, in {self._run.dir}; later: wandb sync"

    def figures(self, several: list[Figures]) -> None:
        for one in several:
            self._run.log(one.values, step=one.step)

    def words(self, step: int, title: str, text: str, level: str) -> None:
        self._run.alert(title=title[:63], text=text, level=self._wandb.AlertLevel.WARN if level == "warn" else self._wandb.AlertLevel.INFO)

    def checkpoint(self, step: int, path: str) -> None:
        artifact = self._wandb.Artifact(f"checkpoint-{self._run.id}", type="model", metadata={"step": step})
        artifact.add_dir(path)
        self._run.log_artifact(artifact, aliases=[f"step-{step}", "latest"])

    def end(self, how: str) -> None:
        self._run.finish(exit_code=1 if how == "failed" else 0)


def _knows_account() -> bool:
    """Without one wandb asks at the terminal."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


class MLflow:
    _MOST, _MOST_METRICS = 100, 1000  # parameters in one call, and metrics

    def __init__(self, task: dict[str, Any]):
        import mlflow
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        self._run = client.create_run(number, run_name=_name_of(task)).info.run_id
        self._notices = ""
        parameters = [Param(f"{section}.{key}", str(value)) for section, keys in task["job"].items() for key, value in keys.items()]
        for first in range(0, len(parameters), self._MOST):
            client.log_batch(self._run, params=parameters[first:first + self._MOST])
        self.where = f"run {self._run} at {mlflow.get_tracking_uri()}"

    def figures(self, several: list[Figures]) -> None:
        metrics = [self._metric(name, value, int(one.at * 1000), one.step) for one in several for name, value in one.values.items()]
        for first in range(0, len(metrics), self._MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first:first + self._MOST_METRICS])

    def words(self, step: int, title: str, text: str, level: str) -> None:
        """MLflow has no alerts: the last one is a tag, and all are a file."""
        self._notices += f"step {step}: {title}: {text}\n"
        self._client.set_tag(self._run, f"bimetal.{title}", text)
        self._client.log_text(self._run, self._notices, "notices.txt")

    def checkpoint(self, step: int, path: str) -> None:
        self._client.log_artifacts(self._run, path, f"checkpoints/{os.path.basename(path)}")

    def end(self, how: str) -> None:
        self._client.set_terminated(self._run, {"failed": "FAILED", "finished": "FINISHED"}.get(how, "KILLED"))


KINDS = {"mlflow": MLflow, "trackio": Trackio, "wandb": WandB}
