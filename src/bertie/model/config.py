"""The shape of a BERT, under the keys of google's `bert_config.json`. The published sizes: recipes/*.toml."""

from pathlib import Path
from typing import Literal

import pydantic

from bertie.base.errors import ModelError
from bertie.base.files import read_json
from bertie.base.settings import Settings

# Keys of `transformers`' config.json for what BERT had not in 2018, and what they are without it.
ABSENT = {"position_embedding_type": "absolute", "add_cross_attention": False, "pruned_heads": {}}
OWN_MODEL_TYPE = "bertie"  # of models that `transformers` would take for others: it refuses to load these


class BertConfig(Settings):
    """The network's shape (Section 3); names and defaults are those of google-research/bert modeling.py."""

    vocab_size: int = pydantic.Field(30522, gt=0)
    hidden_size: int = pydantic.Field(768, gt=0)
    num_hidden_layers: int = pydantic.Field(12, ge=0)
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
        """Read `config.json` (Hugging Face) or `bert_config.json` (google); keys that are not ours are left.

        Raises:
            DataError: the file is missing or is not JSON.
            ModelError: a value cannot be used, or the file is of another architecture.
        """
        values = read_json(path)
        if values.get("model_type", "bert") not in ("bert", OWN_MODEL_TYPE):
            raise ModelError(f"{path}: model_type is {values['model_type']!r}; only 'bert' can be loaded")
        for key, value in ABSENT.items():
            if values.get(key, value) != value:
                raise ModelError(f"{path}: {key} is {values[key]!r}; only {value!r} can be loaded")
        try:
            return cls(**{key: values[key] for key in cls.model_fields if key in values})
        except pydantic.ValidationError as failure:
            error = failure.errors()[0]
            key = ".".join(str(part) for part in error["loc"])
            raise ModelError(f"{path}: {key}: {error['msg']}") from None
