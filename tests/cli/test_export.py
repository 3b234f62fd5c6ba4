"""``tritune export``: the words and the figures, and that a ternary export is refused."""

from __future__ import annotations

from pathlib import Path

import tritune
from command_line import Cli


def test_the_export_says_what_it_is(cli: Cli, tiny: Path, model: tritune.Model, adapter: Path, tmp_path: Path) -> None:
    command = ("export", "-m", tiny, "--adapter", f"{adapter}=0.5", "-o", tmp_path / "dense", "--device", "numpy")
    refused = cli(*command).error
    assert "a ternary export is refused" in refused
    assert "Give --dense" in refused
    assert not (tmp_path / "dense").exists()
    shown = cli(*command, "--dense")
    assert shown.code == 0, shown.err
    done = tritune.export_dense(model, tmp_path / "again", [(tritune.Adapter.load(adapter, model), 0.5)])
    lines = shown.out.splitlines()
    assert lines[0] == f"model: {tmp_path / 'dense'} ({done.nbytes / 2**20:.1f} MiB of weights)"
    assert "no longer ternary" in lines[1]
    assert f"by {done.difference:.2%} (the largest by {done.largest:.3g})" in lines[2]
    assert lines[3] == f"Leaving the adapter out changes them by {done.adapter_effect:.2%}."
    assert "is there already" in cli(*command, "--dense").error
    assert "a dense export of tritune" in cli("generate", "-m", tmp_path / "dense", "-p", "hi").error
