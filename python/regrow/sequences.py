"""Brings token sequences of any accepted form to one: `(tokens, cu_seqlens)`, two int64 NumPy arrays."""

import operator

import numpy as np
import torch

from regrow._load import _C

_FLAT = "give each sequence as one flat list, array or tensor of integer token ids"
_LARGEST = np.iinfo(np.int64).max
_SHORT = 4096  # tokens per sequence on average, below which .numpy() costs more than it saves
_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}
_LATE = {torch.uint16, torch.uint32, torch.uint64}  # torch has few operations for these: no promotion, for one
_PACKED = "give (tokens, cu_seqlens) as two 1-D integer tensors"


def concatenate(sequences):
    """A list of 1-D integer tensors, arrays or lists, or a tuple (tokens, cu_seqlens) -> tokens, cu_seqlens."""
    if isinstance(sequences, tuple):
        if len(sequences) != 2:
            raise ValueError(f"a tuple of {len(sequences)}: {_PACKED}, or a list of sequences")
        return to_int64(sequences[0], "tokens", _PACKED), to_int64(sequences[1], "cu_seqlens", _PACKED)
    if isinstance(sequences, torch.Tensor | np.ndarray):
        shape = tuple(sequences.shape)
        raise ValueError(f"sequences is one array of shape {shape}: cut padding off and pass a list of 1-D sequences")
    if not isinstance(sequences, list):
        kind = type(sequences).__name__
        raise ValueError(f"sequences is a {kind}: pass a list of sequences, or (tokens, cu_seqlens)")

    kinds = set(map(type, sequences))
    if kinds <= {list, tuple}:
        return _C.concatenate_lists(sequences)
    # A look at a tensor costs 0.1 us and .numpy() 2.4 us: 65,536 short sequences must be joined by one call.
    if len(kinds) == 1 and kinds <= {torch.Tensor, np.ndarray}:
        dtypes = set(map(operator.attrgetter("dtype"), sequences))
        ranks = set(map(operator.attrgetter("ndim"), sequences))
        sparse = kinds == {torch.Tensor} and any(map(operator.attrgetter("is_sparse"), sequences))
        if ranks == {1} and all(map(_joins_as_int64, dtypes)) and not sparse:
            return _join(sequences)
    return _join([to_int64(sequence, f"sequence {index}", _FLAT) for index, sequence in enumerate(sequences)])


def _join(sequences):
    tensors = isinstance(sequences[0], torch.Tensor)
    cu_seqlens = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum(list(map(torch.Tensor.numel if tensors else len, sequences)), out=cu_seqlens[1:])  # len(tensor): 0.5 us
    tokens = np.empty(cu_seqlens[-1], np.int64)  # NumPy asks for huge pages, torch does not
    if tensors:
        if not all(map(operator.attrgetter("is_cpu"), sequences)):
            sequences = [sequence.cpu() for sequence in sequences]
        if tokens.size < _SHORT * len(sequences):
            torch.cat(sequences, out=torch.from_numpy(tokens))
            return tokens, cu_seqlens
        # torch would start threads for each and wait for them: 10 x the time where others keep the cores busy.
        sequences = [sequence.numpy() for sequence in sequences]
    np.concatenate(sequences, out=tokens, casting="unsafe")
    return tokens, cu_seqlens


