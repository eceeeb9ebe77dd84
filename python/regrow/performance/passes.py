"""What one step of a backward kernel, a pair of tiles, asks of a multiprocessor: of the kernel as built, of the two
passes that were not built, and of FlashAttention-2's, which is what was measured elsewhere.
"""

from dataclasses import dataclass

from regrow._load import _C

SHARED_BYTES_PER_CLOCK, EXPONENTIALS_PER_CLOCK = 128, 16
# Of a pair: scaled less lse, dweights less delta, their product, and a half of a conversion twice.
FLOATS_OF_PAIR = 4


@dataclass(frozen=True)
class Product:
    """[rows, depth] times [depth, columns] by a block of row_warps x column_warps warps with mma.sync."""

    rows: int
    columns: int
    depth: int
    row_warps: int
    column_warps: int
    row_reads: int = 1  # how often a warp reads its rows; 0: they are in its registers

    @property
    def multiply_adds(self):
        return self.rows * self.columns * self.depth

    @property
    def operand_bytes(self):
        """What ldmatrix reads: a warp its rows and its columns."""
        return 2 * self.depth * (self.row_reads * self.rows * self.column_warps + self.columns * self.row_warps)


@dataclass(frozen=True)
class Pass:
    """`phases`: products between two barriers. Bytes are of shared memory."""

    rows: int
    keys: int
    phases: tuple[tuple[Product, ...], ...]
    copied_bytes: int  # by a step's asynchronous copies
    exchanged_bytes: int  # scores and dscores that warps write for one another
    blocks: int = 1  # that share a multiprocessor

    @property
    def num_products(self):
        return sum(len(phase) for phase in self.phases)

    def clocks(self, device):
        """Of one step on `device`, a device_class: {part: clocks}."""
        products = [sum(p.multiply_adds for p in phase) / device["matmul_per_clock"] for phase in self.phases]
        operands = [sum(p.operand_bytes for p in phase) / SHARED_BYTES_PER_CLOCK for phase in self.phases]
        operands[0] += self.copied_bytes / SHARED_BYTES_PER_CLOCK
        pairs = self.rows * self.keys
        return {
            "products": sum(products),
            "operands": sum(operands),
            "multiply": sum(map(max, products, operands)),
            "softmax": pairs / EXPONENTIALS_PER_CLOCK
            + pairs * FLOATS_OF_PAIR / device["floats_per_clock"]
            + self.exchanged_bytes / SHARED_BYTES_PER_CLOCK,
        }

    def clocks_shared(self, device):
        """Of a step with `blocks` at work: the queue of TileClocks::queued (csrc/kernels/attention_plan.cpp)."""
        c = self.clocks(device)
        slow, fast = max(c["multiply"], c["softmax"]), min(c["multiply"], c["softmax"])
        powers = [(fast / slow) ** i for i in range(self.blocks + 1)]
        return slow * sum(powers) / sum(powers[:-1])


def built(head_dim):
    """The kernel that there is, five products a step."""
    c = configuration(head_dim)
    return _key_stationary(c, with_queries=True)


def keys_pass(head_dim):
    """The first of two passes: the same blocks, without dq and what it exchanges."""
    return _key_stationary(configuration(head_dim), with_queries=False)


def queries_pass(head_dim):
    """The second: a block of four warps owns 64 rows and walks tiles of 64 keys. Scores, dweights and dq are in
    registers: 128 of them for head dim 128, which three blocks have."""
    dim = configuration(head_dim)["head_dim"]
    score = Product(64, 64, dim, 4, 1)
    blocks = 3 if dim <= 128 else 1
    return Pass(64, 64, ((score, score), (Product(64, dim, 64, 4, 1, row_reads=0),)), 2 * 64 * dim * 2, 0, blocks)


def flash_attention_2(head_dim=128, with_queries=True):
    """Its 64 queries x 128 keys of head dim 128: warps 2 x 4, 4 x 2 and 2 x 4, weights and dscores exchanged.

    Not with_queries, a first of two passes with warps like these.
    """
    score, key = Product(64, 128, head_dim, 2, 4), Product(128, head_dim, 64, 4, 2)
    phases = [(score, score), (key, key)]
    if with_queries:
        phases.append((Product(64, head_dim, 128, 2, 4),))
    return Pass(64, 128, tuple(phases), 2 * 64 * head_dim * 2, 2 * 64 * 128 * 2)


def square_queries_pass(head_dim=128):
    """A second of two passes with warps like FlashAttention-2's: 128 rows, eight warps, two blocks if they fit."""
    score = Product(128, 64, head_dim, 4, 2)
    phases = ((score, score), (Product(128, head_dim, 64, 4, 2),))
    return Pass(128, 64, phases, 2 * 64 * head_dim * 2, 128 * 64 * 2, blocks=2)


def configuration(head_dim):
    return next(c for c in _C.backward_configurations() if c["head_dim"] >= head_dim)


def _key_stationary(c, with_queries):
    rows, keys, dim, across = c["rows"], c["keys"], c["head_dim"], c["column_warps"]
    along = c["warps"] // across
    score = Product(keys, rows, dim, along, across)
    key = Product(keys, dim, rows, along, across, row_reads=int(across > 1))
    phases = [(score, score), (key, key)]
    if with_queries:
        phases.append((Product(rows, dim, keys, 4, 2, row_reads=query_parts(dim)),))
    exchanged = (int(with_queries or across > 1) + int(across > 1)) * rows * keys * 2
    return Pass(rows, keys, tuple(phases), 2 * rows * dim * 2, exchanged)


def query_parts(head_dim):
    """In how many parts dq is made, one after the other: kQueryParts of the kernel."""
    return 2 if head_dim > 128 else 1
