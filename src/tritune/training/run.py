"""train: from rows and settings to an adapter; and the loss of rows that are not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tritune.data import Data, Dataset, Item, RowEncoder, RowSet, folders_with, open_rows
from tritune.errors import ConfigError, DataError, OutOfMemoryError
from tritune.lora import Adapter, AdapterPool, LoRAConfig
from tritune.lora.types import Floats
from tritune.model import Model
from tritune.models.training_state import TrainingState
from tritune.training.checkpoint import Checkpoint, checkpoint_path
from tritune.training.config import Method, TrainConfig
from tritune.training.dpo import PreferenceObjective
from tritune.training.events import Callback
from tritune.training.heldout import HeldOut
from tritune.training.log import JsonlLog
from tritune.training.memory import SHARE, fitting_tokens, free_memory
from tritune.training.objective import Objective, SupervisedObjective
from tritune.training.resume import check_same, clear_output, find_checkpoint, settings_of
from tritune.training.run_folder import write_run_folder
from tritune.training.trainer import Plan, Trainer


def train(
    model: Model,
    data: Data,
    lora: LoRAConfig | None = None,
    config: TrainConfig | None = None,
    *,
    adapter: Adapter | None = None,
    eval_data: Data | None = None,
    output: str | Path | None = None,
    resume: str | Path | Literal["auto"] | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Adapter:
    """Fine-tune a model with LoRA and return the adapter: the one with the lowest loss on the held-out rows, or
    without such rows the last one.

    Args:
        model: The base; it is not changed.
        data: Files, folders, data sets or rows, as ``tritune.data.open_rows`` takes them. They are read and tokenised
            as their turn comes.
        lora: The settings of a fresh adapter.
        config: The settings of the run.
        adapter: One to start from, in the place of ``lora``; a copy of it is trained.
        eval_data: Held-out rows, as ``data`` (or ``config.eval_split`` of data). Left out: the ``valid`` file of a
            folder that has one.
        output: A folder. It gets the adapter that is returned, at the end and on Ctrl-C (which raises
            KeyboardInterrupt); checkpoints (the newest ``config.keep``, and the best); log.jsonl, config.yaml and
            environment.json.
        resume: A checkpoint to go on from, or ``auto``: the newest one in output, or from the beginning if there is
            none. On a CPU a resumed run ends with the same bits as one that was never stopped.
        overwrite: Remove the checkpoints of another run that are in output.
        callbacks: They are told what happens; see ``tritune.training.Callback``.

    Raises:
        DataError: Rows cannot be read or used.
        ConfigError: A setting has a value that cannot be used.
        AdapterError: The adapter to start from does not fit, or a checkpoint is damaged.
        TrainingError: The gradient was not finite three steps in a row.
    """
    if adapter is not None and lora is not None:
        raise ConfigError("give either an adapter to start from or a LoRAConfig, not both")
    config = config or TrainConfig()
    if config.start_layer >= model.config.num_layers:
        raise ConfigError(f"start_layer {config.start_layer}: the model has layers 0 … {model.config.num_layers - 1}")
    if eval_data is None and not config.eval_split:
        eval_data = folders_with(data, "valid") or None
    folder = None if output is None else Path(output)
    checkpoint, notes = find_checkpoint(model, resume, folder)
    dataset, held_out, about_rows = _all_examples(model, data, eval_data, config)
    if checkpoint is not None:
        trained = checkpoint.adapter
    else:
        trained = adapter.copy() if adapter is not None else Adapter.create(model, lora, seed=config.seed)
    config, pool, state, about_memory = _training_state(model, trained, dataset, held_out, config)
    given = lora or (None if adapter is None else adapter.config) or (trained.config if checkpoint is None else None)
    settings = settings_of(model, given, config, dataset, held_out, adapter)
    if checkpoint is not None:
        settings, about_resume = check_same(checkpoint, settings)
        notes += about_resume
    if folder is not None:
        clear_output(folder, checkpoint, overwrite=overwrite or resume == "auto")
    notes += [*about_rows, *about_memory]
    plan = Plan(model, trained, dataset, held_out, config, folder, settings, notes, checkpoint)
    objective = _objective(model, state, adapter, config)
    trainer = Trainer(plan, pool, objective, [*([JsonlLog(folder)] if folder else []), *callbacks])
    trainer.best = _best(checkpoint, model)
    if folder is not None:
        lora = given or trained.config
        resumed = checkpoint is not None
        write_run_folder(folder, model, data, eval_data, adapter, lora, config, resumed=resumed)
    return trainer.run()


def mean_loss(model: Model, adapter: Adapter, data: Data, config: TrainConfig | None = None) -> float:
    """Loss per trained token of rows, without training: of held-out rows, say. Raises DataError, ConfigError."""
    config = config or TrainConfig()
    examples, _ = _held_out(model, _checked(open_rows(data, "test"), "sft"), replace(config, method="sft"))
    held_out = HeldOut(examples, config.batch_tokens)
    _, state = model.training_state(adapter, _padded(sum(map(len, examples)), config.batch_tokens))
    state.clear()
    return held_out.loss(SupervisedObjective(state))[0]


def _all_examples(
    model: Model, data: Data, eval_data: Data | None, config: TrainConfig
) -> tuple[Dataset, list[Item], list[str]]:
    """What is trained on, held-out examples, and notes about held-out rows that were cut or left out."""
    rows = _checked(open_rows(data), config.method)
    rows.verify()
    if eval_data is not None and config.eval_split:
        raise ConfigError("give either eval_data or eval_split, not both: which rows are held out?")
    measured: RowSet | None = None
    if config.eval_split:
        rows, measured = rows.hold_out(config.eval_split, config.seed)
    elif eval_data is not None:
        measured = _checked(open_rows(eval_data, "valid"), config.method)
    dataset = Dataset(rows, _encoder(model, config))
    if measured is None:
        return dataset, [], []
    examples, notes = _held_out(model, measured, config)
    return dataset, examples, [f"held-out rows: {note}" for note in notes]


def _checked(rows: RowSet, method: Method) -> RowSet:
    """The rows, if they are of the kind that a method trains. Raises DataError."""
    if rows.is_preference and method != "dpo":
        raise DataError(f"{rows.name}: rows of pairs (chosen, rejected) are trained with method dpo, not {method}")
    if method == "dpo" and not rows.is_preference:
        raise DataError(f"{rows.name}: method dpo trains rows of pairs; expected chosen and rejected in each")
    return rows


def _held_out(model: Model, rows: RowSet, config: TrainConfig) -> tuple[list[Item], list[str]]:
    """All examples of held-out rows, and notes about rows that were cut or left out."""
    dataset = Dataset(rows, _encoder(model, config), cache=False)
    examples = [item for index in range(len(dataset)) for item in dataset[index]]
    if not examples:
        raise dataset.nothing_to_train()
    return examples, dataset.notes()


def _encoder(model: Model, config: TrainConfig) -> RowEncoder:
    micro = config.micro_batch_tokens or config.batch_tokens
    if config.method == "dpo":
        micro //= 2  # a pair stays together
    limit = min(config.max_seq_len, micro, model.context_length)
    return RowEncoder(model.tokenizer, model.template, limit, config.prompt_style, config.system, config.train_on)


def _objective(model: Model, state: TrainingState, start: Adapter | None, config: TrainConfig) -> Objective:
    """The loss of a run. Of dpo the reference is what the run starts from: an adapter's frozen copy, or the base."""
    if config.method == "sft":
        return SupervisedObjective(state)
    reference = None if start is None else AdapterPool.for_adapters(model.backend, [start])
    return PreferenceObjective(state, reference, config.dpo_beta, config.dpo_label_smoothing)