def depad(ids, attention_mask):
    """ids and attention_mask [B,L] -> tokens, cu_seqlens as `concatenate` makes them, and the mask as a bool tensor.

    Everything on the CPU. ValueError unless both are matrices of one shape, the mask holds 0 and 1 only, and each row
    has a 1.
    """
    ids, mask = (_to_cpu(values, name) for values, name in ((ids, "ids"), (attention_mask, "attention_mask")))
    if ids.dim() != 2 or mask.shape != ids.shape:
        raise ValueError(
            f"ids has shape {tuple(ids.shape)}, attention_mask {tuple(mask.shape)}: give both as [batch, length]"
        )
    if not _is_integer(ids.dtype):
        raise ValueError(f"ids holds {ids.dtype}, not integers: give token ids")
    real = mask != 0
    if not torch.equal(real.to(mask.dtype), mask):
        other = mask[real & (mask != 1)][0].item()
        raise ValueError(f"attention_mask holds {other}: give 1 (or True) at real tokens and 0 (or False) at padding")
    lengths = real.sum(1)
    if not lengths.all():
        row = int((lengths == 0).nonzero()[0])
        raise ValueError(f"row {row} has no real token, only padding: leave it out")
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return ids[real].to(torch.int64).numpy(), cu_seqlens.numpy(), real


def to_int64(values, name, remedy):
    """A list, array or tensor as a contiguous int64 array; ValueError with the remedy unless it is 1-D and integer."""
    _refuse_sparse_and_masked(values, name, remedy)
    if isinstance(values, torch.Tensor):
        array, dtype, rank, size = None, values.dtype, values.dim(), values.numel()
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise ValueError(f"{name} is ragged: {remedy}") from error
        dtype, rank, size = array.dtype, array.ndim, array.size
    if rank != 1:
        raise ValueError(f"{name} has {rank} dimensions: {remedy}")
    if size and not _is_integer(dtype):  # an empty list has no dtype of its own
        for position, item in enumerate(values if isinstance(values, list | tuple) else ()):
            if type(item) is int and not -_LARGEST - 1 <= item <= _LARGEST:  # what made NumPy choose float or object
                value = item if item.bit_length() < 128 else f"an integer of {item.bit_length()} bits"
                raise ValueError(f"{name} has {value} at position {position}, too large for int64: {remedy}")
        raise ValueError(f"{name} holds {dtype}, not integers: {remedy}")
    if array is None:
        if dtype != torch.uint64:
            return values.detach().to("cpu", torch.int64).contiguous().numpy()
        array = values.detach().cpu().numpy()
    elif isinstance(values, list | tuple):
        _refuse_disguised(values, name, remedy)
    if array.dtype.kind == "u" and (large := np.flatnonzero(array > _LARGEST)).size:
        raise ValueError(f"{name} has {array[large[0]]} at position {large[0]}, too large for int64: {remedy}")
    return np.ascontiguousarray(array, np.int64)


def _to_cpu(values, name):
    _refuse_sparse_and_masked(values, name, "give a dense tensor or array")
    tensor = torch.as_tensor(values, device="cpu").detach()
    if tensor.dtype not in _LATE:
        return tensor
    if tensor.dtype == torch.uint64 and (tensor.numpy() > _LARGEST).any():
        raise ValueError(f"{name} has {tensor.numpy().max()}, too large for int64: give token ids")
    return tensor.to(torch.int64)


def _refuse_sparse_and_masked(values, name, remedy):
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array, whose mask a tree cannot keep: pass .compressed(); {remedy}")
    if isinstance(values, torch.Tensor) and values.layout != torch.strided:
        raise ValueError(f"{name} has layout {values.layout}: {remedy}")


def _refuse_disguised(items, name, remedy):
    """What NumPy takes for an integer among integers: booleans, in tensors too, and what lies under a mask."""
    if set(map(type, items)) <= {int}:
        return
    for position, item in enumerate(items):
        if isinstance(item, bool | np.bool_ | np.ma.MaskedArray) or getattr(item, "dtype", None) == torch.bool:
            raise ValueError(f"{name} has {item!r} at position {position}, which is no integer: {remedy}")


def _joins_as_int64(dtype):
    """Whether arrays of this dtype can be joined without a look at the values."""
    if isinstance(dtype, torch.dtype):
        return dtype in _INTEGERS - _LATE
    return dtype.kind == "i" or (dtype.kind == "u" and dtype.itemsize < 8)


def _is_integer(dtype):
    return dtype in _INTEGERS if isinstance(dtype, torch.dtype) else dtype.kind in "iu"
