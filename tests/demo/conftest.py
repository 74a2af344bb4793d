"""The packaged model, loaded once."""

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from textgen.demo import MODEL_FOLDER
from tools.demo_model.evaluate import Model


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    made = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    assert isinstance(made, PreTrainedTokenizerFast)
    return made


@pytest.fixture(scope="session")
def model() -> Model:
    torch.set_num_threads(1)
    return Model(MODEL_FOLDER)
