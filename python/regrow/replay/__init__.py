"""Activation replay: exact gradients of a whole tree on the memory of one path."""
