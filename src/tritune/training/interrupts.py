"""Ctrl-C between two micro-batches, so that what a run saves then is the state after a whole step."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupts:
    """While it is entered, the first SIGINT is remembered and ``check`` raises KeyboardInterrupt; a second one raises
    at once, wherever the program is.

    Does nothing in another thread than the main one, or where the program has a SIGINT handler of its own.
    """

    def __init__(self) -> None:
        self.at_once = False
        """It was asked for twice: what the program was doing is half done."""
        self._asked = False
        self._installed = False

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._ask)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            self.at_once = True
            signal.default_int_handler(number, frame)
        self._asked = True

    def check(self) -> None:
        """Raises KeyboardInterrupt if the user has asked for an end."""
        if self._asked:
            raise KeyboardInterrupt
