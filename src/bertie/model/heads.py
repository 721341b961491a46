"""BERT with the heads of pre-training (Section 3.1) and of the tasks (Figure 4).

Every model has three methods, which take a packed batch:

    forward         returns logits
    compute_losses  returns, for each objective, the sum of the losses over its targets
    count_targets   returns, for each objective, how many targets it has; needs no forward pass

Losses are sums because a global batch is split into micro-batches and over ranks, and only the
global batch has the number of targets to divide by. They are float32, whatever the type of
the logits.

`architecture` is the class of `transformers` that has the same weights. Shapes: see bert.py.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.model.batch import PackedBatch
from bertie.model.bert import BertModel, build_activation, initialize
from bertie.model.config import BertConfig, ClassifierPooling, ProblemType
from bertie.model.cpu import can_fuse, embed_and_tie
from bertie.model.cpu_training import linear
from bertie.model.cross_entropy import cross_entropy
from bertie.model.dropout import Dropout
from bertie.model.formats.sentence_transformers import Pooling
from bertie.model.gpu import padded_linear
from bertie.model.objectives import IGNORE_INDEX
from bertie.model.rows import pad_rows

SIMILARITY_SCALE = 20.0  # of in-batch negatives; the default of sentence-transformers


class ObjectiveLoss(NamedTuple):
    """The loss of one objective on one batch."""

    loss_sum: Tensor  # (), sum over the targets; cross-entropies in nats
    num_correct: Tensor | None  # (), targets that the model predicts correctly; None for a regression
    num_targets: int


def _cross_entropy(
    logits: Tensor, labels: Tensor, num_targets: int, class_weights: Tensor | None = None
) -> ObjectiveLoss:
    """Return the cross-entropy loss of logits (n, classes) with labels (n,).

    The weights of the classes are (classes,). Rows of logits after the last label have no loss.
    """
    if class_weights is None:
        labels = F.pad(labels, (0, len(logits) - len(labels)), value=IGNORE_INDEX)
        loss_sum, num_correct = cross_entropy(logits, labels, all_targets=num_targets == len(labels))
    else:
        loss_sum = F.cross_entropy(logits.float(), labels, class_weights, reduction="sum")
        num_correct = (logits.argmax(1) == labels).sum()
    return ObjectiveLoss(loss_sum, num_correct, num_targets)


def _embed(bert: BertModel, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Return word embeddings of the tokens, (T, H), and decoder weights, (V, H)."""
    return embed_and_tie(bert.embeddings.word_embeddings.weight, batch.input_ids)


def _reduce(hidden: Tensor, batch: PackedBatch, reduction: str) -> Tensor:
    """Reduce the vectors of the tokens to one for each sequence.

    (T, H) -> float32 (N, H).
    """
    return torch.segment_reduce(hidden.float(), reduction, lengths=batch.cu_seqlens.diff().long())


class PreTrainingModel(nn.Module):
    """BERT with the heads of both pre-training tasks (Section 3.1)."""

    architecture = "BertForPreTraining"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.masked_lm = MaskedLMHead(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return the masked-LM logits, (M, V), and the next-sentence logits, (N, 2)."""
        words, decoder = _embed(self.bert, batch)  # (T, H), (V, H)
        masked, pooled_output = self.bert(batch, batch.masked_positions, words)  # (M, H), (N, H)
        return self.masked_lm(masked, decoder), self.next_sentence(pooled_output)

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return both losses; only masked LM's if there are no `next_sentence_labels`."""
        assert batch.masked_labels is not None
        masked_lm_logits, next_sentence_logits = self(batch)
        labels, next_labels = batch.masked_labels, batch.next_sentence_labels
        losses = {"masked_lm": _cross_entropy(masked_lm_logits, labels, len(labels))}
        if next_labels is not None:
            losses["next_sentence"] = _cross_entropy(next_sentence_logits, next_labels, len(batch))
        return losses

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the masked tokens, and the sequences if they have next-sentence labels."""
        counts = MaskedLMModel.count_targets(batch)
        if batch.next_sentence_labels is not None:
            counts["next_sentence"] = len(batch)
        return counts


class MaskedLMHead(nn.Module):
    """The masked-LM head: dense, GELU, norm, then the word embeddings as decoder.

    The decoder has a bias for each token of the vocabulary (run_pretraining.py:240-282).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = build_activation(config)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, decoder: Tensor) -> Tensor:
        """Return the logits of n tokens, (n, V).

        In training on a GPU there are up to seven more columns, which are -inf, and in training in bfloat16
        on a CPU more rows, which mean nothing (`rows.pad_rows`).

        Args:
            hidden: the vectors of the tokens, (n, H).
            decoder: the word embeddings, (V, H).
        """
        if self.training and hidden.device.type == "cpu":
            hidden = pad_rows(hidden, self.dense)
        # Under autocast the dense layer's output is bfloat16, in which epsilon would be lost.
        hidden = self.norm(self.activation(self.dense(hidden)).float())  # (n, H)
        if self.training and can_fuse(hidden):
            return linear(hidden, decoder, self.bias)  # (n, V)
        if hidden.device.type == "cpu":
            return F.linear(hidden, decoder, self.bias)  # (n, V)
        logits = padded_linear(hidden, decoder, self.bias)  # (n, V to V + 7)
        return logits if self.training else logits[:, : len(decoder)]


