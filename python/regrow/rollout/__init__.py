"""Rollouts on the tree: shared prompts, lossless speculation."""
