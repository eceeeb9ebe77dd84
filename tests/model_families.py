"""Small random transformers models of many families, and sequences whose tree has every shape that matters."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lifted_casts import LiftedCasts
from regrow import PrefixTree

# Forks at several depths, two roots, a repeated sequence, and one that is the beginning of another.
SEQUENCES = [
    [1, 2, 3, 4, 5, 6, 7],
    [1, 2, 3, 4, 5, 8],
    [1, 2, 3, 9, 10, 11, 12, 13],
    [1, 2, 3, 9, 10, 14],
    [1, 20, 21, 22, 23],
    [1, 2, 3, 9, 10, 14],
    [1, 2, 3],
    [30, 31, 33, 34],
]

_SHARED = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    tie_word_embeddings=False,
)
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
_MLA = dict(
    num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, n_routed_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=16, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1,
)  # fmt: skip
_ALTERNATING = ["sliding_attention", "full_attention"]

# What each family has that the one before has not. Windows are shorter than the paths.
FAMILIES = {
    "llama": {},
    "llama-tied": dict(model_type="llama", tie_word_embeddings=True),
    "qwen2": dict(use_sliding_window=True, sliding_window=3, layer_types=_ALTERNATING),  # biases; window in one layer
    "qwen3": {},  # norms of queries and keys
    "mistral": dict(sliding_window=3),  # a window in every layer
    "gemma2": dict(  # softcaps of scores and of logits, another scale, tied
        sliding_window=3, layer_types=_ALTERNATING, attn_logit_softcapping=5.0, final_logit_softcapping=10.0,
        query_pre_attn_scalar=16, tie_word_embeddings=True,
    ),
    "gpt-oss": dict(  # sinks; experts with biases
        model_type="gpt_oss", sliding_window=3, layer_types=_ALTERNATING, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3-moe": dict(model_type="qwen3_moe", **_EXPERTS, decoder_sparse_step=1, mlp_only_layers=[]),
    "deepseek-v3": dict(  # heads of V are narrower than those of Q and K
        model_type="deepseek_v3", **_MLA, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, head_dim=8
    ),
    "deepseek-v3-odd": dict(  # head dims that are no multiples of 8
        model_type="deepseek_v3", **_MLA, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=6, head_dim=4
    ),
}  # fmt: skip


def make_config(family, **options):
    options = {**_SHARED, **FAMILIES.get(family, {}), **options}
    return AutoConfig.for_model(options.pop("model_type", family), **options)


def make_model(family, *, dtype=torch.float64, implementation="eager", **options):
    """A model in eval mode with weights large enough that attention is far from uniform."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        make_config(family, **options), attn_implementation=implementation, experts_implementation="eager"
    ).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            centre = float("norm" in name and not family.startswith("gemma"))  # Gemma adds the 1 itself
            parameter.copy_(centre + 0.25 * noise)
    return model.eval()


def make_tree():
    return PrefixTree.from_sequences(SEQUENCES)


def alone(model):
    """Logits, end to end, and log-probs (0 at a sequence's first token) of each sequence run by itself."""
    logits, logps = [], []
    for sequence in SEQUENCES:
        ids = torch.tensor(sequence)
        with LiftedCasts():
            own = model(input_ids=ids[None], use_cache=False).logits[0]
        logits.append(own)
        predicted = own[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        logps.append(torch.cat([own.new_zeros(1), predicted]))
    return torch.cat(logits), torch.cat(logps)


def relative_l2(actual, expected):
    """|actual - expected| / |expected|, and 0 where both are 0."""
    difference = (actual - expected).norm()
    return (difference / expected.norm()).item() if difference > 0 else 0.0


def gradients(model):
    """One tensor per parameter that needs a gradient, zero where none arrived; the model's own are cleared."""
    result = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    model.zero_grad(set_to_none=True)
    return result
