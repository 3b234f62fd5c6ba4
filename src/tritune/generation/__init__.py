"""Drawing tokens: settings, and the engine that knows token ids only."""

from tritune.generation.engine import Engine, FinishReason, Token
from tritune.generation.engines import Engines
from tritune.generation.settings import GenerationSettings

__all__ = ["Engine", "Engines", "FinishReason", "GenerationSettings", "Token"]
