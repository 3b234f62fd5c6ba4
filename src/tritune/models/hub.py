"""Download of models from the Hugging Face Hub: data files only, never code or pickles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tritune.errors import ModelFileError

MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

# Weights, configs and tokenizer files of the repository's top folder.
ALLOWED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
IGNORED = ["*/*"]


def is_model_id(text: str) -> bool:
    """Whether a text has the form ``org/name``."""
    return MODEL_ID.fullmatch(text) is not None and ".." not in text


def download(model_id: str, *, progress: bool = True) -> Path:
    """Download ``org/name``, or find it in the local cache, and return its directory.

    Raises ModelFileError when there is no such model, when it needs a login, or when the Hub cannot be reached and the
    model is not in the cache.
    """
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    bars: dict[str, Any] = {} if progress else {"tqdm_class": _silent_bar()}
    try:
        return Path(snapshot_download(model_id, allow_patterns=ALLOWED, ignore_patterns=IGNORED, **bars))
    except GatedRepoError:
        problem = "access to it must be requested on its page, then log in with `hf auth login`"
    except RepositoryNotFoundError:
        problem = "no such file or directory here, and no such model on the Hugging Face Hub (or it is private)"
    except LocalEntryNotFoundError:
        problem = "not in the local cache, and the Hugging Face Hub cannot be reached"
    except HFValidationError:
        problem = "not a valid model id (org/name)"
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        problem = "download failed: " + (" ".join(str(error).split()) or type(error).__name__)
    raise ModelFileError(f"{model_id}: {problem}")


def _silent_bar() -> type[Any]:
    """A progress bar that shows nothing."""
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):  # pyright: ignore[reportMissingTypeArgument]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return Silent
