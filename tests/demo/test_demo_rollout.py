from types import SimpleNamespace

import pytest

from regrow.demo import DemoError, rollout
from regrow.demo.rollout import draw_groups, until_end
from regrow.demo.task import Task, worked_answer


class WordTokenizer:
    """One token per word of a chat without a template's extras."""

    eos_token_id = 0

    def apply_chat_template(self, messages, **_):
        return " ".join(message["content"] for message in messages)

    def __call__(self, text, **_):
        return SimpleNamespace(input_ids=[len(word) for word in text.split()])

    def decode(self, tokens, **_):
        return f"<answer>{tokens[0]}</answer>"


def draw(monkeypatch, rewards, **options):
    """Draws groups whose rewards are given, question by question."""
    responses = iter([[[int(reward)] for reward in group] for group in rewards])
    monkeypatch.setattr(rollout, "sample", lambda *_: next(responses))
    task = SimpleNamespace(
        question=lambda index: {"question": f"question {index}", "answer": "1"},
        prompt=lambda entry: [1, 2, 3],
        reward=lambda entry, text: float(text == "<answer>1</answer>"),
    )
    return draw_groups(None, WordTokenizer(), task, num_groups=2, group_size=2, max_new_tokens=4, **options)


def test_groups_without_spread_are_drawn_again(monkeypatch):
    kept = []
    groups, drawn = draw(monkeypatch, [[1, 1], [1, 0], [0, 0], [0, 1]], on_draw=kept.append)
    assert [group.question for group in groups] == ["question 1", "question 3"]
    assert [group.rewards for group in groups] == [[1.0, 0.0], [0.0, 1.0]]
    assert drawn == 4
    assert kept == [0, 1, 1, 2]


def test_draws_are_bounded(monkeypatch):
    with pytest.raises(DemoError, match="only 1 of 16 questions gave rewards that differ, 2 are needed"):
        draw(monkeypatch, [[1, 0]] + [[1, 1]] * 15)


def test_a_response_ends_with_its_end_token():
    assert until_end([5, 6, 0, 0, 0], 0) == [5, 6, 0]
    assert until_end([5, 6], 0) == [5, 6]


def test_prompts_share_as_many_examples_as_fit():
    full = Task("chain_sum", WordTokenizer(), max_prompt_tokens=256)
    short = Task("chain_sum", WordTokenizer(), max_prompt_tokens=len(full.prompt(full.question(0))) - 1)
    assert len(short.prompt(short.question(0))) < len(full.prompt(full.question(0)))
    first, second = (full.prompt(full.question(index)) for index in range(2))
    num_question_tokens = len(full.question(0)["question"].split())
    assert first[:-num_question_tokens] == second[:-num_question_tokens]


def test_a_question_that_is_too_long_is_told():
    task = Task("chain_sum", WordTokenizer(), max_prompt_tokens=5)
    with pytest.raises(DemoError, match="the question takes 24 tokens, the limit is 5"):
        task.prompt(task.question(0))


def test_an_unknown_task_is_told():
    with pytest.raises(DemoError, match=r"has no task 'sums': choose --task among .*chain_sum"):
        Task("sums", WordTokenizer())


def test_the_verifier_reads_the_tags_and_accepts_what_examples_show():
    task = Task("chain_sum", WordTokenizer(), seed=3)
    entry = task.question(0)
    assert task.reward(entry, worked_answer(entry)) == 1.0
    assert task.reward(entry, entry["answer"]) == 0.0


def test_examples_of_tasks_without_an_expression_are_the_answer():
    assert worked_answer({"answer": "7", "metadata": {}}) == "<answer>7</answer>"
