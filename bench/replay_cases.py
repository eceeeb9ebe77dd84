"""What the replay benches run on: SmolLM2 with a long prompt of real questions, and a small model with a huge one."""

import io
from contextlib import redirect_stderr
from dataclasses import dataclass

import reasoning_gym
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import regrow
from regrow.models import attach, smollm2
from regrow.replay.objectives import GRPO


@dataclass
class Case:
    """A group of responses of equal length to one prompt, an advantage for each, and GRPO over them, by token-mean."""

    sequences: list
    prompt_tokens: int
    advantages: list

    @property
    def tree(self):
        return regrow.PrefixTree.from_sequences(self.sequences)

    @property
    def objective(self):
        masks = [torch.arange(len(sequence)) >= self.prompt_tokens for sequence in self.sequences]
        return GRPO(masks, self.advantages, aggregation="token-mean")

    @property
    def num_response_tokens(self):
        return sum(len(sequence) - self.prompt_tokens for sequence in self.sequences)


def advantages(group):
    """Alternating signs of growing size: none cancels another."""
    return [(-1.0) ** index * (0.5 + index / group) for index in range(group)]


def load_smollm2(dtype=torch.float32):
    with redirect_stderr(io.StringIO()):  # the dequantiser's bar
        model, tokenizer = smollm2.load(dtype)
    return attach(model), tokenizer


def question_case(tokenizer, prompt_tokens=4096, group=8, response_tokens=128):
    """Questions and answers of gsm_symbolic to fill the prompt; every response goes on with other ones."""
    dataset = reasoning_gym.create_dataset("gsm_symbolic", seed=0, size=10_000)
    texts = (f"Question: {entry['question']}\nAnswer: {entry['metadata']['answer_cot']}\n\n" for entry in dataset)
    tokens = []

    def take(count):
        while len(tokens) < count:
            tokens.extend(tokenizer(next(texts), add_special_tokens=False).input_ids)
        taken = tokens[:count]
        del tokens[:count]
        return torch.tensor(taken)

    prompt = take(prompt_tokens)
    responses = [take(response_tokens) for _ in range(group)]
    sequences = [torch.cat([prompt, response]) for response in responses]
    return Case(sequences, prompt_tokens, advantages(group))


def small_model(layers=4, window=4096, dtype=torch.bfloat16):
    """One full-attention layer of 2 query heads of 64 over 1 KV head, and windowed ones."""
    config = AutoConfig.for_model(
        "qwen2", vocab_size=1024, hidden_size=128, intermediate_size=384, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, max_position_embeddings=1 << 22,
        use_sliding_window=True, sliding_window=window, tie_word_embeddings=False,
        layer_types=["full_attention"] + ["sliding_attention"] * (layers - 1),
    )  # fmt: skip
    torch.manual_seed(0)
    return attach(AutoModelForCausalLM.from_config(config, dtype=dtype))


def random_case(positions, group, response_tokens=256, vocabulary=1024):
    """Random tokens; the longest path has `positions` tokens."""
    generator = torch.Generator().manual_seed(group)
    tokens = torch.randint(vocabulary, (positions + (group - 1) * response_tokens,), generator=generator)
    prompt, responses = tokens[: positions - response_tokens], tokens[positions - response_tokens :]
    sequences = [torch.cat([prompt, response]) for response in responses.split(response_tokens)]
    return Case(sequences, len(prompt), advantages(group))
