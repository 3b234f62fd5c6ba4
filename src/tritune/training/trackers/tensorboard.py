"""TensorBoard: an event file in the run's folder; ``tensorboard --logdir RUN`` shows it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_proto = "tensorboard.compat.proto."
_events: Any = import_module(_proto + "event_pb2")
_summary: Any = import_module(_proto + "summary_pb2")
_tensor: Any = import_module(_proto + "tensor_pb2")
_types: Any = import_module(_proto + "types_pb2")
_writer: Any = import_module("tensorboard.summary.writer.event_file_writer")


class TensorBoardTracker:
    """See Tracker. Written through TensorBoard's own writer, which needs neither TensorFlow nor torch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Any = None

    def start(self, config: Mapping[str, Any], step: int) -> None:
        self._file = _writer.EventFileWriter(str(self._folder))
        if step:  # TensorBoard forgets what the stopped run told about later steps
            self._add(step + 1, session_log=_events.SessionLog(status=_events.SessionLog.START))
        text = "    " + json.dumps(dict(config), indent=2, default=str).replace("\n", "\n    ")  # Markdown's code
        kind = _summary.SummaryMetadata.PluginData(plugin_name="text")
        value = _summary.Summary.Value(
            tag="config/text_summary",
            metadata=_summary.SummaryMetadata(plugin_data=kind),
            tensor=_tensor.TensorProto(dtype=_types.DT_STRING, string_val=[text.encode()]),
        )
        self._add(step, summary=_summary.Summary(value=[value]))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        items = [_summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=_summary.Summary(value=items))
        self._file.flush()  # a killed run keeps its curves

    def finish(self) -> None:
        if self._file is not None:
            self._file.close()

    def _add(self, step: int, **what: Any) -> None:
        self._file.add_event(_events.Event(step=step, wall_time=time.time(), **what))
