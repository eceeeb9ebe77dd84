"""What the rollout benches run on: SmolLM2, questions of gsm_symbolic behind shared worked examples, random text."""

import io
import statistics
import time
from contextlib import redirect_stderr
from dataclasses import dataclass

import reasoning_gym
import torch

from regrow.demo.learn import policy_dtype
from regrow.models import NAME, attach, smollm2

SHARED_TOKENS = 256


@dataclass
class Models:
    """SmolLM2 under regrow's attention. Its peer is the same object under SDPA, so that both read the same memory."""

    ours: torch.nn.Module
    tokenizer: object

    @classmethod
    def load(cls, dtype=None):
        with redirect_stderr(io.StringIO()):  # the dequantiser's bar
            model, tokenizer = smollm2.load(dtype or policy_dtype())
        return cls(attach(model), tokenizer)

    @property
    def dtype(self):
        return str(self.ours.dtype).removeprefix("torch.")


def question_prompts(tokenizer, count):
    """Prompts that share their first 256 tokens, worked examples, and end in a question each."""
    dataset = reasoning_gym.create_dataset("gsm_symbolic", seed=0, size=10_000)
    shared = []
    for index in range(5_000, 10_000):
        entry = dataset[index]
        text = f"Question: {entry['question']}\nAnswer: {entry['metadata']['answer_cot']}\n\n"
        shared += tokenizer(text, add_special_tokens=False).input_ids
        if len(shared) >= SHARED_TOKENS:
            break
    asked = (f"Question: {dataset[index]['question']}\nAnswer:" for index in range(count))
    return [shared[:SHARED_TOKENS] + tokenizer("\n\n" + text, add_special_tokens=False).input_ids for text in asked]


def random_prompts(tokenizer, count, length=64):
    """Tokens drawn at random: nothing in them repeats but by accident."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(len(tokenizer), (count, length), generator=generator).tolist()


def transformers_generate(models, prompts, group, max_new_tokens, seed):
    """Seconds of transformers' own sampling, all sequences in one batch, padded on the left."""
    rows = [prompt for prompt in prompts for _ in range(group)]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    torch.manual_seed(seed)
    models.ours.set_attn_implementation("sdpa")
    try:
        began = time.perf_counter()
        models.ours.generate(
            ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=True, top_k=0, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        return time.perf_counter() - began
    finally:
        models.ours.set_attn_implementation(NAME)


def pairs(rounds, *runs):
    """Seconds of each run, in turn: a list of rounds for each."""
    seconds = [[run(seed) for run in runs] for seed in range(rounds)]
    return [list(column) for column in zip(*seconds, strict=True)]


def median_ratio(theirs, ours):
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
