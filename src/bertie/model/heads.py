"""What stands on BERT: the two pre-training objectives (Section 3.1) and the classifier (Figure 4 a, b).

A model takes a packed batch. `forward` gives logits; `losses` gives, for each objective, the sum of the
losses over its targets, how many of them the model got right, and how many there are. They are sums because
a global batch is cut into micro-batches and over ranks, and only the whole knows what to divide by.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.model.batch import PackedBatch
from bertie.model.bert import BertModel, activation, initialize
from bertie.model.config import BertConfig


class Objective(NamedTuple):
    """One objective on one batch."""

    loss_sum: Tensor  # (), over the targets, in nats
    correct: Tensor  # (), how many targets have the highest logit
    targets: int  # how many targets there are


class PreTrainingModel(nn.Module):
    """BERT with the masked-LM and next-sentence heads: `transformers`' BertForPreTraining."""

    architecture = "BertForPreTraining"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.masked_lm = MaskedLMHead(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        initialize(self, config.initializer_range)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Returns masked-LM logits (M, V), at the masked positions only, and next-sentence logits (N, 2)."""
        assert batch.masked_positions is not None
        sequence_output, pooled_output = self.bert(batch)  # (T, H), (N, H)
        masked = sequence_output.index_select(0, batch.masked_positions)  # (M, H)
        word_embeddings = self.bert.embeddings.word_embeddings.weight  # (V, H), shared with the decoder
        return self.masked_lm(masked, word_embeddings), self.next_sentence(pooled_output)

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Section 3.1's two objectives; without `next_sentence_labels` the first one alone."""
        assert batch.masked_labels is not None
        masked_lm_logits, next_sentence_logits = self(batch)
        losses = {"masked_lm": _cross_entropy(masked_lm_logits, batch.masked_labels)}
        if batch.next_sentence_labels is not None:
            losses["next_sentence"] = _cross_entropy(next_sentence_logits, batch.next_sentence_labels)
        return losses

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """How many targets each objective has, known before the forward pass."""
        assert batch.masked_labels is not None
        counts = {"masked_lm": len(batch.masked_labels)}
        if batch.next_sentence_labels is not None:
            counts["next_sentence"] = len(batch)
        return counts


class MaskedLMHead(nn.Module):
    """Dense, GELU, norm, then the word embeddings with a bias of their own (run_pretraining.py:240-282)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        """(M, H) -> (M, V)."""
        return F.linear(self.norm(self.activation(self.dense(hidden))), word_embeddings, self.bias)


class ClassificationModel(nn.Module):
    """BERT with a classifier on the pooled [CLS]: `transformers`' BertForSequenceClassification."""

    architecture = "BertForSequenceClassification"

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        initialize(self, config.initializer_range)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns logits (N, labels)."""
        _, pooled_output = self.bert(batch)
        return self.classifier(self.dropout(pooled_output))  # type: ignore[no-any-return]

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Cross-entropy with `labels`."""
        assert batch.labels is not None
        return {"classification": _cross_entropy(self(batch), batch.labels)}

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """One target for each sequence."""
        return {"classification": len(batch)}


Model = PreTrainingModel | ClassificationModel


def _cross_entropy(logits: Tensor, labels: Tensor) -> Objective:
    """Summed in float32 whatever the logits are in."""
    loss_sum = F.cross_entropy(logits.float(), labels, reduction="sum")
    return Objective(loss_sum, (logits.argmax(-1) == labels).sum(), len(labels))
