"""The names of BERT's weights in bertie, Hugging Face and TensorFlow.

`WEIGHTS` is one table, with a row for each tensor that the other two formats store. `{}` is the
index of a layer. One of its rows:

    bertie         bert.layers.{}.output.bias
    Hugging Face   bert.encoder.layer.{}.output.dense.bias
    TensorFlow     bert/encoder/layer_{}/output/dense/bias

Saving and loading read the same table. Both walk over the weights of a bertie model and look up the
names under which they are stored, so there is no inverse table to keep in sync. In each of the two
formats a name occurs in one row only, which makes the table a bijection between stored tensors and
parts of bertie's weights.

The formats differ in more than names:

- bertie keeps queries, keys and values in one matrix, `qkv`, concatenated in this order along the
  output dimension. The other formats store three tensors, so `qkv.weight` and `qkv.bias` have three
  rows each.
- The `kernel` of a TensorFlow dense layer is (in, out), the transpose of torch's (out, in). Its
  `output_weights` are (out, in), as in torch.
- google-research/bert has no model for multiple choice or for token classification. In TensorFlow's
  format their heads have the names of its sequence classifier, `output_weights` and `output_bias`.
- Only bertie has a BiLSTM. Its weights keep their names in Hugging Face's format and cannot be
  stored in TensorFlow's.
"""

import re

BILSTM_PREFIX = "bert.bilstm."
LAYER_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")

# TensorFlow's names of weight and bias (modeling.py; run_pretraining.py:240-310, run_classifier.py:594-600).
DENSE, NORM, OUTPUT = ("kernel", "bias"), ("gamma", "beta"), ("output_weights", "output_bias")

# Modules with a weight and a bias: the names in bertie, in Hugging Face's libraries and in TensorFlow, and
# TensorFlow's names of weight and bias.
MODULES = (
    ("bert.embeddings.norm", "bert.embeddings.LayerNorm", "bert/embeddings/LayerNorm/", NORM),
    *(
        (
            f"bert.layers.{{}}.{module}",
            f"bert.encoder.layer.{{}}.{stored_module}",
            f"bert/encoder/layer_{{}}/{stored_module.replace('.', '/')}/",
            parameters,
        )
        for module, stored_module, parameters in (
            ("qkv", "attention.self.query", DENSE),
            ("qkv", "attention.self.key", DENSE),
            ("qkv", "attention.self.value", DENSE),
            ("attention_output", "attention.output.dense", DENSE),
            ("attention_norm", "attention.output.LayerNorm", NORM),
            ("intermediate", "intermediate.dense", DENSE),
            ("output", "output.dense", DENSE),
            ("output_norm", "output.LayerNorm", NORM),
        )
    ),
    ("bert.pooler", "bert.pooler.dense", "bert/pooler/dense/", DENSE),
    ("masked_lm.dense", "cls.predictions.transform.dense", "cls/predictions/transform/dense/", DENSE),
    ("masked_lm.norm", "cls.predictions.transform.LayerNorm", "cls/predictions/transform/LayerNorm/", NORM),
    ("next_sentence", "cls.seq_relationship", "cls/seq_relationship/", OUTPUT),
    ("classifier", "classifier", "", OUTPUT),
    ("qa_outputs", "qa_outputs", "cls/squad/", OUTPUT),
)
# One row for each stored tensor: its names in bertie, in Hugging Face's libraries and in TensorFlow.
WEIGHTS = (
    *(
        (f"bert.embeddings.{table}.weight", f"bert.embeddings.{table}.weight", f"bert/embeddings/{table}")
        for table in ("word_embeddings", "position_embeddings", "token_type_embeddings")
    ),
    ("masked_lm.bias", "cls.predictions.bias", "cls/predictions/output_bias"),
    *(
        (f"{module}.{parameter}", f"{hugging_face}.{parameter}", f"{tensorflow}{tensorflow_parameter}")
        for module, hugging_face, tensorflow, tensorflow_parameters in MODULES
        for parameter, tensorflow_parameter in zip(("weight", "bias"), tensorflow_parameters, strict=True)
    ),
)

# The rows of `WEIGHTS` by bertie's names; stored tensors are in the order in which bertie concatenates them.
HUGGING_FACE_NAMES: dict[str, tuple[str, ...]] = {}
TENSORFLOW_NAMES: dict[str, tuple[str, ...]] = {}
for _name, _hugging_face, _tensorflow in WEIGHTS:
    HUGGING_FACE_NAMES[_name] = (*HUGGING_FACE_NAMES.get(_name, ()), _hugging_face)
    TENSORFLOW_NAMES[_name] = (*TENSORFLOW_NAMES.get(_name, ()), _tensorflow)


def hugging_face_names(name: str) -> tuple[str, ...]:
    """Return the names of one of bertie's weights in Hugging Face's libraries.

    There is one name, or for `qkv` three:

        >>> hugging_face_names("bert.layers.11.output.bias")
        ('bert.encoder.layer.11.output.dense.bias',)

    Raises:
        KeyError: `name` is not in the table.
    """
    return (name,) if name.startswith(BILSTM_PREFIX) else _look_up(HUGGING_FACE_NAMES, name)


def tensorflow_names(name: str) -> tuple[str, ...]:
    """Return the names of one of bertie's weights in google-research/bert.

    Raises:
        KeyError: `name` is not in the table, which has no BiLSTM.
    """
    return _look_up(TENSORFLOW_NAMES, name)


def _look_up(table: dict[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    index = LAYER_INDEX.search(name)
    stored_names = table[LAYER_INDEX.sub("{}", name)]
    return tuple(stored.format(index[0]) for stored in stored_names) if index else stored_names
