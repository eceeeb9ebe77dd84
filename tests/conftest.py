"""Its presence puts this folder on the import path: `import named_trees` works in every test."""

from hypothesis import settings

# The first example of a test may load libraries; on a shared machine a deadline tests the neighbours.
settings.register_profile("regrow", deadline=None)
settings.load_profile("regrow")
