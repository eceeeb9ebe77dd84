"""Groups of sampled responses with the verifier's rewards."""

from dataclasses import dataclass
from itertools import islice

from regrow.demo import DemoError
from regrow.rollout import Calibrated, SuffixDrafter, generate

MAX_DRAWS = 4


@dataclass(frozen=True)
class Group:
    """One question's responses: token ids without the prompt, texts, and the verifier's rewards."""

    question: str
    answer: str
    prompt: list[int]
    responses: list[list[int]]
    texts: list[str]
    rewards: list[float]

    @property
    def mean_reward(self):
        return sum(self.rewards) / len(self.rewards)

    @property
    def differs(self):
        """Whether the rewards differ: a group of equal rewards has no advantage and no gradient."""
        return max(self.rewards) > min(self.rewards)


class Sampler:
    """Samples from the policy as it is when it is asked, and lets the task's verifier score the responses.

    costs: the policy's `CostTable`, by which each step of a rollout drafts or does not. What all rollouts have said is
    drafted from: answers to other questions look alike. stats: of each rollout.
    """

    def __init__(self, model, tokenizer, task, costs, *, max_new_tokens):
        self.model, self.tokenizer, self.task = model, tokenizer, task
        self.max_new_tokens = max_new_tokens
        self.drafter, self.selector = SuffixDrafter(across_prompts=True), Calibrated(costs)
        self.stats = []

    def sample(self, entries, group_size):
        """Groups of `group_size` responses to each entry, all sampled at once."""
        rollout = self._generate(entries, group_size, drafter=self.drafter, strategy=self.selector)
        self.stats.append(rollout.stats)
        return self._groups(entries, group_size, rollout)

    def likeliest(self, entries):
        """One group for each entry: its greedy response."""
        return self._groups(entries, 1, self._generate(entries, 1, temperature=0))

    def _generate(self, entries, group_size, **options):
        prompts = [self.task.prompt(entry) for entry in entries]
        stop = [self.tokenizer.eos_token_id]
        rollout = generate(self.model, prompts, group_size, max_new_tokens=self.max_new_tokens, stop=stop, **options)
        if rollout.interrupted:  # what is finished is too little to learn from
            raise KeyboardInterrupt
        return rollout

    def _groups(self, entries, group_size, rollout):
        sampled, groups = [response.tolist() for response in rollout.responses()], []
        for index, entry in enumerate(entries):
            responses = sampled[index * group_size : (index + 1) * group_size]
            texts = [self.tokenizer.decode(response, skip_special_tokens=True) for response in responses]
            rewards = [self.task.reward(entry, text) for text in texts]
            groups.append(Group(entry["question"], entry["answer"], self.task.prompt(entry), responses, texts, rewards))
        return groups


def mean_reward(groups):
    """Over all responses."""
    return sum(group.mean_reward for group in groups) / len(groups)


def choose_groups(draws, count):
    """The first `count` groups whose rewards differ, and the number of groups looked at.

    draws: an iterator of lists of groups. Raises DemoError if `MAX_DRAWS` of them do not suffice.
    """
    chosen, seen = [], 0
    for groups in islice(draws, MAX_DRAWS):
        for group in groups:
            seen += 1
            if group.differs:
                chosen.append(group)
            if len(chosen) == count:
                return chosen, seen
    raise DemoError(
        f"only {len(chosen)} of {seen} questions gave rewards that differ, {count} are needed: "
        "try another --seed, a larger --group, or an easier --task"
    )
