"""Whatever contradicts a tree is a ValueError that names the remedy; none is a silent wrong number."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

import regrow.models
from lifted_casts import LiftedCasts
from model_families import SEQUENCES, alone, make_model, make_tree, relative_l2
from regrow import PrefixTree
from regrow.models.hook import attention
from regrow.models.mask import LazyMask


def attached(model):
    return regrow.models.attach(model)


def switched(model):
    model.set_attn_implementation("regrow")
    return model


# attach checks the call itself too; plain set_attn_implementation leaves all to the layers.
@pytest.fixture(params=[attached, switched])
def hooked(request, model):
    return request.param(model)


def call(model, tree, **options):
    inputs = {"input_ids": tree.tokens[None], "position_ids": tree.position_ids[None], "use_cache": False}
    return model(**{**inputs, **options}, tree=tree)


def refused(text):
    return pytest.raises(ValueError, match=text)


def test_what_is_not_refused(hooked, tree):
    expected = call(hooked, tree).logits
    assert torch.equal(call(hooked, tree, attention_mask=torch.ones(1, tree.num_tokens)).logits, expected)
    assert torch.equal(call(hooked, tree, position_ids=tree.position_ids[None].clone()).logits, expected)
    assert torch.equal(call(hooked, tree, use_cache=True).logits, expected)  # an empty cache, filled in vain
    assert torch.equal(hooked(tree.tokens[None], position_ids=tree.position_ids[None], tree=tree).logits, expected)
    embeds = hooked.get_input_embeddings()(tree.tokens[None])
    assert torch.equal(call(hooked, tree, input_ids=None, inputs_embeds=embeds).logits, expected)


def test_padding(hooked, tree):
    mask = torch.ones(1, tree.num_tokens, dtype=torch.long)
    mask[0, 0] = 0
    with refused(r"excludes padding: .*leave attention_mask out \(PrefixTree.from_padded reads one\)"):
        call(hooked, tree, attention_mask=mask)


def test_a_4d_mask(hooked, tree):
    with refused("excludes a 4-D attention mask: .*leave attention_mask out"):
        call(hooked, tree, attention_mask=torch.zeros(1, 1, tree.num_tokens, tree.num_tokens))


def test_a_filled_cache(hooked, tree):
    cache = DynamicCache(config=hooked.config)
    hooked(torch.tensor([[1, 2]]), cache=cache, use_cache=True)
    with refused("excludes a filled cache: 24 keys for 22 tokens; pass use_cache=False"):
        call(hooked, tree, cache=cache, use_cache=True)


def test_dropout_in_training(tree):
    model = switched(make_model("llama", attention_dropout=0.25))
    call(model, tree)
    with refused(r"excludes attention dropout, got 0\.25: set config\.attention_dropout = 0"):
        call(model.train(), tree)


def test_another_batch_or_length(hooked, tree):
    with refused(r"input_ids is \[2, 22\], the tree has 22 tokens: pass input_ids=tree.tokens\[None\]"):
        call(hooked, tree, input_ids=tree.tokens.expand(2, -1))
    with refused(r"input_ids is \[1, 21\], the tree has 22 tokens"):
        call(hooked, tree, input_ids=tree.tokens[None, 1:], position_ids=tree.position_ids[None, 1:])


def test_other_tokens(model, tree):
    tokens = tree.tokens.clone()
    tokens[5] += 1
    with refused(r"input_ids are not the tree's tokens: pass input_ids=tree.tokens\[None\]"):
        call(attached(model), tree, input_ids=tokens[None])


# Left out, they count along the axis: every branch but the first would stand too deep.
@pytest.mark.parametrize("position_ids", [None, torch.arange(22)[None], torch.zeros(1, 22, dtype=torch.long)])
def test_other_positions(hooked, tree, position_ids):
    with refused(r"position_ids (are not the tree's|is missing).*pass position_ids=tree.position_ids\[None\]"):
        call(hooked, tree, position_ids=position_ids)


def test_positions_are_checked_again_for_each_call(hooked, tree):
    call(hooked, tree)
    with refused("position_ids are not the tree's"):
        call(hooked, tree, position_ids=tree.position_ids[None] + 1)


def test_a_family_that_keeps_positions_from_attention(tree):
    query = torch.zeros(1, 2, tree.num_tokens, 8)
    with refused("position_ids is missing at NoneType: .*does not hand them to its attention"):
        attention(None, query, query, query, LazyMask(), tree=tree)


def test_a_tree_on_another_device(hooked, tree):
    with refused(r"the tree is on meta, the model's inputs on cpu: use tree.to\(device\)"):
        call(hooked, tree.to("meta"), input_ids=tree.tokens[None], position_ids=tree.position_ids[None])


def test_chunked_attention():
    model = make_model(
        "llama4_text",
        attention_chunk_size=4,
        interleave_moe_layer_step=1,
        num_local_experts=2,
        intermediate_size_mlp=48,
    )
    for switch in (switched, attached):
        with refused(r"excludes chunked attention \(attention_chunk_size\)"):
            call(switch(model), make_tree())
    query = torch.zeros(1, 2, 22, 8)
    with refused("excludes chunked attention"):
        attention(None, query, query, query, LazyMask(local_size=4, config=model.config), tree=make_tree())


# A recurrent state runs along the axis, across branches; a causal convolution too.
@pytest.mark.parametrize("family, options", [
    ("qwen3_next", dict(
        linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
    )),
    ("lfm2", dict(layer_types=["conv", "full_attention"])),
])  # fmt: skip
def test_recurrent_layers(tree, family, options):
    for switch in (switched, attached):
        with refused(f"excludes layers of type '{options['layer_types'][0]}', which would mix branches"):
            call(switch(make_model(family, **options)), tree)


def deepest(length):
    return PrefixTree.from_sequences([list(range(1, length + 1)), [1, 2, 40, 41], [1, 50]])


ROTARY = {
    "dynamic": ("llama", dict(max_position_embeddings=16), {"factor": 4.0}, 15),
    "longrope": (
        "phi3",
        dict(max_position_embeddings=64, original_max_position_embeddings=16),
        {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4},
        16,
    ),
}


# Up to the limit the packed tree is each path alone; one token more, and the longest path would change the others.
@pytest.mark.parametrize("kind", ROTARY)
@torch.no_grad()
def test_rotary_scaling_that_depends_on_the_longest_position(monkeypatch, kind):
    family, options, rope, limit = ROTARY[kind]
    rope = {"rope_type": kind, "rope_theta": 10_000.0, **rope}
    model = make_model(family, rope_parameters=rope, **options)
    tree = deepest(limit)
    sequences = [row.tolist() for row in tree.unpack(tree.tokens).split(tree.cu_seqlens.diff().tolist())]
    monkeypatch.setattr("model_families.SEQUENCES", sequences)
    with LiftedCasts():
        expected = alone(model)[0]
        for switch in (switched, attached):
            assert relative_l2(tree.unpack(call(switch(model), tree).logits[0]), expected) < 1e-12
            text = (
                f"'{kind}' depends on the longest position: the tree's longest path has {limit + 1} tokens, .* {limit} "
            )
            with refused(text):
                call(model, deepest(limit + 1))
        # A refused call leaves no stretched frequencies behind.
        assert relative_l2(tree.unpack(call(model, tree).logits[0]), expected) < 1e-12


def test_rotary_scaling_per_type_of_layer(tree):
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    plain = {"rope_type": "default", "rope_theta": 10_000.0}
    model = make_model(
        "gemma3_text", max_position_embeddings=4, layer_types=["sliding_attention", "full_attention"], sliding_window=3,
        rope_parameters={"full_attention": rope, "sliding_attention": plain},
    )  # fmt: skip
    with refused("'dynamic' depends on the longest position"):
        call(switched(model), tree)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_an_implementation_that_would_ignore_the_tree(model, tree, implementation):
    model.set_attn_implementation(implementation)
    text = f"attention implementation '{implementation}' ignores tree=: call regrow.models.attach"
    for part in (model, model.model):
        with refused(text):
            regrow.models.packed(part, tree)
    with refused(text):
        regrow.models.logprobs(model, tree)
    attached(model).set_attn_implementation(implementation)
    with refused(text):
        call(model, tree)


def test_attention_that_is_not_causal(tree):
    for switch in (switched, attached):
        with refused("excludes a mask that is not causal"):
            call(switch(make_model("llama", is_causal=False)), tree)


QUERY = torch.zeros(1, 2, 22, 8)
POSITIONS = make_tree().position_ids[None]


# What families of other kinds give their layers, at the layer itself.
@pytest.mark.parametrize(
    ("mask", "options", "text"),
    [
        (LazyMask(), {"is_causal": False}, "excludes attention that is not causal"),
        (LazyMask(use_vmap=True), {}, "excludes a mask that is not causal"),
        (LazyMask(), {"position_bias": torch.zeros(22, 22)}, "excludes the argument 'position_bias' of attention"),
        (None, {}, "needs a mask made by transformers' mask functions, the model gave None"),
    ],
)
def test_other_kinds_of_layers(tree, mask, options, text):
    attention(None, QUERY, QUERY, QUERY, LazyMask(), tree=tree, position_ids=POSITIONS)
    with refused(text):
        attention(None, QUERY, QUERY, QUERY, mask, tree=tree, position_ids=POSITIONS, **options)


def test_a_block_that_sees_itself(tree):
    blocks = torch.full((22,), -1)
    blocks[4:7] = 1
    positions = torch.arange(22)

    def mask_function(batch, head, query, key):
        return (key <= query) | ((blocks[query] == blocks[key]) & (blocks[query] >= 0))

    assert mask_function(0, 0, positions, positions).all()
    with refused("excludes a mask that is not causal"):
        attention(None, QUERY, QUERY, QUERY, LazyMask(mask_function=mask_function, q_length=22), tree=tree)


# Its decoder embeds a range over the axis, and **kwargs carry position_ids to attention as if they were obeyed.
def test_a_decoder_that_counts_positions_itself(tree):
    model = make_model(
        "bart", is_decoder=True, d_model=16, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16
    )
    text = "BartDecoder takes no position_ids: it counts positions along the axis"
    with refused(text):
        regrow.models.attach(model)
    for function in (regrow.models.packed, regrow.models.logprobs):
        with refused(text):
            function(switched(model), tree)


def test_labels(model, tree):
    text = "labels= would be shifted along the packed axis, across branches: compute the loss from regrow.models.logp"
    with refused(text):
        regrow.models.packed(switched(model), tree, labels=tree.tokens[None])
    with refused(text):
        call(attached(model), tree, labels=tree.tokens[None])
    regrow.models.packed(model, tree, labels=None)


def test_a_tree_without_tokens(model):
    with refused("the tree has no tokens to give the model: give from_nodes its tokens"):
        regrow.models.packed(attached(model), PrefixTree.from_nodes([-1], [3]))


def test_sequences_is_what_the_tree_holds(tree):
    """The tests above count on it."""
    assert tree.num_tokens == 22 and tree.num_sequences == len(SEQUENCES)
