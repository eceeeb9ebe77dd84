"""Log-probs of a whole tree without gradients, on the memory of one path: of an old policy, or a reference."""

from regrow.replay.job import Job
from regrow.replay.progress import reporter
from regrow.replay.walk import Walk


def logprobs(
    model, tree, *, where=None, chunk_tokens=4096, budget_bytes=None, temperature=1.0, return_entropy=False,
    progress=None,
):  # fmt: skip
    """Log-probability of every token of a tree under the model, 0 at roots, values only.

    where: boolean [T], the tokens to score; others get 0 and cost nothing. The other arguments are those of `backward`.
    Returns logp [T], or (logp, entropy) with `entropy[t]` that of the row that predicts t (nats), in fp32 (fp64 for
    fp64 models), as `regrow.models.logprobs` does. Raises as `backward` does.

        old = regrow.replay.logprobs(model, tree)
    """
    job = Job.of_values(model, tree, where, temperature=temperature)
    segments = job.segments(job.chunk_tokens(chunk_tokens, budget_bytes))
    total = sum(segment.size for segment in segments)
    walk = Walk(job, segments, temperature=temperature, on_tokens=reporter(progress, total))
    walk.values()
    return (walk.logprobs, walk.entropy) if return_entropy else walk.logprobs
