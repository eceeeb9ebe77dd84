"""How many tokens will pass through a model, and have."""

from regrow.replay.schedule import gradient_order, path_to


def update_tokens(segments, *, exact, values):
    """Tokens of an update: of the gradient pass, and of a pass for values before it."""
    last = len(segments) - 1
    passes = [range(len(segments))] if values else []
    on_path = path_to(segments, last) if values and segments else []  # as the values pass leaves it
    order = [index for _, index in gradient_order(segments, on_path)]
    passes.append(order if exact else range(len(segments)))
    return sum(segments[index].size for indices in passes for index in indices)


def reporter(progress, total):
    """A function of so many tokens more that calls `progress(done, total)`, if there is one."""
    done = 0

    def on_tokens(count):
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return on_tokens
