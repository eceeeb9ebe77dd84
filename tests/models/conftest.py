import pytest

from model_families import make_model, make_tree


@pytest.fixture
def tree():
    return make_tree()


@pytest.fixture
def model():
    return make_model("llama")
