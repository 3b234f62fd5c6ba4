#!/usr/bin/env bash
# The whole training on one GPU. usage: run.sh SOURCE OUT SECONDS   (1300 on an H200: 1.07 G tokens)
set -euo pipefail
source=$(realpath "$1") out=$(realpath -m "$2")
work=$(mktemp -d "${TMPDIR:-/dev/shm}/student.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir -p "$out"
# exec: what is killed at the end is the packer itself, which would wait for the trainer for ever.
(python3 corpus.py "$source" "$work" && exec python3 pack.py "$source" "$work" 45) >"$out/corpus.log" 2>&1 &
python3 train.py "$work" "$out" "$3" 2>&1 | tee "$out/train.log"
cp "$work/val.npz" "$out/"
