import sys

import pytest
import torch
from transformers import GptOssConfig, LlamaConfig
from transformers.cache_utils import DynamicCache

import regrow
from regrow.models import packed
from regrow.models.hook import LazyMask, attention

SEQUENCES = [torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 5]), torch.tensor([6, 7])]


@pytest.fixture
def tree():
    return regrow.PrefixTree.from_sequences(SEQUENCES)


@pytest.fixture
def hooked(model):
    model.set_attn_implementation("regrow")
    return model


def call(model, tree, **options):
    inputs = {"input_ids": tree.tokens[None], "position_ids": tree.position_ids[None], "use_cache": False}
    return model(**{**inputs, **options}, tree=tree)


def test_packed_logits_are_each_sequences_own(hooked, tree):
    logits = tree.unpack(packed(hooked, tree).logits[0])
    alone = torch.cat([hooked(sequence[None], use_cache=False).logits[0] for sequence in SEQUENCES])
    torch.testing.assert_close(logits, alone, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_without_a_tree_the_model_is_sdpa(model):
    ids, real = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    results = []
    for implementation in ("sdpa", "regrow"):
        model.set_attn_implementation(implementation)
        generated = model.generate(ids, attention_mask=real, max_new_tokens=5, do_sample=False, pad_token_id=0)
        results.append((generated, model(ids, attention_mask=real).logits[real.bool()]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_padding_is_refused(hooked, tree):
    real = torch.ones(1, tree.num_tokens, dtype=torch.long)
    call(hooked, tree, attention_mask=real)
    real[0, 0] = 0
    with pytest.raises(ValueError, match="excludes padding"):
        call(hooked, tree, attention_mask=real)


def test_a_4d_mask_is_refused(hooked, tree):
    mask = torch.zeros(1, 1, tree.num_tokens, tree.num_tokens)
    with pytest.raises(ValueError, match="excludes a 4-D attention mask"):
        call(hooked, tree, attention_mask=mask)


def test_dropout_is_refused_in_training_only(hooked, tree):
    for layer in hooked.model.layers:
        layer.self_attn.attention_dropout = 0.25
    call(hooked.eval(), tree)
    with pytest.raises(ValueError, match=r"excludes attention dropout, got 0\.25"):
        call(hooked.train(), tree)


def test_a_filled_cache_is_refused(hooked, tree):
    cache = DynamicCache(config=hooked.config)
    hooked(torch.tensor([[1, 2]]), cache=cache, use_cache=True)
    with pytest.raises(ValueError, match="excludes a filled cache: 9 keys for 7 tokens"):
        call(hooked, tree, cache=cache, use_cache=True)


def test_other_tokens_than_the_trees_are_refused(hooked, tree):
    with pytest.raises(ValueError, match=r"input_ids is \[2, 7\], the tree has 7 tokens"):
        call(hooked, tree, input_ids=tree.tokens.expand(2, -1))
    with pytest.raises(ValueError, match=r"input_ids is \[1, 6\], the tree has 7 tokens"):
        call(hooked, tree, input_ids=tree.tokens[None, :6], position_ids=tree.position_ids[None, :6])


def test_an_implementation_that_ignores_the_tree_is_refused(model, tree):
    with pytest.raises(ValueError, match=r"'sdpa' ignores tree=.*set_attn_implementation\('regrow'\)"):
        packed(model, tree)


def test_chunked_attention_is_refused(tree):
    config = LlamaConfig(attention_chunk_size=4)
    query = torch.zeros(1, 2, tree.num_tokens, 8)
    with pytest.raises(ValueError, match="excludes chunked attention"):
        attention(None, query, query, query, LazyMask(local_size=4, config=config), tree=tree)


def test_sinks_without_a_tree_are_refused():
    query = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match="attention sinks"):
        attention(None, query, query, query, None, s_aux=torch.zeros(2))


# The two ways in which a window reaches the hook: as the layer's argument, or through the mask alone.
@pytest.mark.parametrize("through_mask", [False, True])
def test_options_reach_the_op(monkeypatch, tree, through_mask):
    seen = {}
    monkeypatch.setattr(regrow, "tree_attention", lambda q, k, v, tree, **options: seen.update(options) or q)
    query, sinks = torch.randn(1, 2, tree.num_tokens, 8), torch.zeros(2)
    mask = LazyMask(local_size=3 if through_mask else None, config=GptOssConfig())
    options = {} if through_mask else {"sliding_window": 3}
    out, _ = attention(None, query, query, query, mask, tree=tree, scaling=0.5, softcap=9.0, s_aux=sinks, **options)
    assert seen == {"scale": 0.5, "window": 3, "softcap": 9.0, "sinks": sinks}
    assert torch.equal(out, query.transpose(1, 2))


def test_missing_transformers_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("regrow.models")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install regrow\[demo\]"):
        __import__("regrow.models")
