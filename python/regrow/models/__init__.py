"""transformers models on prefix trees: importing this package registers the attention implementation "regrow"."""

import importlib.util

if importlib.util.find_spec("transformers") is None:
    raise ImportError("regrow.models needs transformers: pip install regrow[demo]")

from regrow.models.hook import NAME, packed, register

register()

__all__ = ["NAME", "packed", "register"]
