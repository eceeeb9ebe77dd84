"""transformers models on prefix trees: importing this package registers the attention implementation "regrow"."""

try:
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: F401
except ImportError as error:
    raise ImportError("regrow.models needs transformers 5.24 or later: pip install regrow[models]") from error

from regrow.models.attached import attach, packed
from regrow.models.checks import NAME
from regrow.models.head import logprobs
from regrow.models.hook import register

register()

__all__ = ["NAME", "attach", "logprobs", "packed", "register"]
