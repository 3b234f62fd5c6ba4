"""The compiled extension: whether it is there, and how the backend on it is opened."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tritune.errors import ConfigError, DeviceError

from .threads import physical_cores

if TYPE_CHECKING:
    from .backend import CpuBackend

ISA_VARIABLE = "TRITUNE_CPU_ISA"
"""Environment variable that names the instruction set in the place of the best one."""
MAX_THREADS = 1024


@cache
def _import_native() -> tuple[Any, str | None]:
    try:
        return import_module("tritune.backends.cpu._native"), None
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError):
            found = "it was not built when tritune was installed"
        else:
            found = str(error).partition("\n")[0]
        way_out = "install a C++20 compiler (Debian: g++ python3-dev) and reinstall tritune"
        return None, f"the native CPU kernels are missing ({found}); {way_out}"


def native_problem() -> str | None:
    """None when the native kernels can be used, otherwise one line: what is missing and how to get it."""
    return _import_native()[1]


def supported_isas() -> list[str]:
    """Instruction sets that have kernels and that this machine can run, best first. Raises DeviceError."""
    return [str(name) for name in load_native().supported_isas()]


def load_native() -> Any:
    """The extension module. Raises DeviceError when it is missing."""
    module, problem = _import_native()
    if problem is not None:
        raise DeviceError(problem)
    return module


def open_cpu(threads: int | None = None, isa: str | None = None) -> CpuBackend:
    """Open the CPU backend.

    threads: how many threads compute (default: the physical cores that this process may use).
    isa: portable, avx2, avxvnni, avx512vnni or neon (default: TRITUNE_CPU_ISA, else the best that the machine can run).
    Raises ConfigError for a number or name that cannot be used, DeviceError when the extension is missing.
    """
    native = load_native()
    count = physical_cores() if threads is None else threads
    if not 1 <= count <= MAX_THREADS:
        raise ConfigError(f"threads: expected a number from 1 to {MAX_THREADS}, found {count}")
    known = supported_isas()
    asked = isa or os.environ.get(ISA_VARIABLE) or known[0]
    if asked not in known:
        source = "isa" if isa else ISA_VARIABLE
        raise ConfigError(f"{source}: expected one of {', '.join(known)}, which this machine can run, found {asked!r}")
    from .backend import CpuBackend

    return CpuBackend(native, count, asked)
