"""A reasoning-gym task as few-shot chat prompts with a verifier."""

import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

from regrow.demo import DemoError

INSTRUCTION = "Answer the question. Give the answer between <answer> and </answer> tags."
TASK_OPTIONS = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}
MAX_EXAMPLES = 5
DATASET_SIZE = 100_000


class Task:
    """Questions of one reasoning-gym task, each behind the same few-shot examples.

    The first `MAX_EXAMPLES` entries are kept for examples; as many are used as leave every prompt at most
    `max_prompt_tokens` long, so the beginning that prompts share is shorter than that. The next `num_heldout` entries
    that differ, from the examples too, are held out: no question to learn from has their text.
    """

    def __init__(self, name, tokenizer, *, seed=0, num_heldout=0, max_prompt_tokens=256):
        if name not in DATASETS:
            raise DemoError(f"reasoning-gym has no task {name!r}: choose --task among {', '.join(sorted(DATASETS))}")
        self.dataset = reasoning_gym.create_dataset(name, seed=seed, size=DATASET_SIZE, **TASK_OPTIONS.get(name, {}))
        self.tokenizer = tokenizer
        self.max_prompt_tokens = max_prompt_tokens
        self.next_index = MAX_EXAMPLES
        shown = {self.dataset[index]["question"] for index in range(MAX_EXAMPLES)}
        self.heldout = {}
        while len(self.heldout) < num_heldout:
            entry = self._next()
            if entry["question"] not in shown:
                self.heldout.setdefault(entry["question"], entry)

    def questions(self, count):
        """Returns the next `count` entries to learn from."""
        entries = []
        while len(entries) < count:
            entry = self._next()
            if entry["question"] not in self.heldout:
                entries.append(entry)
        return entries

    def _next(self):
        if self.next_index == DATASET_SIZE:
            raise DemoError(
                f"the task's {DATASET_SIZE:,} entries hold too few different questions: choose another --task"
            )
        self.next_index += 1
        return self.dataset[self.next_index - 1]

    def prompt(self, entry):
        """Returns the token ids of the prompt that asks `entry`; raises DemoError if it is too long on its own."""
        for num_examples in range(MAX_EXAMPLES, -1, -1):
            tokens = self._render(entry, num_examples)
            if len(tokens) <= self.max_prompt_tokens:
                return tokens
        raise DemoError(
            f"the question takes {len(tokens)} tokens, the limit is {self.max_prompt_tokens}: choose another --task"
        )

    def reward(self, entry, response):
        """Returns the verifier's score of a response's text, 0 to 1."""
        return float(self.dataset.score_answer(extract_answer(response), entry))

    def _render(self, entry, num_examples):
        messages = [{"role": "system", "content": INSTRUCTION}]
        for index in range(num_examples):
            example = self.dataset[index]
            messages.append({"role": "user", "content": example["question"]})
            messages.append({"role": "assistant", "content": worked_answer(example)})
        messages.append({"role": "user", "content": entry["question"]})
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(text, add_special_tokens=False).input_ids


def worked_answer(entry):
    """The response an example shows: the expression, where the task has one, is worked before the answer is given."""
    expression = entry["metadata"].get("expression")
    work = f"{expression} = {entry['answer']}. " if expression else ""
    return f"{work}<answer>{entry['answer']}</answer>"
