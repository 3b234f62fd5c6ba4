"""Opening a model by path or by id, and its download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from tiny_models import PROJECTIONS, make_hf
from tritune.errors import ModelFileError
from tritune.models import hub
from tritune.models.weights import open_model

BUILT_IN = Path(__file__).parents[2] / "src" / "tritune" / "assets" / "tritune-stories-45m"


@pytest.mark.parametrize(
    "name", ["none", "/none/at/all", "a/b/c", "../x", "./a/b", "a//b", "", "-a/b", "a/..", "a b/c"]
)
def test_what_is_neither_a_path_nor_an_id_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "download", lambda *_, **__: pytest.fail("tried to download"))
    message = "config.json" if name == "" else "no such file or directory, and not a model id"
    with pytest.raises(ModelFileError, match=message):
        open_model(name)


def test_a_path_is_never_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "download", lambda *_, **__: pytest.fail("tried to download"))
    with pytest.raises(ModelFileError, match="not a model id"):
        open_model(Path("org/name"))
    monkeypatch.chdir(tmp_path)
    make_hf(tmp_path / "org" / "name")
    assert open_model("org/name").config.vocab_size == 300


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(ModelFileError, match=r"expected a model directory or a \.gguf file"):
        open_model(path)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json: no such file"):
        open_model(tmp_path)


def test_an_id_is_downloaded_without_code_or_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_hf(tmp_path)
    asked: dict[str, Any] = {}

    def snapshot_download(model_id: str, **options: Any) -> str:
        asked.update(options, model_id=model_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    source = open_model("org/na.me_1-b")
    assert source.config.name == asked["model_id"] == "org/na.me_1-b"
    files = [
        "config.json", "tokenizer.json", "tokenizer.model", "model-00001-of-00002.safetensors", "chat_template.jinja",
        "pytorch_model.bin", "modeling.py", "model.pt", "model.ckpt", "original/config.json", "m.gguf", "README.md",
    ]  # fmt: skip
    kept = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(kept) == files[:5]


def test_progress_can_be_silenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_hf(tmp_path)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda _, **o: asked.update(o) or str(tmp_path))
    open_model("org/name", progress=True)
    assert "tqdm_class" not in asked
    open_model("org/name", progress=False)
    assert asked["tqdm_class"](total=3).disable


def test_without_a_network_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelFileError, match="org/name: not in the local cache, and the Hugging Face Hub") as caught:
        open_model("org/name")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not BUILT_IN.is_dir(), reason="the built-in model is not there")
def test_the_built_in_model_is_balanced() -> None:
    source = open_model(BUILT_IN)
    assert (source.config.hidden_size, source.config.num_layers, source.config.activation) == (512, 12, "relu2")
    assert source.embedding().dtype == "bf16" and source.head() is None
    layer = source.layer(11)
    for projection in PROJECTIONS:
        matrix = getattr(layer, projection)
        assert 0.2 < np.mean(matrix.codes == 0) < 0.7
        assert 0.001 < matrix.scale < 1
