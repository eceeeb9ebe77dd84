"""Groups of sampled responses, drawn until their rewards differ."""

from dataclasses import dataclass

import torch

from regrow.demo import DemoError

MAX_DRAWS = 16


@dataclass(frozen=True)
class Group:
    """One question's responses: token ids without the prompt, texts, and the verifier's rewards."""

    question: str
    answer: str
    prompt: list[int]
    responses: list[list[int]]
    texts: list[str]
    rewards: list[float]


@torch.no_grad()
def sample(model, tokenizer, prompt, group_size, max_new_tokens):
    """Samples at temperature 1 from the whole vocabulary; a response ends at its end-of-turn token, or at the limit."""
    prompts = torch.tensor(prompt, device=model.device).expand(group_size, -1)
    rows = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=max_new_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=tokenizer.eos_token_id,
    )
    return [until_end(row, tokenizer.eos_token_id) for row in rows[:, len(prompt) :].tolist()]


def until_end(tokens, end_token):
    """The tokens up to and including the first `end_token`; all of them if there is none."""
    return tokens[: tokens.index(end_token) + 1] if end_token in tokens else tokens


def draw_groups(model, tokenizer, task, *, num_groups, group_size, max_new_tokens, on_draw=lambda kept: None):
    """Returns (groups, number of questions drawn): the first `num_groups` questions whose rewards are not all equal.

    A group of equal rewards has no advantage and no gradient. Raises DemoError if `MAX_DRAWS` questions do not
    suffice. `on_draw(number kept)` is called after each question.
    """
    groups = []
    for index in range(MAX_DRAWS):
        entry = task.question(index)
        prompt = task.prompt(entry)
        responses = sample(model, tokenizer, prompt, group_size, max_new_tokens)
        texts = [tokenizer.decode(response, skip_special_tokens=True) for response in responses]
        rewards = [task.reward(entry, text) for text in texts]
        if max(rewards) > min(rewards):
            groups.append(Group(entry["question"], entry["answer"], prompt, responses, texts, rewards))
        on_draw(len(groups))
        if len(groups) == num_groups:
            return groups, index + 1
    raise DemoError(
        f"only {len(groups)} of {MAX_DRAWS} questions gave rewards that differ, {num_groups} are needed: "
        f"try another --seed, a larger --group, or an easier --task"
    )
