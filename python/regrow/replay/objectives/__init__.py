"""Ready-made objectives of the replay engine.

An objective is called as `objective(logprobs, tree, entropy)` with log-probs and entropies [T] on the tree's packed
axis, and returns a scalar to minimise. `where(tree)` says which tokens it looks at; sums over tokens have
`on_tokens`, too; `select(sequences)` is its part on some of the sequences.
"""

from regrow.replay.objectives.advantages import group_advantages
from regrow.replay.objectives.policy import CISPO, DAPO, GRPO, PPO, DrGRPO, PolicyObjective
from regrow.replay.objectives.preference import DPO
from regrow.replay.objectives.sequence import GSPO
from regrow.replay.objectives.supervised import SFT

__all__ = ["CISPO", "DAPO", "DPO", "GRPO", "GSPO", "PPO", "SFT", "DrGRPO", "PolicyObjective", "group_advantages"]
