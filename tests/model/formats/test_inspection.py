"""The checks of `inspect_model` on files that do not fit together."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.inference.small_models import TOKENIZER, save_small

from bertie.base.errors import ModelError
from bertie.model.formats.inspection import inspect_model
from bertie.model.formats.weights import load_model
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

pytestmark = pytest.mark.usefixtures("unverified")  # directories are changed here


@pytest.mark.parametrize(
    ("last_token", "lowercase", "found"),
    [
        ("Upper", True, "the vocabulary has upper-case letters"),
        ("Upper", False, ""),
        ("upper", True, ""),
        ("upper", False, "the vocabulary has no upper-case letters"),
    ],
)
def test_casing_must_match_in_both_directions(tmp_path, last_token, lowercase, found):
    path = save_small(tmp_path, "encoder")
    Tokenizer(Vocabulary([*TOKENIZER.vocabulary.tokens[:-1], last_token]), lowercase).save(path)
    (check,) = (
        check for check in inspect_model(path).checks if check.name == "casing matches the vocabulary"
    )
    assert check.passed == (not found)
    assert check.found.startswith(found)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantized_weights_are_reported_and_not_loaded(tmp_path, dtype):
    path = save_small(tmp_path, "encoder")
    weights = load_file(path / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.weight"
    save_file(weights | {name: weights[name].to(dtype)}, path / "model.safetensors")
    (check,) = (check for check in inspect_model(path).checks if not check.passed)
    type_name = str(dtype).removeprefix("torch.")
    assert (check.name, check.found) == ("weights complete", f"{name} {type_name}")
    with pytest.raises(ModelError, match=f"{name} has the type {type_name}, as in a quantized model"):
        load_model(path)


@pytest.mark.parametrize("count", [3, 4])
def test_only_the_first_faults_are_listed(tmp_path, count):
    path = save_small(tmp_path, "encoder")
    weights = load_file(path / "model.safetensors")
    missing = [name for name in weights if name.startswith("bert.encoder.layer.1.output")][:count]
    save_file({name: weights[name] for name in weights.keys() - {*missing}}, path / "model.safetensors")
    (check,) = (check for check in inspect_model(path).checks if not check.passed)
    assert check.name == "weights complete"
    names, more, _ = check.found.partition(", … (4)")
    assert len(names.split(", ")) == 3
    assert {*names.split(", ")} <= {*missing}
    assert bool(more) == (count == 4)
