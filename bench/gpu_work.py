"""Useful work of attention over a tree: what any implementation must compute and move, and the least time it takes.

Operations count (query, key it sees) pairs only: what a mask throws away is nobody's achievement, and neither is what
sharing saves, which shows as time against the peers that compute every sequence.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    operations: int  # multiplications and additions
    bytes: int

    def floor(self, operations_per_second, bytes_per_second):
        """Seconds: the slower of both ceilings."""
        return max(self.operations / operations_per_second, self.bytes / bytes_per_second)


def useful_pairs(tree, query_index=None):
    """(query, key) pairs of these tokens, all by default, against the whole axis: a token sees its path."""
    depth = tree.host_position_ids if query_index is None else tree.host_position_ids[query_index.cpu()]
    return int((depth + 1).sum())


def attention_work(pairs, num_queries, num_keys, *, heads, dims, element_size):
    """heads: of q and of k and v; dims: of k and of v. Every key is counted as seen by some query.

    Two products of 2 * dim operations a pair and head; q, k, v read once, out and lse (fp32) written once.
    """
    (query_heads, kv_heads), (head_dim, value_dim) = heads, dims
    rows = num_queries * query_heads * (head_dim + value_dim) + num_keys * kv_heads * (head_dim + value_dim)
    return Work(2 * pairs * query_heads * (head_dim + value_dim), rows * element_size + 4 * num_queries * query_heads)


def attention_backward_work(pairs, num_queries, num_keys, *, heads, dims, element_size):
    """Five products: scores, weights' gradients, dv, dk and dq; 2.5 times the forward's where both dims are one.

    q, k, v, out, dout and lse read once, dq, dk and dv written once.
    """
    (query_heads, kv_heads), (head_dim, value_dim) = heads, dims
    rows = num_queries * query_heads * 2 * (head_dim + value_dim) + num_keys * kv_heads * 2 * (head_dim + value_dim)
    operations = 2 * pairs * query_heads * (3 * head_dim + 2 * value_dim)
    return Work(operations, rows * element_size + 4 * num_queries * query_heads)


def gather_work(num_rows, row_bytes):
    """Rows read and written, the index read."""
    return Work(0, num_rows * (2 * row_bytes + 8))


def scatter_work(num_rows, num_out_rows, row_bytes):
    """Rows read, sums written, the index read."""
    return Work(0, num_rows * (row_bytes + 8) + num_out_rows * row_bytes)