class MaskedLMModel(nn.Module):
    """BERT with only the masked-LM head, as in "No NSP" (Section 5.1)."""

    architecture = "BertForMaskedLM"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.masked_lm = MaskedLMHead(config)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return logits (M, V) of the masked tokens."""
        words, decoder = _embed(self.bert, batch)  # (T, H), (V, H)
        masked, _ = self.bert(batch, batch.masked_positions, words)  # (M, H)
        return self.masked_lm(masked, decoder)

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the cross-entropy with `masked_labels`."""
        assert batch.masked_labels is not None
        return {"masked_lm": _cross_entropy(self(batch), batch.masked_labels, len(batch.masked_labels))}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the masked tokens."""
        assert batch.masked_labels is not None
        return {"masked_lm": len(batch.masked_labels)}


class NextSentenceModel(nn.Module):
    """BERT with only the next-sentence head."""

    architecture = "BertForNextSentencePrediction"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the logits (N, 2) of the paper's classes IsNext and NotNext."""
        return self.next_sentence(self.bert.pool(batch))

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the cross-entropy with `next_sentence_labels` (Section 3.1, Task #2)."""
        assert batch.next_sentence_labels is not None
        return {"next_sentence": _cross_entropy(self(batch), batch.next_sentence_labels, len(batch))}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the sequences."""
        return {"next_sentence": len(batch)}


class LanguageModel(nn.Module):
    """A left-to-right (causal) language model, as in "LTR & No NSP" (Section 5.1).

    The targets are the tokens themselves: all but the first of each sequence.
    """

    architecture = "BertLMHeadModel"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.masked_lm = MaskedLMHead(config)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return, at each token, the logits of the token that follows it, (T, V)."""
        words, decoder = _embed(self.bert, batch)  # (T, H), (V, H)
        sequence_output, _ = self.bert(batch, words=words)  # (T, H)
        return self.masked_lm(sequence_output, decoder)

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the cross-entropy with the next tokens; the last of a sequence has none."""
        next_tokens = batch.input_ids.long().roll(-1)  # (T,)
        next_tokens = next_tokens.index_fill(0, batch.cu_seqlens[1:].long() - 1, IGNORE_INDEX)
        return {"language_model": _cross_entropy(self(batch), next_tokens, batch.num_tokens - len(batch))}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count all tokens but the first of each sequence."""
        return {"language_model": batch.num_tokens - len(batch)}


class ClassificationModel(nn.Module):
    """A classifier over the pooled [CLS], for one text or a pair (Figure 4 a, b).

    With `pooling` "mean" it reads the mean over the tokens, scaled to length 1, and has no pooler.

    The form of the labels depends on `problem_type`:

        single_label_classification  int64 (N,), classes
        multi_label_classification   float32 (N, num_labels), 0 or 1
        regression                   float32 (N,), values; `num_labels` is 1

    class_weights  float32 (num_labels,), weights of the labels in the loss; in a multi-label task, weights
                   of their presence. None for equal weights
    """

    architecture = "BertForSequenceClassification"
    class_weights: Tensor | None

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        problem_type: ProblemType = "single_label_classification",
        pooling: ClassifierPooling = "pooler",
    ) -> None:
        super().__init__()
        self.problem_type, self.pooling = problem_type, pooling
        self.register_buffer("class_weights", None, persistent=False)
        self.bert = BertModel(config, pooler=pooling == "pooler")
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return logits (N, num_labels), or the values (N, 1) of a regression."""
        return self.classifier(self.dropout(self.pool(batch)))

    def pool(self, batch: PackedBatch) -> Tensor:
        """Return the vector of each sequence that the classifier reads, (N, H)."""
        if self.pooling == "pooler":
            return self.bert.pool(batch)
        return F.normalize(_reduce(self.bert.encode(batch), batch, "mean"))

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the cross-entropy, or the squared error of a regression.

        In a multi-label task, the loss of a text is the mean over its labels, and a prediction is
        correct only if all its labels are.
        """
        assert batch.labels is not None
        labels, N = batch.labels, len(batch)
        logits = self(batch).float()
        if self.problem_type == "regression":
            objective = ObjectiveLoss(F.mse_loss(logits.squeeze(1), labels, reduction="sum"), None, N)
        elif self.problem_type == "multi_label_classification":
            losses = F.binary_cross_entropy_with_logits(
                logits, labels, reduction="none", pos_weight=self.class_weights
            )  # (N, num_labels)
            num_correct = ((logits > 0) == (labels > 0)).all(1).sum()
            objective = ObjectiveLoss(losses.mean(1).sum(), num_correct, N)
        else:
            objective = _cross_entropy(logits, labels, N, self.class_weights)
        return {"classification": objective}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the sequences."""
        return {"classification": len(batch)}


class ContrastiveModel(ClassificationModel):
    """A classifier over the mean of the tokens, with a contrastive loss.

    The encoder learns from pairs of labelled texts. The cosine of the two vectors of a pair learns to be 1
    for texts of the same class, and 0 for others (SetFit; Tunstall et al., arXiv:2209.11055, Section 3). The
    losses do not depend on the classifier, which is fitted afterwards. The labels are int64 (P, 3), a row for
    each of P pairs: the indices of the two sequences in the batch, and whether their classes are the same.
    """

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__(config, num_labels, pooling="mean")

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the squared error of the cosines."""
        assert batch.labels is not None
        first, second, is_same = batch.labels.unbind(1)
        vectors = self.pool(batch)
        cosines = (vectors[first] * vectors[second]).sum(1)
        loss_sum = F.mse_loss(cosines, is_same.float(), reduction="sum")
        return {"contrastive": ObjectiveLoss(loss_sum, None, len(batch.labels))}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the pairs."""
        assert batch.labels is not None
        return {"contrastive": len(batch.labels)}


class MultipleChoiceModel(nn.Module):
    """Score each choice of an example from its pooled [CLS] (Section 4.4).

    A choice is a sequence. The choices of an example are consecutive sequences, and all examples
    have the same number of choices. The labels are the indices of the correct choices, int64
    (examples,).
    """

    architecture = "BertForMultipleChoice"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the score of each choice, (N, 1)."""
        return self.classifier(self.dropout(self.bert.pool(batch)))

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the cross-entropy over the choices of each example."""
        assert batch.labels is not None
        num_examples = len(batch.labels)
        scores = self(batch).view(num_examples, -1)  # (examples, choices)
        return {"multiple_choice": _cross_entropy(scores, batch.labels, num_examples)}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the examples."""
        assert batch.labels is not None
        return {"multiple_choice": len(batch.labels)}


