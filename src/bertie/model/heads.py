"""What stands on BERT: the two pre-training objectives (Section 3.1) and the tasks of Figure 4.

A model takes a packed batch. `forward` gives logits; `losses` gives, for each objective, the sum of the
losses over its targets, how many of them the model got right, and how many there are. They are sums because
a global batch is cut into micro-batches and over ranks, and only the whole knows what to divide by. Losses
are in float32 whatever the logits are in.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.model.batch import PackedBatch
from bertie.model.bert import BertModel, Embeddings, activation, initialize
from bertie.model.config import BertConfig, ProblemType
from bertie.model.cross_entropy import cross_entropy
from bertie.model.dropout import Dropout
from bertie.model.objectives import IGNORE_INDEX


class Objective(NamedTuple):
    """One objective on one batch."""

    loss_sum: Tensor  # (), over the targets; cross-entropies in nats
    correct: Tensor | None  # (), how many targets the model got right; None for a regression
    targets: int  # how many targets there are


def _cross_entropy(logits: Tensor, labels: Tensor, targets: int) -> Objective:
    """Logits (n, classes) and labels (n,); the label -100 is no target."""
    return Objective(*cross_entropy(logits, labels), targets)


class EncoderModel(nn.Module):
    """BERT without a head: `transformers`' BertModel."""

    architecture = "BertModel"

    def __init__(self, config: BertConfig, pooler: bool = True) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """Returns `sequence_output` (T, H) and, where there is a pooler, `pooled_output` (N, H)."""
        return self.bert(batch)  # type: ignore[no-any-return]


class MaskedLMModel(nn.Module):
    """BERT with the masked-LM head alone, as in "No NSP" (Section 5.1): `transformers`' BertForMaskedLM."""

    architecture = "BertForMaskedLM"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.masked_lm = MaskedLMHead(config)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns masked-LM logits (M, V), at the masked positions only."""
        masked, _ = self.bert(batch, batch.masked_positions)  # (M, H)
        return self.masked_lm(masked, self.bert.embeddings)  # type: ignore[no-any-return]

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Cross-entropy with `masked_labels`."""
        assert batch.masked_labels is not None
        return {"masked_lm": _cross_entropy(self(batch), batch.masked_labels, len(batch.masked_labels))}

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """How many targets each objective has, known before the forward pass."""
        assert batch.masked_labels is not None
        return {"masked_lm": len(batch.masked_labels)}


class LanguageModel(nn.Module):
    """A left-to-right language model, as in "LTR & No NSP" (Section 5.1): `transformers`' BertLMHeadModel.

    Its targets are the tokens themselves: each sequence's, but for the first.
    """

    architecture = "BertLMHeadModel"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.masked_lm = MaskedLMHead(config)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns logits (T, V): what comes after each token."""
        sequence_output, _ = self.bert(batch)
        return self.masked_lm(sequence_output, self.bert.embeddings)  # type: ignore[no-any-return]

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Cross-entropy with the next token."""
        next_tokens = batch.input_ids.long().roll(-1)
        next_tokens = next_tokens.index_fill(0, batch.cu_seqlens[1:].long() - 1, IGNORE_INDEX)
        return {"language_model": _cross_entropy(self(batch), next_tokens, batch.num_tokens - len(batch))}

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """How many tokens are predicted."""
        return {"language_model": batch.num_tokens - len(batch)}


