"""A JSONL file of 1 GB: time to the first micro-batch, peak of the host's memory, and rows per second from then on.

    python benchmarks/large_file.py [--gigabytes 1] [--batches 64]

The file is generated in the temporary folder and deleted afterwards; nothing is taken from, or left in, a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

WORDS = (
    "the",
    "river",
    "city",
    "small",
    "moved",
    "carried",
    "between",
    "people",
    "because",
    "often",
    "water",
    "opened",
)


def write_rows(path: Path, size: int) -> int:
    """Alpaca rows of all lengths, ``size`` bytes in all; returns their number."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(5, 120))) for _ in range(4096)]
    rows = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            row = {"instruction": f"{rows}: {rng.choice(texts)}", "input": "", "output": rng.choice(texts)}
            written += file.write(json.dumps(row) + "\n")
            rows += 1
    return rows


def peak() -> float:
    """Most memory that this process held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main() -> None:
    """Print the figures as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--batches", type=int, default=64, help="Micro-batches to take after the first.")
    options = parser.parse_args()

    from tritune.data import Dataset, DataStream, RowEncoder, open_rows
    from tritune.model import load_text

    tokenizer, template = load_text()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITUNE_CACHE"] = str(Path(folder) / "cache")
        path = Path(folder) / "rows.jsonl"
        rows = write_rows(path, int(options.gigabytes * 1e9))
        before = peak()
        start = time.perf_counter()
        opened = open_rows(path)
        opened.verify()
        scanned = time.perf_counter() - start
        stream = DataStream(Dataset(opened, RowEncoder(tokenizer, template, 1024)), 1024, seed=0)
        next(stream)
        first = time.perf_counter() - start
        tokens, start = 0, time.perf_counter()
        for _ in range(options.batches):
            tokens += len(next(stream).tokens)
        seconds = time.perf_counter() - start
    figures = {
        "rows": rows,
        "gigabytes": options.gigabytes,
        "seconds_to_scan": round(scanned, 2),
        "seconds_to_first_batch": round(first, 2),
        "tokens_per_second_after": round(tokens / seconds),
        "peak_mb_before": round(before),
        "peak_mb": round(peak()),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