class QuestionAnsweringModel(nn.Module):
    """Predict the start and the end of an answer in its context (Figure 4 c).

    There is no dropout before the head. The labels are the positions of the first and the last
    token of the answer, counted from the start of the sequence, int64 (N, 2). Both are IGNORE_INDEX
    if the answer is unknown.
    """

    architecture = "BertForQuestionAnswering"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return the start and end logits of each token, (T, 2)."""
        sequence_output, _ = self.bert(batch)  # (T, H)
        return self.qa_outputs(sequence_output)

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the mean of the cross-entropies of start and end (run_squad.py:660).

        The classes are the tokens of the sequence; in Google's code and in `transformers`, padding
        is a class too. A prediction is correct if both start and end are.
        """
        assert batch.labels is not None
        logits = self(batch).float()
        padded = logits.new_full((len(batch), batch.max_seqlen, 2), float("-inf"))
        padded = padded.index_put((batch.sequence_ids, batch.position_ids), logits)  # (N, S, 2)
        loss_sum = F.cross_entropy(padded, batch.labels, reduction="sum") / 2
        num_correct = (padded.argmax(1) == batch.labels).all(1).sum()
        return {"question_answering": ObjectiveLoss(loss_sum, num_correct, batch.num_targets // 2)}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the sequences with a known answer."""
        return {"question_answering": batch.num_targets // 2}


class TokenClassificationModel(nn.Module):
    """A classifier over every token (Figure 4 d).

    The labels are classes, int64 (T,); IGNORE_INDEX for a token without a label.

    class_weights  float32 (num_labels,), weights of the labels in the loss; None for equal weights
    """

    architecture = "BertForTokenClassification"
    class_weights: Tensor | None

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__()
        self.register_buffer("class_weights", None, persistent=False)
        self.bert = BertModel(config, pooler=False)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return logits (T, num_labels)."""
        sequence_output, _ = self.bert(batch)  # (T, H)
        return self.classifier(self.dropout(sequence_output))

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the cross-entropy over the labelled tokens."""
        assert batch.labels is not None
        loss = _cross_entropy(self(batch), batch.labels, batch.num_targets, self.class_weights)
        return {"token_classification": loss}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the labelled tokens."""
        return {"token_classification": batch.num_targets}


class EncoderModel(nn.Module):
    """BERT without a head."""

    architecture = "BertModel"

    def __init__(self, config: BertConfig, pooler: bool = True) -> None:
        super().__init__()
        self.bert = BertModel(config, pooler)
        initialize(self, config)

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """Return `sequence_output`, (T, H), and `pooled_output`, (N, H) or None."""
        return self.bert(batch)


class EmbeddingModel(EncoderModel):
    """BERT that embeds each text as one vector, and learns from pairs of texts.

    The sequences 2i and 2i + 1 are pair i. The form of the labels decides the loss:

        float32 (N / 2,)  cosines that the vectors of each pair should have (Reimers and Gurevych,
                          arXiv:1908.10084, Section 3)
        int64 (N / 2, 2)  the indices of the texts, the same for the same text: each second text
                          competes with the other second texts of the batch (Henderson et al.,
                          arXiv:1705.00652, Section 4.4)
    """

    def __init__(self, config: BertConfig, pooling: Pooling) -> None:
        super().__init__(config)
        self.pooling = pooling

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return one vector for each sequence, float32 (N, H)."""
        if self.pooling == "cls":
            # In a causal model, [CLS] attends only to itself, not to the whole sequence.
            one_per_sequence = not self.bert.is_decoder
            return self.bert.encode(batch, batch.cu_seqlens[:-1], one_per_sequence=one_per_sequence).float()
        return _reduce(self.bert.encode(batch), batch, self.pooling)

    def compute_losses(self, batch: PackedBatch) -> dict[str, ObjectiveLoss]:
        """Return the loss of the cosines between first and second texts.

        It is their squared error, or the cross-entropy over the second texts. In the cross-entropy, pairs
        that share a text do not compete with each other.
        """
        assert batch.labels is not None
        first, second = F.normalize(self.embed(batch)).view(len(batch) // 2, 2, -1).unbind(1)
        labels = batch.labels
        if labels.is_floating_point():
            loss_sum = F.mse_loss((first * second).sum(1), labels, reduction="sum")
            return {"embedding": ObjectiveLoss(loss_sum, None, len(labels))}
        with torch.autocast(first.device.type, enabled=False):
            logits = SIMILARITY_SCALE * first @ second.T  # (N / 2, N / 2)
        shared = (labels[:, None, :, None] == labels[None, :, None]).any(-1).any(-1)
        logits = logits.masked_fill(shared.fill_diagonal_(False), float("-inf"))
        own = torch.arange(len(labels), device=labels.device)
        return {"embedding": _cross_entropy(logits, own, len(labels))}

    @staticmethod
    def count_targets(batch: PackedBatch) -> dict[str, int]:
        """Count the pairs."""
        return {"embedding": len(batch) // 2}


# Every model that can be trained: all but EncoderModel, which has no loss.
Model = (
    PreTrainingModel
    | MaskedLMModel
    | LanguageModel
    | NextSentenceModel
    | ClassificationModel
    | MultipleChoiceModel
    | TokenClassificationModel
    | QuestionAnsweringModel
    | EmbeddingModel
)
