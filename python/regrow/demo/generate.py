"""Responses sampled on the axis of a tree: prompts are computed once on it, and every response has its slots.

The tree never changes while it fills: a slot that is not filled yet lies behind every query, so no query sees it.
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface

import regrow
from regrow.models.mask import lazy_mask

NAME = "regrow_generate"


class Axis:
    """Keys and values of every layer on one axis: the prompts as a trie, then `max_new_tokens` slots per response.

    slots: int64 [responses, max_new_tokens], the axis position of each response's tokens.
    """

    def __init__(self, prompts, max_new_tokens):
        # Tokens beyond those of the prompts, each there once, keep the slots of equal prompts apart.
        first_blank = 1 + max(map(max, prompts))
        blanks = first_blank + torch.arange(len(prompts) * max_new_tokens).view(len(prompts), max_new_tokens)
        sequences = [torch.cat([torch.tensor(prompt), row]) for prompt, row in zip(prompts, blanks, strict=True)]
        self.tree = regrow.PrefixTree.from_sequences(sequences)
        paths = self.tree.gather_index.split(self.tree.cu_seqlens.diff().tolist())
        self.slots = torch.stack([path[len(prompt) :] for path, prompt in zip(paths, prompts, strict=True)])
        self.tails = torch.stack([path[len(prompt) - 1] for path, prompt in zip(paths, prompts, strict=True)])
        self.prompt_positions = (self.tree.tokens < first_blank).nonzero()[:, 0]
        self.layers, self.queries, self.plans = {}, None, {}

    def at(self, positions):
        """Makes `positions` (sorted) the queries of the next forward; returns self."""
        self.queries, self.plans = positions, {}
        return self

    def write(self, layer, key, value):
        """Puts the queries' keys and values on the axis; returns the layer's whole axis."""
        if layer not in self.layers:
            num_tokens = self.tree.num_tokens
            self.layers[layer] = tuple(x.new_empty(num_tokens, *x.shape[1:]) for x in (key, value))
        keys, values = self.layers[layer]
        return keys.index_copy_(0, self.queries, key), values.index_copy_(0, self.queries, value)

    def plan(self, query_heads, kv_heads, head_dim, window):
        """The plan that all layers with this window share."""
        if window not in self.plans:
            self.plans[window] = regrow.plan(
                self.tree, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, window=window,
                query_index=self.queries,
            )  # fmt: skip
        return self.plans[window]


def attention(module, query, key, value, attention_mask, axis, **options):
    """What transformers calls: query [1,Hq,R,D], key and value [1,Hkv,R,D] of the axis's current queries."""
    keys, values = axis.write(module.layer_idx, key[0].transpose(0, 1), value[0].transpose(0, 1))
    window = attention_mask.window
    out = regrow.tree_attention(
        query[0].transpose(0, 1),
        keys,
        values,
        axis.tree,
        scale=options.get("scaling"),
        window=window,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
        query_index=axis.queries,
        plan=axis.plan(query.size(1), key.size(1), query.size(3), window),
    )
    return out[None], None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, lazy_mask)


@torch.no_grad()
def generate(model, prompts, *, max_new_tokens, end_token, greedy=False):
    """One response to each prompt: at temperature 1 from the whole vocabulary, or the likeliest token with `greedy`.

    prompts: lists of token ids, in any order, equal ones at will. Returns lists of token ids, each up to and including
    its first `end_token`. The model's attention implementation is put back.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        axis = Axis(prompts, max_new_tokens)
        hidden = forward(model, axis, axis.prompt_positions, axis.tree.tokens[axis.prompt_positions])
        hidden = hidden[torch.searchsorted(axis.prompt_positions, axis.tails)]
        live = torch.argsort(axis.slots[:, 0])  # in the order of the axis
        hidden, responses = hidden[live], [[] for _ in prompts]
        for step in range(max_new_tokens):
            tokens = choose(model.lm_head(hidden), greedy)
            for row, token in zip(live.tolist(), tokens.tolist(), strict=True):
                responses[row].append(token)
            going = tokens != end_token
            live, tokens = live[going], tokens[going]
            if step + 1 == max_new_tokens or len(live) == 0:
                return responses
            hidden = forward(model, axis, axis.slots[live, step], tokens)
    finally:
        model.set_attn_implementation(before)


def forward(model, axis, positions, tokens):
    """Hidden states [R,H] of the tokens that stand at `positions` of the axis."""
    output = model.model(
        input_ids=tokens[None], position_ids=axis.tree.position_ids[positions][None], axis=axis.at(positions),
        use_cache=False,
    )  # fmt: skip
    return output.last_hidden_state[0]


def choose(logits, greedy):
    """Token ids [R] from logits [R,V], by the inverse of the cumulative distribution."""
    if greedy:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits, -1, dtype=torch.float32).cumsum(-1, dtype=torch.float64)
    drawn = torch.rand(len(logits), 1, dtype=torch.float64) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp_(max=logits.size(-1) - 1)
