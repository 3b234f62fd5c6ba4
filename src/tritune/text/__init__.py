"""Text at the edges: tokenizer, chat template, incremental detokenizer, stop strings."""

from tritune.text.detokenizer import Detokenizer
from tritune.text.stops import StopStrings, cut_at_stop
from tritune.text.template import ChatTemplate, Message
from tritune.text.tokenizer import Tokenizer
from tritune.text.turns import EncodedTurns, encode_chat, encode_turns

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "EncodedTurns",
    "Message",
    "StopStrings",
    "Tokenizer",
    "cut_at_stop",
    "encode_chat",
    "encode_turns",
]
