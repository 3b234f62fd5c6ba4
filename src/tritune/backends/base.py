"""The seam between the model and a device: buffers, weight handles, ops and programs.

A backend provides everything that is declared here, and nothing above it knows which device it runs on. All ops write
into buffers that the caller made (so that nothing is allocated in a token or step loop); outputs are ``=`` unless
the docstring says ``+=``. Shapes: T rows of a batch, D hidden size, F feed-forward size, H query heads, G key/value
heads, d head size, N outputs and K inputs of a linear, V vocabulary, R rows given to the head, S sequences.

**Rows.** A batch is T rows (tokens) of S sequences, the rows of a sequence contiguous and in order. A row whose
position
is -1 is spare: it fills a bucket, writes no cache, and its other outputs are finite values that nobody reads.

**Recording.** ``with backend.record() as program`` collects ops; ``program.run()`` runs them in one submit, as often as
wanted, on whatever the buffers then contain. An op called outside of ``record`` runs at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tritune.backends.profile import Profile
from tritune.errors import DeviceError
from tritune.formats.file_bytes import RowSource

DType = Literal["f32", "f16", "bf16", "i32", "u32", "i8"]
"""Element types of a buffer. ``f32`` means the backend's working precision (float64 in the float64 NumPy backend);
``bf16`` is held on the host as its raw uint16 bits."""

NUMPY_DTYPES: dict[DType, type[np.generic]] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
    "i32": np.int32,
    "u32": np.uint32,
    "i8": np.int8,
}

Array = NDArray[np.generic]

# Columns of the small buffers through which ops and the host exchange numbers.
SAMPLE_SETTINGS = ("temperature", "top_p", "min_p", "repetition_penalty")  # f32 [S, 4]; temperature 0 = greedy
SAMPLE_STATE = ("top_k", "seed", "draw", "unused")  # u32 [S, 4]; top_k 0 = off; draw counts the tokens drawn so far
LOSS_TOTALS = (
    "step_loss",
    "step_tokens",
    "log_loss",
    "log_tokens",
)  # f32 [4]; sums of nll and counts of trained tokens
OPTIMIZER_SETTINGS = (
    "lr",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "clip",
    "one_minus_beta1",
    "one_minus_beta2",
)  # f32 [8]
OPTIMIZER_STATE = (  # f32 [8]
    "grad_norm",  # of the mean gradient of the last step, before clipping
    "factor",  # what AdamW multiplies the summed gradient with: clip factor / trained tokens; 0 in a skipped step
    "finite",  # 1 when the last step was applied, 0 when it was skipped
    "correction1",  # 1 - beta1^t
    "correction2",  # 1 - beta2^t
    "skipped",  # steps skipped in all
    "skipped_in_a_row",
    "steps",  # steps applied
)


class Buffer(ABC):
    """A piece of device memory with a shape. ``f32 [T, D]`` in the docstrings below is a Buffer of that dtype and
    shape."""

    shape: tuple[int, ...]
    dtype: DType
    transient: bool = False
    """Only one op reads it after each that writes it. A backend that does the work of both at once need not write it.
    Views of it are transient too."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @abstractmethod
    def view(self, start: int, shape: tuple[int, ...]) -> Buffer:
        """The elements from ``start`` (in elements of the flat buffer; a multiple of 64 of them) in a shape of their
        own.

        A view shares memory with its buffer.
        """


class TernaryWeight(ABC):
    """A frozen ternary matrix of one or several parts stacked by rows (q, k and v; gate and up), a scale for each
    part."""

    out_features: int
    in_features: int
    parts: tuple[int, ...]  # rows of each part; they add up to out_features
    nbytes: int


class Table(ABC):
    """A [V, D] matrix: the embedding or the head in 16-bit or 32-bit floats, as stored in the model's file; or a head
    in int8 with a scale for each row."""

    rows: int
    columns: int
    dtype: DType
    nbytes: int


@dataclass(frozen=True)
class Rows:
    """The device buffers that describe a batch of T rows of S sequences."""

    tokens: Buffer  # i32 [T]
    positions: Buffer  # i32 [T], -1 = spare row
    sequence: Buffer  # i32 [T], index of the row's sequence (0 for spare rows)
    q_start: Buffer  # i32 [S + 1], first row of each sequence; the last entry ends the last sequence
    slot: Buffer  # i32 [T], adapter of the row: 0 = none, s = entry s - 1 of the pool
    multiplier: Buffer  # f32 [T], factor on the row's LoRA correction
    block_tables: Buffer | None = None  # i32 [S, max_blocks]: the cache block of positions b*block_size …; cache only