class PreTrainingModel(nn.Module):
    """BERT with the masked-LM and next-sentence heads: `transformers`' BertForPreTraining."""

    architecture = "BertForPreTraining"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.masked_lm = MaskedLMHead(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Returns masked-LM logits (M, V), at the masked positions only, and next-sentence logits (N, 2)."""
        masked, pooled_output = self.bert(batch, batch.masked_positions)  # (M, H), (N, H)
        return self.masked_lm(masked, self.bert.embeddings), self.next_sentence(pooled_output)

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Section 3.1's two objectives; without `next_sentence_labels` the first one alone."""
        assert batch.masked_labels is not None
        masked_lm_logits, next_sentence_logits = self(batch)
        labels, next_labels = batch.masked_labels, batch.next_sentence_labels
        losses = {"masked_lm": _cross_entropy(masked_lm_logits, labels, len(labels))}
        if next_labels is not None:
            losses["next_sentence"] = _cross_entropy(next_sentence_logits, next_labels, len(batch))
        return losses

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """How many targets each objective has, known before the forward pass."""
        counts = MaskedLMModel.target_counts(batch)
        if batch.next_sentence_labels is not None:
            counts["next_sentence"] = len(batch)
        return counts


class NextSentenceModel(nn.Module):
    """BERT with the next-sentence head alone: `transformers`' BertForNextSentencePrediction."""

    architecture = "BertForNextSentencePrediction"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns logits (N, 2): the second text is the next sentence, or another one."""
        return self.next_sentence(self.bert.pooled(batch))  # type: ignore[no-any-return]

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Section 3.1, Task #2, alone."""
        assert batch.next_sentence_labels is not None
        return {"next_sentence": _cross_entropy(self(batch), batch.next_sentence_labels, len(batch))}

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """One target for each sequence."""
        return {"next_sentence": len(batch)}


class MaskedLMHead(nn.Module):
    """Dense, GELU, norm, then the word embeddings with a bias of their own (run_pretraining.py:240-282)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, masked: Tensor, embeddings: Embeddings) -> Tensor:
        """What the masked positions have become, (M, H) -> (M, V)."""
        # Under autocast the dense layer's output is bfloat16, where epsilon vanishes.
        hidden = self.norm(self.activation(self.dense(masked)).float())  # (M, H)
        return F.linear(hidden, embeddings.word_embeddings.weight, self.bias)


class ClassificationModel(nn.Module):
    """A classifier on the pooled [CLS] (Figure 4 a, b): `transformers`' BertForSequenceClassification.

    Labels by `problem_type`: classes int64 (N,); 0 or 1 for each class, float32 (N, labels); or numbers,
    float32 (N,), with `num_labels` 1.
    """

    architecture = "BertForSequenceClassification"

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        problem_type: ProblemType = "single_label_classification",
    ) -> None:
        super().__init__()
        self.problem_type = problem_type
        self.bert = BertModel(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns logits (N, labels); for a regression the numbers (N, 1)."""
        return self.classifier(self.dropout(self.bert.pooled(batch)))  # type: ignore[no-any-return]

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Cross-entropy with the class, the mean of each class's own, or the squared error.

        With several labels a text counts as correct where all its labels are.
        """
        assert batch.labels is not None
        labels, N = batch.labels, len(batch)
        logits = self(batch).float()
        if self.problem_type == "regression":
            objective = Objective(F.mse_loss(logits.squeeze(1), labels, reduction="sum"), None, N)
        elif self.problem_type == "multi_label_classification":
            loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")  # (N, labels)
            correct = ((logits > 0) == (labels > 0)).all(1).sum()
            objective = Objective(loss.mean(1).sum(), correct, N)
        else:
            objective = _cross_entropy(logits, labels, N)
        return {"classification": objective}

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """One target for each sequence."""
        return {"classification": len(batch)}


class MultipleChoiceModel(nn.Module):
    """Choices scored by their pooled [CLS] (Section 4.4): `transformers`' BertForMultipleChoice.

    The choices of an example stand next to each other, equally many in each; labels int64 (examples,).
    """

    architecture = "BertForMultipleChoice"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns the score of each choice, (N, 1)."""
        return self.classifier(self.dropout(self.bert.pooled(batch)))  # type: ignore[no-any-return]

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Cross-entropy over the choices of each example."""
        assert batch.labels is not None
        examples = len(batch.labels)
        return {"multiple_choice": _cross_entropy(self(batch).view(examples, -1), batch.labels, examples)}

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """One target for each example."""
        assert batch.labels is not None
        return {"multiple_choice": len(batch.labels)}


class TokenClassificationModel(nn.Module):
    """A classifier on every token (Figure 4 d): `transformers`' BertForTokenClassification.

    Labels int64 (T,); -100 where there is nothing to learn.
    """

    architecture = "BertForTokenClassification"

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns logits (T, labels)."""
        sequence_output, _ = self.bert(batch)
        return self.classifier(self.dropout(sequence_output))  # type: ignore[no-any-return]

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """Cross-entropy of the labelled tokens."""
        assert batch.labels is not None
        return {"token_classification": _cross_entropy(self(batch), batch.labels, batch.num_targets)}

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """One target for each labelled token."""
        return {"token_classification": batch.num_targets}


class QuestionAnsweringModel(nn.Module):
    """Where an answer starts and ends (Figure 4 c): `transformers`' BertForQuestionAnswering. No dropout.

    Labels int64 (N, 2): the start and the end, counted from the sequence's first token; -100 where they are
    not known.
    """

    architecture = "BertForQuestionAnswering"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns the logits of start and end, (T, 2)."""
        sequence_output, _ = self.bert(batch)
        return self.qa_outputs(sequence_output)  # type: ignore[no-any-return]

    def losses(self, batch: PackedBatch) -> dict[str, Objective]:
        """The mean of the two cross-entropies over the sequence's tokens (run_squad.py:660).

        google and `transformers` let padding compete too; here there is none. Correct means both ends.
        """
        assert batch.labels is not None
        logits = self(batch).float()
        padded = logits.new_full((len(batch), batch.max_seqlen, 2), float("-inf"))
        padded = padded.index_put((batch.sequence_ids, batch.position_ids), logits)  # (N, S, 2)
        loss_sum = F.cross_entropy(padded, batch.labels, reduction="sum") / 2
        correct = (padded.argmax(1) == batch.labels).all(1).sum()
        return {"question_answering": Objective(loss_sum, correct, batch.num_targets // 2)}

    @staticmethod
    def target_counts(batch: PackedBatch) -> dict[str, int]:
        """One target for each sequence whose answer is known."""
        return {"question_answering": batch.num_targets // 2}


Model = (
    PreTrainingModel
    | MaskedLMModel
    | LanguageModel
    | NextSentenceModel
    | ClassificationModel
    | MultipleChoiceModel
    | TokenClassificationModel
    | QuestionAnsweringModel
)
