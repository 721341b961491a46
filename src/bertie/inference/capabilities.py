"""Describe what a model directory can do.

It has methods, thresholds, lengths and a default embedding.
"""

from bertie.base.errors import SettingsError
from bertie.inference.results import Method
from bertie.model.formats.directory import SEQUENCE_CLASSIFIER, ModelMetadata
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.tasks.thresholds import DEFAULT_THRESHOLD

# The main method of each architecture; BertForPreTraining also has `next_sentence`.
METHODS: dict[str, Method] = {
    "BertForPreTraining": "fill_mask",
    "BertForMaskedLM": "fill_mask",
    "BertForNextSentencePrediction": "next_sentence",
    SEQUENCE_CLASSIFIER: "classify",
    "BertForTokenClassification": "tag",
    "BertForQuestionAnswering": "answer",
    "BertForMultipleChoice": "choose",
}
REQUIRED_HEADS: dict[Method, str] = {
    "fill_mask": "a masked-LM head (BertForPreTraining or BertForMaskedLM)",
    "next_sentence": "a next-sentence head (BertForPreTraining or BertForNextSentencePrediction)",
    "classify": "a classifier whose problem_type is not regression (BertForSequenceClassification)",
    "regress": "a classifier whose problem_type is regression (BertForSequenceClassification)",
    "tag": "a token classifier (BertForTokenClassification)",
    "answer": "a question-answering head (BertForQuestionAnswering)",
    "choose": "a multiple-choice head (BertForMultipleChoice)",
}


def main_method(architecture: str, metadata: ModelMetadata) -> Method | None:
    """Return the main method of a model's head; None for an encoder without a head."""
    if architecture == SEQUENCE_CLASSIFIER and metadata.problem_type == "regression":
        return "regress"
    return METHODS.get(architecture)


def decision_thresholds(method: Method | None, metadata: ModelMetadata) -> dict[str, float]:
    """Return the thresholds of a model with this main method.

    See `Predictor.decision_thresholds`.
    """
    several = metadata.problem_type == "multi_label_classification"
    if method != "classify" or not (several or len(metadata.labels) == 2):
        return {}
    labels = metadata.labels if several else metadata.labels[1:]
    return dict(zip(labels, metadata.decision_thresholds or [DEFAULT_THRESHOLD] * len(labels), strict=True))


def reads_pairs(metadata: ModelMetadata) -> bool | None:
    """Return whether a classifier was fine-tuned on pairs of texts.

    Return None if its columns are unknown.
    """
    return "pair" in metadata.input_columns if metadata.input_columns else None


def check_pairs(metadata: ModelMetadata, are_pairs: bool) -> None:
    """Check that a classifier gets single texts or pairs, as in its fine-tuning.

    Raises:
        SettingsError: it gets the other kind.
    """
    if reads_pairs(metadata) in (are_pairs, None):
        return
    if are_pairs:
        raise SettingsError(
            "the model was fine-tuned on single texts; leave out the second text (--pair, pair=…, pairs=…)"
        )
    raise SettingsError(
        "the model was fine-tuned on pairs of texts; give the second text too (--pair, or "
        "--column pair=NAME for a table; pair=… or pairs=… in Python)"
    )


def resolve_max_seq_length(metadata: ModelMetadata) -> int:
    """Return the maximum number of tokens that a model reads at once.

    It is recorded in fine-tuning. A question-answering model from elsewhere reads at most 384 tokens, the
    default of run_squad.py.
    """
    positions = metadata.config.max_position_embeddings
    longest = min(384, positions) if metadata.architecture == "BertForQuestionAnswering" else positions
    return metadata.max_seq_length or longest


def resolve_embedding(metadata: ModelMetadata) -> EmbeddingConfig:
    """Return how a model embeds texts by default."""
    default = metadata.embedding or EmbeddingConfig()
    length = default.max_seq_length or resolve_max_seq_length(metadata)
    return default._replace(max_seq_length=min(length, metadata.config.max_position_embeddings))