@dataclass(frozen=True)
class LoRA:
    """The adapters of one linear (of P parts) in a pool of A entries, and the scratch that the op needs.

    Part p of row t gets ``multiplier[t] * scale[slot, p] * B_p (A_p x)``; every part has the pool's rank r.
    """

    a: Buffer  # f32 [A, P * r, K]
    b: Buffer  # f32 [A, N, r]
    scale: Buffer  # f32 [A, P]
    rank: int
    down: Buffer  # f32 [T, P * r]: linear writes A x here (zero where slot = 0); linear_backward reads it
    down_grad: Buffer | None = None  # f32 [T, P * r]: scratch of linear_backward


@dataclass(frozen=True)
class LoRAGrad:
    """Where linear_backward adds an adapter's gradient; only for a pool of one entry."""

    a: Buffer  # f32 [1, P * r, K], +=
    b: Buffer  # f32 [1, N, r], +=


@dataclass(frozen=True)
class Dropout:
    """Dropout on the input of the LoRA branch. Its mask is a function of (seed, step, module, element): see
    ops/dropout.py."""

    rate: float
    module: int  # number of the linear in the model
    state: Buffer  # u32 [2]: seed, step


@dataclass
class Stats:
    """Counts since the backend was made; tests and benchmarks read them."""

    submits: int = 0  # of programs, chained ones as one, and of single ops
    queue_submits: int = 0  # the same on a WebGPU queue: a long submit is cut into several
    objects: int = 0  # device objects made: buffers, bind groups, pipelines, shader modules
    bytes_allocated: int = 0  # in buffers that are alive
    extra: dict[str, int] = field(default_factory=dict[str, int])


class Program(ABC):
    """Recorded ops with fixed shapes, run in one submit as often as wanted."""

    @abstractmethod
    def fetch(self, buffer: Buffer) -> None:
        """Ask for ``buffer``'s contents to be brought to the host by each run (call it while recording)."""

    @abstractmethod
    def run(self) -> None:
        """Run all ops once. Equal to ``backend.submit([program])``."""

    @abstractmethod
    def result(self, buffer: Buffer) -> Array:
        """The contents of a fetched buffer after the last run (waits for it)."""

    def previous_result(self, buffer: Buffer) -> Array:
        """The same after the run before the last one, which may still be going on: for backends that are
        ``asynchronous``."""
        raise DeviceError("only the results of the last run are kept")


