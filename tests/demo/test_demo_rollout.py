from types import SimpleNamespace

import pytest
import torch

from regrow.demo import DemoError, rollout
from regrow.demo.rollout import Group, Sampler, choose_groups, mean_reward
from regrow.demo.task import DATASET_SIZE, Task, worked_answer
from regrow.rollout import CostTable


class WordTokenizer:
    """One token per word of a chat without a template's extras."""

    eos_token_id = 0

    def apply_chat_template(self, messages, **_):
        return " ".join(message["content"] for message in messages)

    def __call__(self, text, **_):
        return SimpleNamespace(input_ids=[len(word) for word in text.split()])

    def decode(self, tokens, **_):
        return f"<answer>{tokens[0]}</answer>"


def group(name, rewards):
    return Group(name, "1", [1, 2, 3], [[4]] * len(rewards), ["text"] * len(rewards), rewards)


TASK = SimpleNamespace(
    prompt=lambda entry: [entry["number"]],
    reward=lambda entry, text: float(text == f"<answer>{entry['answer']}</answer>"),
)
ENTRIES = [{"question": "a", "answer": "1", "number": 7}, {"question": "b", "answer": "6", "number": 8}]
COSTS = CostTable([1, 4], [0, 1, 8], [[1.0, 1.01, 1.02], [1.1, 1.12, 1.2]], context_tokens=8, fingerprint={})


def test_each_prompt_gets_its_own_responses(monkeypatch):
    seen = []

    def generate(model, prompts, group, **options):
        seen.append((prompts, group, options))
        responses = [[1], [5], [6, 0], [1]] if group == 2 else [[1], [6]]
        return SimpleNamespace(responses=lambda: map(torch.tensor, responses), stats=len(seen), interrupted=False)

    monkeypatch.setattr(rollout, "generate", generate)
    sampler = Sampler(None, WordTokenizer(), TASK, COSTS, max_new_tokens=4)
    groups = sampler.sample(ENTRIES, group_size=2)
    assert [group.responses for group in groups] == [[[1], [5]], [[6, 0], [1]]]
    assert [group.rewards for group in groups] == [[1.0, 0.0], [1.0, 0.0]]
    assert mean_reward(groups) == 0.5
    likeliest = sampler.likeliest(ENTRIES)
    assert [group.responses for group in likeliest] == [[[1]], [[6]]]
    drafting = dict(drafter=sampler.drafter, strategy=sampler.selector)
    assert seen == [
        ([[7], [8]], 2, dict(max_new_tokens=4, stop=[0], **drafting)),
        ([[7], [8]], 1, dict(max_new_tokens=4, stop=[0], temperature=0)),
    ]
    assert sampler.stats == [1]  # of what is sampled to learn from


def test_an_interrupt_ends_the_demo(monkeypatch):
    monkeypatch.setattr(rollout, "generate", lambda *_, **__: SimpleNamespace(interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        Sampler(None, WordTokenizer(), TASK, COSTS, max_new_tokens=4).sample(ENTRIES, group_size=2)


def test_rollouts_of_a_model_end_and_are_drafted_for(model):
    model.set_attn_implementation("regrow")
    sampler = Sampler(model, WordTokenizer(), TASK, COSTS, max_new_tokens=12)
    for _ in range(3):
        groups = sampler.sample(ENTRIES, group_size=4)
    responses = [response for group in groups for response in group.responses]
    assert all(0 not in response[:-1] for response in responses)
    assert all(len(response) == 12 or response[-1] == 0 for response in responses)
    assert [stats.tokens > 0 for stats in sampler.stats] == [True] * 3
    assert sum(stats.drafted for stats in sampler.stats) > 0


def test_groups_without_spread_are_passed_over():
    draws = [[group("a", [1, 1]), group("b", [1, 0])], [group("c", [0, 0]), group("d", [0, 1]), group("e", [0, 1])]]
    groups, seen = choose_groups(iter(draws), 2)
    assert [group.question for group in groups] == ["b", "d"]
    assert seen == 4


def test_draws_are_bounded():
    draws = iter([[group("a", [1, 0])]] + [[group("b", [1, 1])]] * 9)
    with pytest.raises(DemoError, match="only 1 of 4 questions gave rewards that differ, 2 are needed"):
        choose_groups(draws, 2)


def test_prompts_share_as_many_examples_as_fit():
    first, second = Task("chain_sum", WordTokenizer()).questions(2)
    full = Task("chain_sum", WordTokenizer(), max_prompt_tokens=256)
    short = Task("chain_sum", WordTokenizer(), max_prompt_tokens=len(full.prompt(first)) - 1)
    assert len(short.prompt(first)) < len(full.prompt(first))
    num_question_tokens = len(first["question"].split())
    assert full.prompt(first)[:-num_question_tokens] == full.prompt(second)[:-num_question_tokens]


def test_questions_to_learn_from_are_new_and_never_held_out():
    task = Task("chain_sum", WordTokenizer(), num_heldout=20)
    held = {entry["question"] for entry in task.heldout.values()}
    shown = {task.dataset[index]["question"] for index in range(5)}
    questions = [*task.questions(30), *task.questions(30)]
    assert len(held) == 20
    assert not held & {entry["question"] for entry in questions}
    assert not held & shown
    indices = [entry["metadata"]["source_index"] for entry in questions]
    assert indices == sorted(set(indices))
    again = Task("chain_sum", WordTokenizer(), num_heldout=20)
    assert list(again.heldout) == list(task.heldout)


def test_a_task_with_too_few_questions_is_told():
    task = Task("chain_sum", WordTokenizer())
    task.next_index = DATASET_SIZE
    with pytest.raises(DemoError, match="the task's 100,000 entries hold too few different questions"):
        task.questions(1)


def test_a_question_that_is_too_long_is_told():
    task = Task("chain_sum", WordTokenizer(), max_prompt_tokens=5)
    with pytest.raises(DemoError, match="the question takes 24 tokens, the limit is 5"):
        task.prompt(task.questions(1)[0])


def test_an_unknown_task_is_told():
    with pytest.raises(DemoError, match=r"has no task 'sums': choose --task among .*chain_sum"):
        Task("sums", WordTokenizer())


def test_the_verifier_reads_the_tags_and_accepts_what_examples_show():
    task = Task("chain_sum", WordTokenizer(), seed=3)
    entry = task.questions(1)[0]
    assert task.reward(entry, worked_answer(entry)) == 1.0
    assert task.reward(entry, entry["answer"]) == 0.0


def test_examples_of_tasks_without_an_expression_are_the_answer():
    assert worked_answer({"answer": "7", "metadata": {}}) == "<answer>7</answer>"
