"""How many threads are worth having on this machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def physical_cores() -> int:
    """Cores that this process may run on, a core's hyperthreads counted once, within a container's quota; >= 1.

    Two threads of a core share its multipliers, so that more threads than cores only get in each other's way.
    """
    system = platform.system()
    if system == "Linux":
        count = _linux_cores()
    elif system == "Darwin":
        count = _apple_cores()
    else:
        count = (os.cpu_count() or 1) // 2 if (os.cpu_count() or 1) > 2 else os.cpu_count() or 1
    return max(1, count)


def _linux_cores() -> int:
    allowed = os.sched_getaffinity(0)
    cores: set[str] = set()
    for cpu in allowed:
        try:
            cores.add((_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(f"cpu{cpu}")
    return min(len(cores), _quota() or len(cores))


def _quota() -> int | None:
    """Whole processors of the container's quota; None without one."""
    try:
        limit, period = _QUOTA.read_text().split()
        return max(1, int(limit) // int(period))
    except (OSError, ValueError):  # no such file, or "max 100000": no quota
        return None


def _apple_cores() -> int:
    """The performance cores: the efficient ones would hold up every op."""
    for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
        try:
            found = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=True)
            return int(found.stdout)
        except (OSError, ValueError, subprocess.CalledProcessError):
            continue
    return os.cpu_count() or 1
