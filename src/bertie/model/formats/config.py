"""Read the shape of a network from `config.json` or `bert_config.json`."""

from pathlib import Path

from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import read_json_object
from bertie.base.settings import S, resolve
from bertie.model.config import BertConfig

BERTIE_MODEL_TYPE = "bertie"  # for models that `transformers` would misread: it refuses to load this type

# Keys of `transformers`' config.json for features that BERT did not have in 2018, each with the
# only value that bertie can load.
SUPPORTED_VALUES = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": None,
}


def read_config(path: Path) -> BertConfig:
    """Read `config.json` (Hugging Face) or `bert_config.json` (google).

    Raises:
        DataError: the file is not JSON.
        ModelError: the file is missing, has an impossible value, or describes another architecture.
    """
    values = read_json_object(path)
    if not values:
        raise ModelError(f"{path}: missing or empty; copy it from the source of the weights")
    if values.get("model_type", "bert") not in ("bert", BERTIE_MODEL_TYPE):
        raise ModelError(
            f"{path}: model_type is {values['model_type']!r}, but bertie loads only 'bert'; "
            f"use `transformers` for this model"
        )
    for key, value in SUPPORTED_VALUES.items():
        if values.get(key, value) != value:
            raise ModelError(f"{path}: {key} is {values[key]!r}; only {value!r} is supported")
    return read_section(BertConfig, path)


def read_section(section: type[S], path: Path) -> S:
    """Read the settings of `section` from a model's JSON file; other keys are ignored.

    Raises:
        DataError: the file is not JSON.
        ModelError: a value cannot be used.
    """
    values = read_json_object(path)
    try:
        known = {key: values[key] for key in section.model_fields if key in values}
        return resolve(section, known, source=str(path))
    except SettingsError as error:
        raise ModelError(str(error)) from None
