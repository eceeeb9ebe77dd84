"""What `generate` refuses, in words."""

import numpy as np
import pytest
import torch

from model_families import make_model
from regrow import models
from regrow.rollout import NONE, CostTable, Draft, Drafter, Strategy, SuffixDrafter, generate
from tiny_policy import TinyPolicy

VOCABULARY = 6


class Silent(Drafter):
    def observe(self, sequence, tokens, hidden=None):
        pass

    def propose(self, state):
        return Draft()


class TooFew(Silent):
    def propose_batch(self, states):
        return [Draft()] * (len(states) - 1)


class TooLong(Silent):
    def propose(self, state):
        return Draft.chain([0] * (state.max_tokens + 1))


class Foreign(Silent):
    def propose(self, state):
        return Draft.chain([VOCABULARY])


def roll(model=None, prompts=((1, 2), (3,)), **options):
    model = TinyPolicy(VOCABULARY) if model is None else model
    return generate(model, prompts, **(dict(max_new_tokens=4, seed=0) | options))


REFUSED = [
    # prompts
    (dict(prompts=[]), r"prompts is \[\]: give a list of at least one prompt of token ids"),
    (dict(prompts="a text"), "prompts is 'a text': give a list of at least one prompt"),
    (dict(prompts=3), "prompts is 3: give a list"),
    (dict(prompts=None), "prompts is None: give a list"),
    (dict(prompts=iter([])), "prompts is <list_iterator .*: give a list"),
    (dict(on_event=3), "on_event is a int: give a function"),
    (dict(budget_bytes="1G"), "budget_bytes is '1G': give a whole number"),
    (dict(temperature="1"), "temperature is '1': give a number"),
    (dict(drafter="suffix", strategy=CostTable([1], [0, 1], [[1.0, 1.1]], 8, {})), "strategy is a CostTable: give Cal"),
    (dict(prompts=torch.tensor(3)), r"prompts is tensor\(3\): give a list"),
    (dict(prompts=[[1], []]), "prompt 1 is empty: give at least one token"),
    (dict(prompts=[torch.zeros(0, dtype=torch.int64)]), "prompt 0 is empty"),
    (dict(prompts=[1, 2]), "prompt 0 is 1: give a flat list, array or tensor of token ids"),
    (dict(prompts=[[[1]]]), r"prompt 0 is \[\[1\]\]: give a flat list"),
    (dict(prompts=["text"]), "prompt 0 is 'text': give a flat list"),
    (dict(prompts=[[1.0]]), r"prompt 0 is \[1.0\]: give a flat list"),
    (dict(prompts=torch.ones(1, 2)), r"prompt 0 is tensor\(\[1., 1.\]\): give a flat list"),
    (dict(prompts=[[1], [2, 6]]), "prompt 1 has token 6, the model's vocabulary 6: use the model's tokenizer"),
    (dict(prompts=[[-1]]), "prompt 0 has token -1, the model's vocabulary 6"),
    # numbers
    (dict(max_new_tokens=0), "max_new_tokens is 0: give 1 or more"),
    (dict(max_new_tokens=-3), "max_new_tokens is -3: give 1 or more"),
    (dict(max_new_tokens=2.0), "max_new_tokens is 2.0: give a whole number, 1 or more"),
    (dict(max_new_tokens=None), "max_new_tokens is None: give a whole number"),
    (dict(group=0), "group is 0: give 1 or more"),
    (dict(group=True), "group is True: give a whole number"),
    (dict(max_batch=0), "max_batch is 0: give 1 or more"),
    (dict(max_batch="all"), "max_batch is 'all': give a whole number"),
    (dict(seed=0.5), "seed is 0.5: give a whole number, or None for one of torch's generator"),
    (dict(seed="a"), "seed is 'a': give a whole number"),
    # sampling
    (dict(temperature=-1), "temperature is -1, must be 0"),
    (dict(temperature=float("nan")), "temperature is nan, must be 0"),
    (dict(top_p=0), r"top_p is 0, must be in \(0, 1\]"),
    (dict(top_p=1.5), "top_p is 1.5, must be in"),
    (dict(top_k=0), "top_k is 0, must be an int of at least 1"),
    # stop
    (dict(stop="end"), "stop is 'end': give None, 'eos', or a list of token ids and of lists of them"),
    (dict(stop=3), "stop is 3: give None, 'eos', or a list"),
    (dict(stop=[1, []]), "stop 1 is empty: give at least one token"),
    (dict(stop=[[1], [6]]), "stop 1 has token 6, the model's vocabulary 6"),
    (dict(stop=["a b"]), "stop 0 is 'a b': give a flat list"),
    (dict(stop="eos"), r"stop is 'eos', and the model's config names no eos_token_id: give stop=\[id\]"),
    # drafter and strategy
    (dict(drafter="eagle"), "drafter is 'eagle': give 'suffix', a regrow.rollout.Drafter, or None"),
    (dict(drafter=SuffixDrafter), "drafter is a ABCMeta: give 'suffix', a regrow.rollout.Drafter, or None"),
    (dict(drafter=SuffixDrafter(7)), "the drafter's vocabulary has 7 tokens, the model's 6: use a drafter of the"),
    (dict(strategy=Strategy(3)), "strategy is chain of 3, and nothing drafts: give a drafter, 'suffix' for one"),
    (dict(drafter="suffix", strategy="fast"), "strategy is 'fast': give a Strategy"),
    (dict(drafter="suffix", strategy=4), "strategy is 4: give a Strategy"),
    (dict(drafter=TooFew(), strategy=Strategy(2)), "propose_batch gave 1 drafts for 2 states: give one for each"),
    (dict(drafter=TooLong(), strategy=Strategy(2)), "the draft has 3 tokens, max_tokens is 2"),
    (dict(drafter=Foreign(), strategy=Strategy(2)), "node 0 has token 6, the vocabulary 6 tokens"),
    # model
    (dict(model="llama"), "the model is a str: give a transformers causal LM or an nn.Module"),
    (dict(model=torch.nn.Linear(2, 2)), "there is no transformers model in this Linear"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        roll(**options)


def test_none_needs_no_drafter():
    expected = [sequence.tolist() for sequence in roll().sequences]
    for strategy in ("none", NONE, Strategy(0)):
        assert [sequence.tolist() for sequence in roll(strategy=strategy).sequences] == expected


def test_forms_of_prompts():
    expected = [sequence.tolist() for sequence in roll(prompts=[[1, 2], [3, 4]]).sequences]
    for prompts in (
        torch.tensor([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]), [torch.tensor([1, 2]), np.array([3, 4], np.int32)],
        ((1, 2), (3, 4)), [range(1, 3), [np.int64(3), torch.tensor(4)]],
    ):  # fmt: skip
        rollout = roll(prompts=prompts, group=np.int64(1), max_new_tokens=torch.tensor(4))
        assert [sequence.tolist() for sequence in rollout.sequences] == expected


def test_a_prompt_beyond_the_context():
    model = models.attach(make_model("llama", max_position_embeddings=20))
    assert len(roll(model, [[1] * 15, [2]], max_new_tokens=5).sequences[0]) == 20
    message = "a prompt has 15 tokens and max_new_tokens is 6, the model's context 20: give max_new_tokens of at most 5"
    with pytest.raises(ValueError, match=message):
        roll(model, [[2], [1] * 15], max_new_tokens=6)
    with pytest.raises(ValueError, match=r"a prompt has 20 tokens .* the model's context 20: shorten it"):
        roll(model, [[1] * 20], max_new_tokens=1)


def test_an_unattached_model():
    with pytest.raises(ValueError, match=r"call regrow.models.attach\(model\)"):
        roll(make_model("llama"))


def test_dropout():
    policy = TinyPolicy(VOCABULARY)
    policy.noise = torch.nn.Dropout(0.1)
    with pytest.raises(ValueError, match=r"noise drops or disturbs values at random .rate 0.1. in train mode"):
        roll(policy.train())
    roll(policy.eval())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value):
    policy = TinyPolicy(VOCABULARY)
    with torch.no_grad():
        policy.head.weight[2] = value
    with pytest.raises(ValueError, match=r"the largest logit of row 0 is .*, must be finite: look for nan in"):
        roll(policy)


def test_nothing_is_computed_before_a_refusal():
    class Untouched(TinyPolicy):
        def replay_hidden(self, segment):
            assert segment.num_tokens == 1, "the probe alone"
            return super().replay_hidden(segment)

    for options, _ in REFUSED:
        if "model" not in options and not isinstance(options.get("drafter"), Silent):
            with pytest.raises(ValueError):
                roll(Untouched(VOCABULARY), **options)


def test_parameters_get_no_gradients_and_stay():
    policy = TinyPolicy(VOCABULARY)
    before = [parameter.clone() for parameter in policy.parameters()]
    rollout = roll(policy, return_hidden=True)
    assert not any(logprobs.requires_grad for logprobs in [*rollout.logprobs, rollout.hidden])
    assert all(a.equal(b) for a, b in zip(before, policy.parameters(), strict=True))
