"""One bijective table of weight names: ours <-> Hugging Face's.

`{}` stands for the number of a layer. Queries, keys and values are one matrix here and three there.
"""

LAYER = "{}"

# ours -> theirs, in the order in which theirs are stacked
NAMES: dict[str, tuple[str, ...]] = {
    "bert.embeddings.word_embeddings.weight": ("bert.embeddings.word_embeddings.weight",),
    "bert.embeddings.position_embeddings.weight": ("bert.embeddings.position_embeddings.weight",),
    "bert.embeddings.token_type_embeddings.weight": ("bert.embeddings.token_type_embeddings.weight",),
    "bert.pooler.weight": ("bert.pooler.dense.weight",),
    "bert.pooler.bias": ("bert.pooler.dense.bias",),
    "masked_lm.bias": ("cls.predictions.bias",),
    **{
        f"{ours}.{kind}": tuple(f"{name}.{kind}" for name in theirs)
        for ours, theirs in {
            "bert.embeddings.norm": ("bert.embeddings.LayerNorm",),
            "bert.layers.{}.qkv": tuple(
                f"bert.encoder.layer.{{}}.attention.self.{part}" for part in ("query", "key", "value")
            ),
            "bert.layers.{}.attention_output": ("bert.encoder.layer.{}.attention.output.dense",),
            "bert.layers.{}.attention_norm": ("bert.encoder.layer.{}.attention.output.LayerNorm",),
            "bert.layers.{}.intermediate": ("bert.encoder.layer.{}.intermediate.dense",),
            "bert.layers.{}.output": ("bert.encoder.layer.{}.output.dense",),
            "bert.layers.{}.output_norm": ("bert.encoder.layer.{}.output.LayerNorm",),
            "masked_lm.dense": ("cls.predictions.transform.dense",),
            "masked_lm.norm": ("cls.predictions.transform.LayerNorm",),
            "next_sentence": ("cls.seq_relationship",),
            "classifier": ("classifier",),
            "qa_outputs": ("qa_outputs",),
        }.items()
        for kind in ("weight", "bias")
    },
}


def their_names(ours: str) -> tuple[str, ...]:
    """The Hugging Face names of one of our weights: one, or three for `qkv`.

    Raises:
        KeyError: it is not in the table.
    """
    parts = ours.split(".")
    number = next((part for part in parts if part.isdigit()), "")
    return tuple(name.format(number) for name in NAMES[".".join(LAYER if p.isdigit() else p for p in parts)])
