"""Brings what users give to tensors: one per sequence or end to end, checked, on one device."""

import math

import torch

_FORMS = "give a list of one 1-D tensor per sequence, or all end to end as one 1-D tensor with cu_seqlens"


def read_mask(response_mask, cu_seqlens):
    """-> the mask end to end, bool [sum of lengths], and lengths int64 [num_sequences], on the mask's device.

    Raises ValueError for no sequences, an empty one, anything but booleans in one dimension, cu_seqlens that do not
    cover the mask, and a first token under the mask.
    """
    if isinstance(response_mask, list | tuple):
        if cu_seqlens is not None:
            raise ValueError("response_mask is a list, which says the lengths: leave cu_seqlens away")
        parts = [torch.as_tensor(part).detach() for part in response_mask]
        if not parts:
            raise ValueError("response_mask has no sequences: give one tensor for each")
        for sequence, part in enumerate(parts):
            _check_vector(f"response_mask[{sequence}]", part)
            _check_device(f"response_mask[{sequence}]", part, parts[0].device)
            if not part.numel():
                raise ValueError(f"response_mask[{sequence}] is empty: leave the sequence out, as the tree must")
        lengths = torch.tensor([part.numel() for part in parts], device=parts[0].device)
        mask = torch.cat(parts)
    else:
        mask = torch.as_tensor(response_mask).detach()
        _check_vector("response_mask", mask)
        if cu_seqlens is None:
            raise ValueError("response_mask is one tensor, which does not say where sequences end: give cu_seqlens too")
        bounds = torch.as_tensor(cu_seqlens, device=mask.device).to(torch.int64)
        lengths = bounds.diff()
        if bounds.dim() != 1 or bounds.numel() < 2 or bounds[0] != 0 or bounds[-1] != mask.numel() or lengths.min() < 1:
            raise ValueError(
                f"cu_seqlens does not rise from 0 to the {mask.numel()} entries of response_mask: give tree.cu_seqlens"
            )
    if mask.dtype != torch.bool:
        raise ValueError(f"response_mask holds {mask.dtype}: give booleans (mask.bool())")
    first = mask[lengths.cumsum(0) - lengths]  # no tree predicts these: they are roots
    if first.any():
        raise ValueError(
            f"response_mask is True at the first token of sequence {int(first.nonzero()[0])}, which nothing predicts: "
            "set it to False there, or begin the sequence with its prompt or a BOS token"
        )
    return mask, lengths


def read_token_data(name, values, lengths):
    """-> the values of all tokens of all sequences end to end, [sum of lengths]."""
    total = int(lengths.sum())
    if not isinstance(values, list | tuple):
        values = _to_tensor(values, lengths.device)
        if values.dim() != 1 or values.numel() != total:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)}, the sequences have {total} tokens: {_FORMS}, "
                "one entry per token of the whole sequence"
            )
        _check_device(name, values, lengths.device)
        return values
    if len(values) != lengths.numel():
        raise ValueError(f"{name} has {len(values)} sequences, response_mask has {lengths.numel()}: give one for each")
    parts = [_to_tensor(part, lengths.device) for part in values]
    for sequence, (part, length) in enumerate(zip(parts, lengths.tolist(), strict=True)):
        _check_device(f"{name}[{sequence}]", part, lengths.device)
        if part.dim() != 1 or part.numel() != length:
            raise ValueError(
                f"{name}[{sequence}] has shape {tuple(part.shape)}, the sequence has {length} tokens: "
                "give one entry per token of the whole sequence (outside the response anything will do)"
            )
    return torch.cat(parts)


def read_sequence_data(name, values, lengths):
    """-> one value per sequence, [num_sequences]. Raises ValueError for another shape, NaN and inf."""
    values = _to_tensor(values, lengths.device)
    if values.dim() != 1 or values.numel() != lengths.numel():
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}, there are {lengths.numel()} sequences: give one number for each"
        )
    _check_device(name, values, lengths.device)
    wrong = ~values.isfinite()
    if wrong.any():
        sequence = int(wrong.nonzero()[0])
        raise ValueError(f"{name} is {values[sequence].item()} for sequence {sequence}: give finite numbers")
    return values.clone()  # the caller may go on writing into its own


def is_per_token(values, lengths):
    """Whether these are values for every token: a list of vectors, or one vector as long as all sequences together."""
    if isinstance(values, list | tuple):
        return any(isinstance(item, list | tuple) or getattr(item, "ndim", 0) > 0 for item in values)
    values = torch.as_tensor(values)
    return values.dim() == 1 and values.numel() == int(lengths.sum()) != lengths.numel()


def read_indices(name, values, size, device):
    """Integers in [0, size), a list or a 1-D tensor -> a new int64 [M]. Raises ValueError for anything else."""
    indices = torch.as_tensor(values, device=device)
    if indices.numel() == 0:
        indices = indices.to(torch.int64)
    if indices.dim() != 1 or indices.dtype == torch.bool or indices.is_floating_point() or indices.is_complex():
        raise ValueError(
            f"{name} has shape {tuple(indices.shape)} and holds {indices.dtype}: give a list of indices of sequences"
        )
    outside = (indices < 0) | (indices >= size)
    if outside.any():
        raise ValueError(f"{name} has {int(indices[outside][0])}, there are {size} sequences: count them from 0")
    return indices.to(torch.int64, copy=True)


def read_number(name, value, low=-math.inf, high=math.inf):
    """A finite number in [low, high] as a Python float; ValueError for any other."""
    value = float(value)
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} is {value:g}: give a finite number in [{low:g}, {high:g}]")
    return value


def _to_tensor(values, device):
    """Lists of Python numbers become fp64, so that a model in fp64 gets all of them."""
    if hasattr(values, "dtype"):
        return torch.as_tensor(values).detach()
    return torch.tensor(values, dtype=torch.float64, device=device)


def _check_vector(name, values):
    if values.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(values.shape)}: {_FORMS}, padding cut off (mask[attention_mask])")


def _check_device(name, values, device):
    if values.device != device:
        raise ValueError(f"{name} is on {values.device}, response_mask on {device}: put all data on one device")
