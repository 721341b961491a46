"""The shape of a BERT, under the keys of google's `bert_config.json`. The published sizes: recipes/*.toml."""

from pathlib import Path
from typing import Literal

import pydantic

from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import read_json_object
from bertie.base.settings import S, Settings, resolve

# What the labels of a text are, under the names of `transformers`' config.json.
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

# Keys of `transformers`' config.json for what BERT had not in 2018, and what they are without it.
ABSENT = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": None,
}
BERTIE_MODEL_TYPE = "bertie"  # of models that `transformers` would take for others: it refuses to load these


class BertConfig(Settings):
    """The network's shape (Section 3); names and defaults are those of google-research/bert modeling.py."""

    vocab_size: int = pydantic.Field(30522, gt=0)
    hidden_size: int = pydantic.Field(768, gt=0)
    num_hidden_layers: int = pydantic.Field(12, gt=0)
    num_attention_heads: int = pydantic.Field(12, gt=0)
    intermediate_size: int = pydantic.Field(3072, gt=0)
    # The published checkpoints were trained with the erf form; google's code has had the tanh form since
    # 2019-02 (bee6030), which Hugging Face calls gelu_new.
    hidden_act: Literal["gelu", "gelu_new"] = "gelu"
    hidden_dropout_prob: float = pydantic.Field(0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = pydantic.Field(0.1, ge=0, lt=1)
    max_position_embeddings: int = pydantic.Field(512, gt=0)
    type_vocab_size: int = pydantic.Field(2, gt=0)
    initializer_range: float = pydantic.Field(0.02, gt=0)
    # Of the position embeddings alone; google's start as all else does (docs/decisions/small_recipes.md).
    position_initializer_range: float | None = pydantic.Field(None, gt=0)
    layer_norm_eps: float = pydantic.Field(1e-12, gt=0)
    # A token attends to itself and those before it (Table 5's "LTR"); the name is that of `transformers`.
    is_decoder: bool = False

    @pydantic.model_validator(mode="after")
    def _heads_divide_hidden_size(self) -> "BertConfig":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        return self

    @classmethod
    def load(cls, path: Path) -> "BertConfig":
        """Read `config.json` (Hugging Face) or `bert_config.json` (google).

        Raises:
            DataError: the file is not JSON.
            ModelError: it is absent, a value cannot be used, or it is of another architecture.
        """
        values = read_json_object(path)
        if not values:
            raise ModelError(f"{path}: absent or empty; take it from where the weights are from")
        if values.get("model_type", "bert") not in ("bert", BERTIE_MODEL_TYPE):
            raise ModelError(
                f"{path}: model_type is {values['model_type']!r}, but bertie loads 'bert' alone; "
                f"use `transformers` for this model"
            )
        for key, value in ABSENT.items():
            if values.get(key, value) != value:
                raise ModelError(f"{path}: {key} is {values[key]!r}; only {value!r} can be loaded")
        return read_section(cls, path)


def read_section(section: type[S], path: Path) -> S:
    """What a model's JSON file says under the keys of `section`; its other keys are left.

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