def _padded(total: int, tokens: int) -> int:
    """Rows of a micro-batch's buffers: ``tokens``, or fewer where all examples together have fewer."""
    return min(tokens, -(-total // 8) * 8)


def _training_state(
    model: Model, adapter: Adapter, dataset: Dataset, held_out: Sequence[Item], config: TrainConfig
) -> tuple[TrainConfig, AdapterPool, TrainingState, list[str]]:
    """Buffers for the largest micro-batches that fit, the settings with their size in it, and a note if it is not
    the one asked for."""
    held = sum(map(len, held_out))

    def longest() -> int:
        return max([dataset.longest(), *map(len, held_out)])

    tokens = config.micro_batch_tokens or _tokens_on_host(model, adapter, longest, config)
    while True:
        try:
            pool, state = model.training_state(
                adapter,
                _padded(dataset.tokens_up_to(tokens) + held, tokens),
                start_layer=config.start_layer,
                recompute=config.recompute,
                dropout=adapter.config.dropout,
                own_b_settings=config.lora_plus_ratio != 1,
                noisy=config.neftune_alpha > 0,
                exclusive=True,  # a callback may compute a loss of its own in the middle of the run
            )
            break
        except OutOfMemoryError:
            if config.micro_batch_tokens or tokens <= (least := longest()):
                raise
            tokens = max(least, -(-tokens // 2))
    notes: list[str] = []
    if tokens != (config.micro_batch_tokens or config.batch_tokens):
        notes = [f"batch_tokens {config.batch_tokens}: more than the memory holds at once, so in parts of {tokens}"]
    return replace(config, micro_batch_tokens=tokens), pool, state, notes


def _tokens_on_host(model: Model, adapter: Adapter, longest: Callable[[], int], config: TrainConfig) -> int:
    """Tokens of a micro-batch; on a device of its own memory, what was asked for is tried first."""
    free = free_memory() if model.backend.name in ("cpu", "numpy") else None
    if free is None:
        return config.batch_tokens
    return fitting_tokens(
        model.config,
        adapter,
        config.batch_tokens,
        longest,
        int(SHARE * free),
        recompute=config.recompute,
        floats=model.device_model.floats,
    )


def _best(checkpoint: Checkpoint | None, model: Model) -> Floats | None:
    """The parameters with the lowest held-out loss so far, of a run that goes on."""
    if checkpoint is None or checkpoint.progress.best_step < 0:
        return None
    return Adapter.load(checkpoint_path(checkpoint.path.parent, checkpoint.progress.best_step), model).parameters
