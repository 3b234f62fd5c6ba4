"""The byte alphabet of GPT-2's byte-level BPE: the printable character by which a vocabulary spells each byte."""

from __future__ import annotations

import functools

_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """Byte of each character of the alphabet: printable Latin-1 stands for itself, the rest counts up from U+0100."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(others)}


def bytes_of_token(token: str) -> bytes:
    """The bytes that a token stands for; a token with a character outside the alphabet stands for its own UTF-8."""
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[char] for char in token)
    except KeyError:
        return token.encode()
