"""A lock that the system gives back when its holder dies."""

from __future__ import annotations

import sys
from typing import IO

if sys.platform == "win32":
    import msvcrt

    def lock(file: IO[bytes]) -> bool:
        """Lock an open file for this process until it is closed; False when another process holds it."""
        try:
            # Far behind the content: locked bytes cannot be read by others.
            file.seek(1 << 62)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def lock(file: IO[bytes]) -> bool:
        """Lock an open file for this process until it is closed; False when another process holds it."""
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
