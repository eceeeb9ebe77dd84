"""The oracle: every op in plain, dense torch, differentiable by autograd, in whatever dtype it is given.

Run it in float64 for the truth, in the kernel's own dtype for "plain torch at the same dtype" (docs/design.md,
accuracy).
"""

import torch


def visible(subtree_end, position_ids, query_position, key_position, window=None):
    """Boolean mask [Tq, Tk]: key k is on the path of query q, and less than `window` positions before it."""
    q, k = query_position[:, None], key_position[None, :]
    mask = (k <= q) & (q < subtree_end[key_position][None, :])
    if window is not None:
        mask &= position_ids[query_position][:, None] - position_ids[key_position][None, :] < window
    return mask


def tree_attention(
    q, k, v, subtree_end, position_ids, *, scale=None, window=None, softcap=None, sinks=None,
    query_start=0, query_index=None, key_start=0,
):  # fmt: skip
    """q [Tq,Hq,D], k [Tk,Hkv,D], v [Tk,Hkv,Dv] -> out [Tq,Hq,Dv], lse [Hq,Tq]; a query that sees nothing has out 0."""
    if query_index is None:
        query_index = torch.arange(query_start, query_start + q.size(0), device=q.device)
    key_position = torch.arange(key_start, key_start + k.size(0), device=q.device)
    mask = visible(subtree_end, position_ids, query_index, key_position, window)

    seen = mask.any(0)[:, None, None]  # what nobody sees may hold NaN
    k, v = k.masked_fill(~seen, 0), v.masked_fill(~seen, 0)
    group = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.size(-1) ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -torch.inf)
    with_sink = scores
    if sinks is not None:
        with_sink = torch.cat([scores, sinks.to(scores)[:, None, None].expand(-1, q.size(0), 1)], -1)
    lse = with_sink.logsumexp(-1)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None])
    return torch.einsum("hqk,khd->qhd", weights, v), lse


def lse_merge(outs, lses, sinks=None):
    """outs [P,Tq,Hq,Dv], lses [P,Hq,Tq] of disjoint key sets -> out, lse of their union; the sink is one more part."""
    if sinks is not None:
        lses = torch.cat([lses, sinks.to(lses)[None, :, None].expand(1, -1, lses.size(-1))])
        outs = torch.cat([outs, torch.zeros_like(outs[:1])])
    lse = lses.logsumexp(0)
    weights = torch.exp(lses - lse.masked_fill(lse.isneginf(), 0))
    return torch.einsum("phq,pqhd->qhd", weights, outs), lse


def replay_gather(src, index):
    """src [R, ...], index [N] -> [N, ...]."""
    return src[index]


def replay_scatter(src, index, num_rows):
    """src [N, ...], index [N] -> [num_rows, ...]: the adjoint of the gather."""
    return src.new_zeros(num_rows, *src.shape[1:]).index_add(0, index, src)


def row_logprobs(hidden, weight, target_row, target_token, *, temperature=1.0, softcap=None):
    """hidden [R,H], weight [V,H], targets [N] -> logp [N], entropy [R] (nats)."""
    logits = hidden @ weight.T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logp = torch.log_softmax(logits / temperature, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp[target_row, target_token], entropy


def tree_logprobs(hidden, weight, tree, *, temperature=1.0, softcap=None):
    """hidden [T,H] -> logp [T], entropy [T]: token t under the row of parent_index[t]; 0 at roots."""
    targets = (tree.parent_index >= 0).nonzero()[:, 0]
    rows = tree.parent_index[targets]
    logp, entropy = row_logprobs(hidden, weight, rows, tree.tokens[targets], temperature=temperature, softcap=softcap)
    zeros = logp.new_zeros(tree.num_tokens)
    return zeros.index_copy(0, targets, logp), zeros.index_copy(0, targets, entropy[rows])
