"""Engines: the engines of a model, for the base and for one adapter at a time, over one cache."""

from __future__ import annotations

from typing import Literal
from weakref import WeakSet

from tritune.generation.engine import Engine
from tritune.lora import Adapter, AdapterPool
from tritune.models.bitnet import BitNet
from tritune.models.cache import BLOCK_SIZE, KVCache
from tritune.models.inference import InferenceState

PREFILL_ROWS = 4096
"""Most rows of a prompt that go through the model at once; a device may want fewer (Backend.prefill_rows)."""


class Engines:
    """Makes an engine on first use. The cache has room for one sequence of the whole context, so one engine at a time
    holds keys and values; another one's streams feed their text again when they are read on."""

    def __init__(self, model: BitNet, context_length: int, kv_dtype: Literal["f16", "f32"]) -> None:
        self.model = model
        self.context_length = context_length
        self._kv_dtype: Literal["f16", "f32"] = kv_dtype
        self._cache: KVCache | None = None
        self._engines: dict[str, Engine] = {}  # by the adapter's content, "" for the base
        self._alive: WeakSet[Engine] = WeakSet()  # also those that were dropped while a stream of theirs is being read

    @property
    def cache(self) -> KVCache:
        """The cache that all engines share; made on first use."""
        if self._cache is None:
            blocks = -(-self.context_length // BLOCK_SIZE)
            self._cache = KVCache(self.model.backend, self.model.config, blocks, self._kv_dtype)
        return self._cache

    def get(self, adapter: Adapter | None) -> Engine:
        """The engine of an adapter (None: the base); of several adapters only the last one's is kept."""
        key = "" if adapter is None else adapter.content_key()
        if key not in self._engines:
            for stale in [k for k in self._engines if k and key]:
                del self._engines[stale]
            self._engines[key] = self._make(adapter)
        engine = self._engines[key]
        self._make_room(engine)
        return engine

    def clear(self) -> None:
        """Drop the engines and the cache."""
        self._engines.clear()
        self._cache = None

    def _make(self, adapter: Adapter | None) -> Engine:
        model = self.model
        pool = None if adapter is None else AdapterPool.for_adapters(model.backend, [adapter], rounded=not model.floats)
        rows = min(PREFILL_ROWS, model.backend.prefill_rows, self.context_length)
        state = InferenceState(model, self.cache, max_rows=rows, adapters=pool)
        slot = 0 if adapter is None else 1
        engine = Engine(state, slot=slot, context=self.context_length, make_room=self._make_room)
        self._alive.add(engine)
        return engine

    def _make_room(self, engine: Engine) -> None:
        for other in self._alive:
            if other is not engine:
                other.sequence.truncate(0)
