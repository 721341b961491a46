"""One bijective table of weight names: ours <-> Hugging Face's <-> TensorFlow's, as in google-research/bert.

`{}` stands for the number of a layer. Queries, keys and values are one matrix here and three there. What
TensorFlow calls a kernel has its inputs first, so it is our weight transposed; `output_weights` are not.
google has no model of multiple choice and none of tags: their heads are named as its classifier's.
"""

LAYER = "{}"
BILSTM = "bert.bilstm."  # the prefix of what has no counterpart, and keeps its name

# What TensorFlow calls weight and bias (modeling.py; run_pretraining.py:240-310, run_classifier.py:594-600).
DENSE, NORM, OUTPUT = ("kernel", "bias"), ("gamma", "beta"), ("output_weights", "output_bias")

_THEIRS, _TENSORFLOW = "bert.encoder.layer.{}.", "bert/encoder/layer_{}/"
# ours, Hugging Face's, TensorFlow's, its names of weight and bias; what we stack has a row for each part
MODULES = (
    ("bert.embeddings.norm", "bert.embeddings.LayerNorm", "bert/embeddings/LayerNorm/", NORM),
    *(
        (f"bert.layers.{{}}.{ours}", f"{_THEIRS}{theirs}", f"{_TENSORFLOW}{theirs.replace('.', '/')}/", names)
        for ours, theirs, names in (
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
WEIGHTS = (
    *(
        (f"bert.embeddings.{name}.weight", f"bert.embeddings.{name}.weight", f"bert/embeddings/{name}")
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
    ),
    ("masked_lm.bias", "cls.predictions.bias", "cls/predictions/output_bias"),
    *(
        (f"{ours}.{kind}", f"{theirs}.{kind}", f"{scope}{name}")
        for ours, theirs, scope, names in MODULES
        for kind, name in zip(("weight", "bias"), names, strict=True)
    ),
)

# ours -> theirs, in the order in which theirs are stacked
NAMES: dict[str, tuple[str, ...]] = {}
TENSORFLOW_NAMES: dict[str, tuple[str, ...]] = {}
for _ours, _theirs, _tensorflow in WEIGHTS:
    NAMES[_ours] = (*NAMES.get(_ours, ()), _theirs)
    TENSORFLOW_NAMES[_ours] = (*TENSORFLOW_NAMES.get(_ours, ()), _tensorflow)


def their_names(ours: str) -> tuple[str, ...]:
    """The Hugging Face names of one of our weights: one, or three for `qkv`.

    Raises:
        KeyError: it is not in the table.
    """
    return (ours,) if ours.startswith(BILSTM) else _of_layer(NAMES, ours)


def tensorflow_names(ours: str) -> tuple[str, ...]:
    """The same of google's TensorFlow code, which has no BiLSTM."""
    return _of_layer(TENSORFLOW_NAMES, ours)


def _of_layer(table: dict[str, tuple[str, ...]], ours: str) -> tuple[str, ...]:
    """A row of the table, with the number of the layer in its place."""
    parts = ours.split(".")
    number = next((part for part in parts if part.isdigit()), "")
    return tuple(name.format(number) for name in table[".".join(LAYER if p.isdigit() else p for p in parts)])
