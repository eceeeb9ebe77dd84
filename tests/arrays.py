"""Tensors as the emulator takes them: numpy arrays, 16-bit floats as bits."""

import torch

SIXTEEN_BIT = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
NAMES = {torch.float64: "float64", torch.float32: "float32", torch.int32: "int32", torch.uint8: "uint8", **SIXTEEN_BIT}


def to_numpy(tensor):
    return (tensor.view(torch.uint16) if tensor.dtype in SIXTEEN_BIT else tensor).numpy()


def to_torch(array, dtype):
    return torch.from_numpy(array).view(dtype) if dtype in SIXTEEN_BIT else torch.from_numpy(array)
