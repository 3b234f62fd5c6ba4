"""``tritune info``: the devices that are there, and the facts of a model and of an adapter."""

from __future__ import annotations

import json
from typing import Any

import click

from tritune.cli.options import model_option, template_option
from tritune.errors import ConfigError


@click.command()
@model_option
@click.option("-a", "--adapter", metavar="PATH", help="Show this adapter; with --model, check that it fits the model.")
@template_option
@click.option("--tune", is_flag=True, help="Measure for 20 seconds which kernel sizes suit a GPU, and keep them.")
@click.option("--device", help="With --tune: webgpu, webgpu:1 or webgpu:NAME.  [default: the best GPU]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(
    model: str | None, adapter: str | None, chat_template: str | None, tune: bool, device: str | None, as_json: bool
) -> None:
    """Show the devices, and the facts of a model (--model) and an adapter (--adapter).

    `--model built-in` shows the built-in model. `--tune` changes how fast a GPU is, never what it computes.
    """
    from tritune.cli.adapter_facts import adapter_facts
    from tritune.cli.facts import device_facts, model_facts, opened_model
    from tritune.cli.tuning import tuned

    if device is not None and not tune:
        raise ConfigError(f"--device {device}: info takes it with --tune only")
    timings = tuned(device) if tune else None
    opened = None if model is None else opened_model(model, progress=not as_json)
    facts: dict[str, Any] = {"devices": device_facts()}
    if opened is not None:
        facts["model"] = model_facts(opened, chat_template)
    if adapter is not None:
        facts["adapter"] = adapter_facts(adapter, opened)
    if timings is not None:
        facts["tuning"] = timings
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else "\n\n".join(_sections(facts)))


def _sections(facts: dict[str, Any]) -> list[str]:
    sections = [_devices(facts["devices"])]
    sections += [table(name, facts[name]) for name in ("model", "adapter") if name in facts]
    if "tuning" in facts:
        from tritune.cli.tuning import tuning_text

        sections.append(tuning_text(facts["tuning"]))
    return sections


def _devices(devices: dict[str, Any]) -> str:
    lines = ["devices"]
    for gpu in devices["adapters"]:
        lines.append(f"  {gpu['device']}  {gpu['name']} ({gpu['kind']}, {gpu['backend']})")
        lines.append(f"    driver: {gpu['driver'] or 'unknown'}")
        lines.append(
            f"    largest buffer {_size(gpu['max_buffer_bytes'])}, largest binding {_size(gpu['max_binding_bytes'])}, "
            f"subgroups {_yes(gpu['subgroups'])}, f16 {_yes(gpu['f16'])}"
        )
        lines.append(f"    tuning: {gpu['tuning_problem'] or gpu['tuning'] or 'none (tritune info --tune makes one)'}")
    cpu = devices["cpu"]
    if cpu["problem"] is None:
        lines.append(f"  cpu       native kernels for {cpu['instruction_sets'][0]}, {cpu['threads']} threads")
    else:
        lines.append(f"  cpu       through NumPy, slowly: {cpu['problem']}")
    lines.append("  numpy     the plain definitions")
    lines.append(f"  auto takes {devices['auto']}: {devices['why']}")
    return "\n".join(lines)


def table(title: str, facts: dict[str, Any]) -> str:
    """Facts for people, one a line."""
    shown = {name.replace("_", " "): _text(name, value) for name, value in facts.items() if value is not None}
    width = max(map(len, shown))
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in shown.items())])


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _yes(value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if name == "norms":
        return norms_text(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    if isinstance(value, int):
        return _size(value) if name.endswith("bytes") else f"{value:,}"
    return str(value)


def norms_text(norms: dict[str, float]) -> str:
    """Norms by module as their mean for each projection, and the whole."""
    by_name: dict[str, list[float]] = {}
    for path, norm in norms.items():
        by_name.setdefault(path.rpartition(".")[2], []).append(norm)
    means = [f"{name} {sum(values) / len(values):.4g}" for name, values in by_name.items()]
    whole = sum(norm * norm for norm in norms.values()) ** 0.5
    return f"{', '.join(means)} (means over the layers of ‖s·B·A‖); all {whole:.4g}"


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:,} bytes"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
