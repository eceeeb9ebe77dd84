"""Arguments of one call lie on one device: the check, by name."""


def same_device(**tensors):
    """Raises ValueError, with both devices and the remedy, unless all tensors lie on one; None is skipped.

    The dispatcher chooses by any one argument: a stray meta tensor would select the kernel that computes nothing.
    """
    first = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if first is None:
            first, device = name, tensor.device
        elif tensor.device != device:
            raise ValueError(
                f"{first} is on {device} and {name} on {tensor.device}: move them to one device with .to(device)"
            )
