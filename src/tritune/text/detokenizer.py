"""Token ids to text, one at a time, without ever showing half a character."""

from __future__ import annotations

import codecs

from tritune.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns the tokens of one answer into pieces of text whose sum is ``tokenizer.decode`` of all of them.

    Byte-level vocabularies: the bytes go through an incremental UTF-8 decoder, O(1) a token. Others, whose pieces
    depend on their neighbours: the last few tokens are decoded again, from the last token that was shown; the sum then
    equals the whole as long as the bytes are UTF-8.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._window: list[int] = []  # tokens of a vocabulary that is not byte-level: shown context, then unshown ones
        self._shown = 0  # how many tokens of the window were shown

        self._waiting = 0  # how many tokens in a row ended inside of a character

    def push(self, token_id: int) -> str:
        """The text that is certain now that ``token_id`` has come: often a word, empty in the middle of a character."""
        added = self._tokenizer.token_bytes(token_id, self._skip_special)
        if added is not None:
            return self._utf8.decode(added)
        self._window.append(token_id)
        piece = self._unshown()
        # A character has four bytes at most: three tokens may wait for more, a fourth shows that they are broken.
        self._waiting = self._waiting + 1 if piece.endswith(_REPLACEMENT) else 0
        if 0 < self._waiting < 4:
            return ""
        if piece:
            self._advance()
        return piece

    def flush(self) -> str:
        """What remains at the end: U+FFFD for a character that was never finished."""
        piece = self._utf8.decode(b"", final=True) + self._unshown()
        self._window, self._shown = [], 0
        return piece

    def _unshown(self) -> str:
        before = self._tokenizer.decode(self._window[: self._shown], self._skip_special)
        return self._tokenizer.decode(self._window, self._skip_special)[len(before) :]

    def _advance(self) -> None:
        self._waiting = 0
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