class Backend(ABC):
    """A device with its ops. All sizes are multiples of 4 except T, R, S, V and LoRA ranks, which may be anything."""

    name: str
    description: str  # of the device, for people
    prefill_rows: int = 256  # of a prompt that should go through the model at once
    stats: Stats
    asynchronous: bool = False
    """Whether programs run while the host goes on; otherwise ``submit`` returns when they have run.

    The host gets no further ahead than two submits, so what it reports and what Ctrl-C stops is never old.
    """
    f16_adapters: bool = False
    """Whether ``linear`` takes adapters in f16, and gains by it."""

    # -- memory ---------------------------------------------------------------------------------------------------
    @property
    def room(self) -> int | None:
        """Bytes that can still be allocated, None where the device does not tell (WebGPU has no way to)."""
        return None

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: DType = "f32") -> Buffer:
        """A buffer of zeros. Raises OutOfMemoryError with the size asked for."""

    def empty_together(self, *wanted: tuple[tuple[int, ...], DType]) -> list[Buffer]:
        """Buffers of zeros (shape, dtype) that ops use together: a backend may lay them side by side, so that they can
        be bound as one. Raises OutOfMemoryError with the size asked for."""
        return [self.empty(shape, dtype) for shape, dtype in wanted]

    def reserve(self, nbytes: int) -> None:
        """Buffers of about ``nbytes`` in all come next: a backend may make one room for them. It never fails."""
        return

    @abstractmethod
    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy ``array`` (same number of elements; cast to the buffer's dtype) into ``buffer``."""

    @abstractmethod
    def read(self, buffer: Buffer) -> Array:
        """The contents of ``buffer`` in its shape (waits for the device)."""

    def upload(self, array: Array, dtype: DType = "f32") -> Buffer:
        """A new buffer with the contents and shape of ``array``."""
        buffer = self.empty(array.shape, dtype)
        self.write(buffer, array)
        return buffer

    @abstractmethod
    def pack_ternary(self, parts: Sequence[tuple[NDArray[np.int8], float]]) -> TernaryWeight:
        """Pack parts of (codes int8 [n_p, K] in {-1, 0, 1}, scale); y of part p is multiplied by its scale."""

    @abstractmethod
    def table(self, rows: RowSource, dtype: DType, scales: NDArray[np.float32] | None = None) -> Table:
        """Store a [V, D] table of f32, f16 or bf16 (raw uint16), split by rows where the device's limits ask for it.

        i8: row v stands for ``scales[v] * rows[v]``; for the head's products only, and not on every device
        (DeviceError). A table that is still in its file is read a block of rows at a time.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the device's memory. The backend cannot be used afterwards."""

    # -- programs -------------------------------------------------------------------------------------------------
    @abstractmethod
    def record(self) -> AbstractContextManager[Program]:
        """Collect the ops called inside into a program instead of running them."""

    @abstractmethod
    def submit(self, programs: Sequence[Program]) -> None:
        """Run programs one after the other in ONE submit."""

    def profile(self) -> AbstractContextManager[Profile]:
        """Time each op of the programs that run inside; they run slower, one op after the other.

        Raises DeviceError where the device cannot tell.
        """
        raise DeviceError(f"{self.description}: no profile, this device does not tell what an op takes")

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished; raise what went wrong on it."""

    # -- ops: see ops/<name>.py for each definition ------------------------------------------------------------------
    @abstractmethod
    def zero(self, buffer: Buffer) -> None:
        """buffer = 0."""

    def copy(self, source: Buffer, target: Buffer) -> None:
        """target f32 [T, D] = source f32 [T, D]."""
        self.rms_norm_quant(source, None, 0.0, target, None, None)

    @abstractmethod
    def embed(self, tokens: Buffer, table: Table, x: Buffer) -> None:
        """x f32 [T, D] = table[tokens i32 [T]]."""

    @abstractmethod
    def rms_norm_quant(
        self,
        x: Buffer,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        """RMS norm of x f32 [T, D] with gain f32 [D] (None: no norm), and/or its int8 per-row quantisation.

        normed f32 [T, D] (None: not wanted); codes i8 [T, D] and scales f32 [T] (both None: no quantisation).
        """

    @abstractmethod
    def rms_norm_backward(
        self, x: Buffer, gain: Buffer, eps: float, dy: Buffer, dx: Buffer, accumulate: bool = False
    ) -> None:
        """dx f32 [T, D] (= or, accumulate, +=) gradient through the norm of x, given dy. dx may be dy unless
        accumulate."""

    @abstractmethod
    def linear(
        self,
        x: Buffer,
        codes: Buffer | None,
        scales: Buffer | None,
        weight: TernaryWeight,
        y: Buffer,
        rows: Rows,
        *,
        accumulate: bool = False,
        lora: LoRA | None = None,
        dropout: Dropout | None = None,
    ) -> None:
        """y f32 [T, N] (= or +=) ternary product of codes i8 [T, K] / scales [T], plus the LoRA correction of x f32
        [T, K].

        codes None: the rounding is off, the ternary product takes x itself. x is not read if codes are given and lora
        is None.
        """

    @abstractmethod
    def linear_backward(
        self,
        dy: Buffer,
        x: Buffer,
        weight: TernaryWeight,
        rows: Rows,
        *,
        dx: Buffer | None,
        lora: LoRA | None = None,
        grad: LoRAGrad | None = None,
        dropout: Dropout | None = None,
    ) -> None:
        """dx f32 [T, K] (=; None: not wanted) and the adapter's gradient (+=), given dy f32 [T, N] and the linear's
        x."""

    @abstractmethod
    def rope(self, qkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        """Rotate the q and k parts of qkv f32 [T, (H + 2G) * d] in place; table f32 [positions, d] holds cos | sin."""

    @abstractmethod
    def rope_backward(self, dqkv: Buffer, table: Buffer, rows: Rows, heads: int, kv_heads: int, head_dim: int) -> None:
        """Turn the gradients of rotated q and k back, in place."""

    @abstractmethod
    def rope_cache(
        self,
        qkv: Buffer,
        table: Buffer,
        rows: Rows,
        q: Buffer,
        k_cache: Buffer,
        v_cache: Buffer,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        """q f32 [T, H * d] = rotated q; rotated k and v go into the caches [blocks, G, block_size, d] (f16 or f32)."""

    @abstractmethod
    def paged_attention(
        self,
        q: Buffer,
        k_cache: Buffer,
        v_cache: Buffer,
        rows: Rows,
        o: Buffer,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        """o f32 [T, H * d]: row t attends to positions 0 … positions[t] of its sequence in the cache (o = 0 for spare
        rows)."""

    @abstractmethod
    def causal_attention(
        self, qkv: Buffer, rows: Rows, o: Buffer, lse: Buffer, heads: int, kv_heads: int, head_dim: int
    ) -> None:
        """Attention inside packed sequences: row t attends to rows t - positions[t] … t of rotated qkv.

        o f32 [T, H * d]; lse f32 [T, H] = log-sum-exp of the row's scores. Both 0 for spare rows.
        """

    @abstractmethod
    def causal_attention_backward(
        self,
        qkv: Buffer,
        o: Buffer,
        lse: Buffer,
        do: Buffer,
        rows: Rows,
        dqkv: Buffer,
        heads: int,
        kv_heads: int,
        head_dim: int,
        delta: Buffer,
    ) -> None:
        """dqkv f32 [T, (H + 2G) * d] (=, with respect to rotated q and k). delta f32 [T, H] is scratch."""

    @abstractmethod
    def glu_norm_quant(
        self,
        gate_up: Buffer,
        activation: str,
        gain: Buffer | None,
        eps: float,
        normed: Buffer | None,
        codes: Buffer | None,
        scales: Buffer | None,
    ) -> None:
        """z = act(gate) * up of gate_up f32 [T, 2F] (gate first), then as rms_norm_quant (gain None: normed = z)."""

    @abstractmethod
    def glu_backward(
        self, gate_up: Buffer, activation: str, gain: Buffer | None, eps: float, dy: Buffer, dgate_up: Buffer
    ) -> None:
        """dgate_up f32 [T, 2F] = gradient through norm and GLU, given dy f32 [T, F]. dgate_up may be gate_up."""

    @abstractmethod
    def gather_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        """out f32 [R, D] = x[index]; index i32 [R], -1 gives a row of zeros."""

    @abstractmethod
    def scatter_rows(self, x: Buffer, index: Buffer, out: Buffer) -> None:
        """out f32 [T, D] = 0, then out[index[r]] = x[r] for index[r] >= 0 (each at most once)."""

    @abstractmethod
    def logits(self, x: Buffer, table: Table, out: Buffer) -> None:
        """out f32 [R, V] = x f32 [R, D] · tableᵀ."""

    def sampling_logits(
        self,
        x: Buffer,
        table: Table,
        out: Buffer,
        settings: Buffer,
        state: Buffer,
        seen: Buffer,
        allowed: Buffer | None,
    ) -> None:
        """logits for ``sample`` with the same settings, state and sets: it draws from out what it draws from logits.

        A backend may compute roughly what cannot be drawn. The logprob then sums over rough values: a few thousandths
        off, more where no token is likelier than 1 in 500.
        """
        self.logits(x, table, out)

    @abstractmethod
    def logits_backward(self, dlogits: Buffer, table: Table, dx: Buffer) -> None:
        """dx f32 [R, D] = dlogits f32 [R, V] · table."""

    @abstractmethod
    def cross_entropy(self, logits: Buffer, targets: Buffer, coefficients: Buffer, nll: Buffer, backward: bool) -> None:
        """nll f32 [R] of targets i32 [R] (-1: spare, nll 0); backward: logits f32 [R, V] become their gradient in
        place,

        coefficients[r] * (softmax - onehot), for the loss Σ coefficients[r] * nll[r]; 0 in spare rows.
        """

    @abstractmethod
    def add_loss(self, nll: Buffer, coefficients: Buffer, totals: Buffer) -> None:
        """totals f32 [4] (LOSS_TOTALS): step_loss += Σ coefficient * nll, step_tokens += Σ coefficient."""

    @abstractmethod
    def sample(
        self,
        logits: Buffer,
        settings: Buffer,
        state: Buffer,
        seen: Buffer,
        allowed: Buffer | None,
        token: Buffer,
        logprob: Buffer,
    ) -> None:
        """Draw token i32 [S] from logits f32 [S, V]; logprob f32 [S] is its log-softmax in the unchanged logits.

        settings f32 [S, 4] (SAMPLE_SETTINGS), state u32 [S, 4] (SAMPLE_STATE; draw += 1), seen u32 [S, ceil(V / 32)]
        is the set of tokens that the repetition penalty knows (bit v % 32 of word v // 32; the drawn token is added),
        allowed likewise.
        """

    @abstractmethod
    def next_rows(self, drawn: Buffer, rows: Rows) -> None:
        """Row s of ``rows`` becomes what follows: its token is drawn[s] of drawn i32 [S], its position one more.

        Spare rows and rows beyond S stay. So a batch of one row a sequence goes on without the host.
        """

    @abstractmethod
    def global_norm(self, grads: Buffer, totals: Buffer, settings: Buffer, state: Buffer) -> None:
        """Norm of the mean gradient grads f32 [n] / step_tokens, into state (OPTIMIZER_STATE) with clip factor,
        finite check,

        bias corrections and counters; adds the step's totals to the log's and clears the step's (LOSS_TOTALS).
        """

    @abstractmethod
    def adamw(self, parameters: Buffer, grads: Buffer, m: Buffer, v: Buffer, settings: Buffer, state: Buffer) -> None:
        """One AdamW step (decoupled weight decay) over flat f32 [n] buffers, skipped if state says so; then grads =
        0."""
