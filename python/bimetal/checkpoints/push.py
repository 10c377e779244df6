"""Brings a folder to a repository of a Hugging Face hub, by the library and the login that its users have."""

from __future__ import annotations

import pathlib
from typing import Any

from bimetal._errors import error

_CARD = "README.md"


def push(folder: pathlib.Path, repo: str, private: bool) -> tuple[str, list[str]]:
    """Makes the repository where there is none yet, and commits the folder's files in one go.

    Args:
        repo: USER/NAME, or NAME for the user who is logged in.
        private: of a repository that is new.

    Returns: where it is now, and the files that were brought.

    Raises:
        bimetal.Error: ``unsupported`` without the library, ``invalid_argument`` for an invalid name of a repository,
            ``unauthorized`` where the hub lets nobody in, ``peer_lost`` where none answers.
    """
    hub = _library()
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    try:
        api = hub.HfApi(library_name="bimetal")
        made = api.create_repo(repo, private=private, exist_ok=True, repo_type="model")
        card = None if _CARD in files or _has_card(api, made.repo_id) else _card(folder, made.repo_id)
        commit = api.create_commit(made.repo_id, _additions(hub, folder, files, card), repo_type="model",
                                   commit_message="Weights trained with Bimetal")
    except hub.errors.HFValidationError as bad:
        raise error(f"'{repo}' is no name of a repository: {bad}", "invalid_argument") from bad
    except (hub.errors.LocalTokenNotFoundError, hub.errors.HfHubHTTPError) as bad:
        raise _refused(hub, repo, bad) from bad
    except (OSError, RuntimeError, hub.errors.OfflineModeIsEnabled) as bad:
        raise error(f"cannot bring {folder} to {repo}: {bad}", "system") from bad
    except Exception as bad:  # of the HTTP library that the hub's has in this version
        if type(bad).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "requests", "urllib3"):
            raise error(f"no hub answers at {hub.constants.ENDPOINT}: {bad}", "peer_lost") from bad
        raise
    return commit.commit_url, files


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as missing:
        raise error("--push needs the package huggingface_hub: pip install huggingface_hub, then `hf auth login`",
                    "unsupported") from missing
    return huggingface_hub


def _has_card(api: Any, repo: str) -> bool:
    return bool(api.file_exists(repo, _CARD))


def _additions(hub: Any, folder: pathlib.Path, files: list[str], card: bytes | None) -> list[Any]:
    added = [hub.CommitOperationAdd(name, folder / name) for name in files]
    return added if card is None else [hub.CommitOperationAdd(_CARD, card), *added]


def _card(folder: pathlib.Path, repo: str) -> bytes:
    """The text that a hub shows first. One that is there already is its owner's."""
    transformers = (folder / "config.json").is_file()
    kind = "library_name: transformers\npipeline_tag: text-generation\n" if transformers else "library_name: pytorch\n"
    use = (f'AutoModelForCausalLM.from_pretrained("{repo}")' if transformers else
           'safetensors.torch.load_file("model.safetensors")')
    return (f"---\n{kind}tags:\n- bimetal\n---\n\n# {repo.partition('/')[2] or repo}\n\nTrained with Bimetal.\n\n"
            f"```python\n{use}\n```\n").encode()


def _refused(hub: Any, repo: str, bad: Exception) -> Exception:
    response = getattr(bad, "response", None)
    status = getattr(response, "status_code", 0)
    if isinstance(bad, hub.errors.LocalTokenNotFoundError) or status in (401, 403):
        return error(f"the hub does not let this login write to {repo}: `hf auth login`, or HF_TOKEN, with a token that may "
                     f"write ({bad})", "unauthorized")
    return error(f"the hub has refused {repo}: {bad}", "system")
