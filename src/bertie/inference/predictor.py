"""A model directory -> answers: `bertie.load(path)`.

What a task's evaluation does is done here by the same code: the families of `tasks` encode and decode.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertie.base.errors import ModelError
from bertie.inference.embeddings import embed
from bertie.inference.features import (
    Combination,
    Features,
    LayerChoice,
    compute_features,
    read_texts,
)
from bertie.inference.masks import encode_masks, fill
from bertie.inference.probabilities import likeliest, ranked, sigmoid, softmax
from bertie.inference.results import Answer, Choice, Entity, Label, MaskPrediction, Method, TaggedWord
from bertie.model.engines.loading import Precision, load_engine
from bertie.model.formats.directory import SEQUENCE_CLASSIFIER
from bertie.model.formats.sentence_transformers import Embedding, Pooling
from bertie.model.sequences import Sequences
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom import (
    CustomClassification,
    CustomMultipleChoice,
    CustomQuestionAnswering,
    CustomTagging,
)
from bertie.tasks.entities import find_entities, is_plain
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.ner import TaggedSentences, word_token_ranges
from bertie.tasks.squad.questions import Questions
from bertie.tasks.swag import Choices
from bertie.tasks.task import Inputs

Float32s = npt.NDArray[np.float32]

METHODS: dict[str, Method] = {
    "BertForPreTraining": "fill_mask",
    "BertForMaskedLM": "fill_mask",
    "BertForNextSentencePrediction": "next_sentence",
    SEQUENCE_CLASSIFIER: "classify",
    "BertForTokenClassification": "tag",
    "BertForQuestionAnswering": "answer",
    "BertForMultipleChoice": "choose",
}
NEEDED: dict[Method, str] = {
    "fill_mask": "a masked-LM head (architecture BertForPreTraining or BertForMaskedLM)",
    "next_sentence": "a next-sentence head (BertForPreTraining or BertForNextSentencePrediction)",
    "classify": "a classifier whose problem_type is not regression (BertForSequenceClassification)",
    "rate": "a classifier whose problem_type is regression (BertForSequenceClassification)",
    "tag": "a classifier of tokens (BertForTokenClassification)",
    "answer": "a head for spans (BertForQuestionAnswering)",
    "choose": "a head for multiple choice (BertForMultipleChoice)",
}


class Predictor:
    """A loaded model. Which of the methods it serves depends on its head.

    path       the directory
    engine     what computes the model: torch, or ONNX Runtime
    config     the network's shape
    labels     of a classifier, in the order of its logits
    tokenizer  the model's
    max_seq_length  where a text is cut, or what the windows of a longer one have
    """

    def __init__(self, path: Path, device: str, precision: Precision) -> None:
        self.path = path
        self.engine, self._description = load_engine(path, device, precision)
        self.config = self._description.config
        self.labels = self._description.labels
        self.tokenizer = self._description.tokenizer
        self.max_seq_length = self._description.max_seq_length or self.config.max_position_embeddings

    @property
    def method(self) -> Method | None:
        """The method that the head serves; None for an encoder without one. `tag` is also `tag_words`."""
        if self.engine.architecture == SEQUENCE_CLASSIFIER and self._description.problem_type == "regression":
            return "rate"
        return METHODS.get(self.engine.architecture)

    @property
    def is_multilabel(self) -> bool:
        """Whether a text may have several labels, each of them with a probability of its own."""
        return self._description.problem_type == "multi_label_classification"

    @property
    def tags_are_plain(self) -> bool:
        """Whether the labels are tags of no entities, such as parts of speech."""
        return is_plain(self.labels)

    @property
    def embedding(self) -> Embedding:
        """How `embed` makes vectors where it is not told otherwise."""
        found = self._description.embedding or Embedding()
        length = min(found.max_seq_length or self.max_seq_length, self.config.max_position_embeddings)
        return found._replace(max_seq_length=length)

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[MaskPrediction]]:
        """The likeliest word pieces for each [MASK] in `text`, in the order of the text.

        Raises:
            ModelError: the model has no masked-LM head.
            RowError: there is no [MASK], or the text is longer than the model.
        """
        return self.fill_masks([text], top_k)[0]

    def fill_masks(self, texts: Sequence[str], top_k: int = 5) -> list[list[list[MaskPrediction]]]:
        """The same for many texts."""
        self._require("fill_mask")
        input_ids, bounds = encode_masks(texts, self.tokenizer, self.config.max_position_embeddings)
        sequences = Sequences(input_ids, np.zeros_like(input_ids), bounds)
        answers: list[list[list[MaskPrediction]]] = [[] for _ in texts]
        for chosen, batch in sequences.batches(self.engine.max_tokens):
            masked_positions = np.flatnonzero(batch.input_ids == self.tokenizer.vocabulary.mask_id)
            best, scores = likeliest(self.engine.masked_lm_logits(batch, masked_positions), top_k)
            owners = chosen[np.searchsorted(batch.bounds, masked_positions, side="right") - 1]
            for number, *guesses in zip(owners.tolist(), scores.tolist(), best.tolist(), strict=True):
                text, place = texts[number], len(answers[number])
                names = self.tokenizer.tokens(guesses[1])
                answers[number].append(
                    [
                        MaskPrediction(score, token, name, fill(text, place, name))
                        for score, token, name in zip(*guesses, names, strict=True)
                    ]
                )
        return answers

    def next_sentence(self, texts: Sequence[str], pairs: Sequence[str]) -> list[float]:
        """The probability that each second text comes next after its first (Section 3.1, Task #2).

        Long pairs are cut.

        Raises:
            ModelError: the model has no next-sentence head.
        """
        if self.engine.architecture != "BertForPreTraining":
            self._require("next_sentence")
        encoding = self.tokenizer.encode_batch(texts, pairs, max_length=self.max_seq_length)
        logits = self._logits(Inputs(encoding.input_ids, encoding.token_type_ids, encoding.bounds, None))
        probabilities: list[float] = softmax(logits)[:, 0].tolist()
        return probabilities

    def embed(
        self, texts: Sequence[str], pooling: Pooling | None = None, normalize: bool | None = None
    ) -> Float32s:
        """One vector for each text, float32 (n, H), whatever the head. A text longer than the model is cut.

        Args:
            texts: to be embedded.
            pooling: the mean or the maximum of the tokens' vectors, or that of [CLS]; as the directory says
                if not given, and the mean where it does not.
            normalize: to length 1; likewise, and not where the directory does not say.

        Raises:
            SettingsError: there is no such pooling.
        """
        embedding = self.embedding.but(pooling, normalize)
        encoding = self.tokenizer.encode_batch(texts, max_length=embedding.max_seq_length)
        return embed(self.engine, encoding, embedding, self.config)

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[list[Label]]:
        """The labels of each text, or pair of texts, with their probabilities, the likeliest first.

        A text longer than the model is cut.

        Raises:
            ModelError: the model has no classifier, or one that gives a number.
        """
        self._require("classify")
        logits = self._classifier_logits(texts, pairs)
        probabilities = sigmoid(logits) if self.is_multilabel else softmax(logits)
        return [[Label(self.labels[number], score) for number, score in ranked(row)] for row in probabilities]

    def rate(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[float]:
        """The number that a regression gives to each text, or pair of texts. A long text is cut.

        Raises:
            ModelError: the model is no regression.
        """
        self._require("rate")
        numbers: list[float] = self._classifier_logits(texts, pairs)[:, 0].astype(np.float64).tolist()
        return numbers

    def tag(self, texts: Sequence[str]) -> list[list[Entity]]:
        """The entities that each text names, in order. No text is too long.

        A word is what BERT's basic tokenizer takes for one, so punctuation stands alone. Its first piece
        decides.

        Raises:
            ModelError: the model has no classifier of tokens, or its labels are not tags of entities, which
                only `tag_words` can give.
        """
        self._require("tag")
        if self.tags_are_plain:
            raise ModelError(
                f"{self.path}: {self.labels[0]!r} is no tag of an entity; tag_words gives each word's"
            )
        spans = self._word_spans(texts)
        words = [
            [text[start:end] for start, end in places] for text, places in zip(texts, spans, strict=True)
        ]
        mentions = []
        for text, places, tagged in zip(texts, spans, self.tag_words(words), strict=True):
            found = []
            for label, first, last in find_entities([word.tag for word in tagged]):
                start, end = places[first][0], places[last - 1][1]
                score = float(np.mean([word.score for word in tagged[first:last]]))
                found.append(Entity(label, text[start:end], start, end, score))
            mentions.append(found)
        return mentions

    def tag_words(
        self, sentences: Sequence[str | Sequence[str]], documents: Sequence[int] | None = None
    ) -> list[list[TaggedWord]]:
        """The likeliest tag of each word, one by one.

        Args:
            sentences: the words of each, or a text, the words of which are those of `tag`.
            documents: sentences of document i are documents[i] to documents[i+1], and seen together; without
                it each sentence is seen alone.

        Raises:
            ModelError: the model has no classifier of tokens.
        """
        self._require("tag")
        spans = iter(self._word_spans([text for text in sentences if isinstance(text, str)]))
        words = [
            [text[start:end] for start, end in next(spans)] if isinstance(text, str) else text
            for text in sentences
        ]
        task = CustomTagging().with_labels(self.labels)
        cuts = range(len(words) + 1) if documents is None else documents
        examples = TaggedSentences(words, None, np.array(cuts, dtype=np.int64))
        inputs = task.encode(examples, self.tokenizer, self.max_seq_length)
        logits = self._logits(inputs)
        tags = task.decode(examples, inputs, logits)
        scores = iter(softmax(logits[inputs.word_tokens]).max(axis=1).tolist())
        return [
            [TaggedWord(word, tag, next(scores)) for word, tag in zip(*sentence, strict=True)]
            for sentence in zip(words, tags, strict=True)
        ]

    def answer(self, questions: Sequence[str], contexts: Sequence[str], top_k: int = 1) -> list[list[Answer]]:
        """The likeliest answers to each question in the context that goes with it, best first.

        A model that learnt that a context may have no answer puts that first where the null score exceeds the
        best answer's by more than the directory's `null_threshold`, and leaves it out otherwise. The first
        answer is what evaluation scores. No context is too long.

        Raises:
            ModelError: the model has no head for spans.
        """
        self._require("answer")
        threshold = self._description.null_threshold
        task = CustomQuestionAnswering(
            version="1.1" if threshold is None else "2.0", null_threshold=threshold or 0.0
        )
        task = replace(task, n_best=max(task.n_best, top_k))
        numbers = np.arange(len(questions))
        examples = Questions([*map(str, numbers)], questions, contexts, numbers)
        length = self._description.max_seq_length or min(
            task.defaults["max_seq_length"], self.config.max_position_embeddings
        )
        inputs = task.encode(examples, self.tokenizer, length)
        predictions = task.decode(examples, inputs, self._logits(inputs))
        n_best = predictions.n_best
        assert n_best is not None
        answers = []
        for i, (context, text) in enumerate(zip(contexts, predictions.texts, strict=True)):
            count = n_best.counts[i]
            listed = [
                Answer(context[start:end], start, end, score)
                for (start, end), score in zip(
                    n_best.offsets[i, :count].tolist(), n_best.probabilities[i, :count].tolist(), strict=True
                )
            ]
            none = [entry for entry in listed if entry.end == 0]
            others = [entry for entry in listed if entry.end > 0]
            answers.append([*(none if text == "" else []), *others][:top_k])
        return answers

    def choose(self, contexts: Sequence[str], endings: Sequence[Sequence[str]]) -> list[list[Choice]]:
        """The endings of each context with their probabilities, the likeliest first. Long texts are cut.

        Raises:
            ModelError: the model has no head for multiple choice.
        """
        self._require("choose")
        answers: list[list[Choice]] = [[] for _ in contexts]
        counts = np.array([len(choices) for choices in endings], dtype=np.int64)
        for count in np.unique(counts[counts > 0]).tolist():  # a batch has as many in each of its examples
            chosen = np.flatnonzero(counts == count).tolist()
            examples = Choices(
                [contexts[i] for i in chosen], [""] * len(chosen), [endings[i] for i in chosen], None, []
            )
            inputs = CustomMultipleChoice().encode(examples, self.tokenizer, self.max_seq_length)
            probabilities = softmax(self._logits(inputs).reshape(len(chosen), count))
            for i, row in zip(chosen, probabilities, strict=True):
                answers[i] = [Choice(number, endings[i][number], score) for number, score in ranked(row)]
        return answers

    def features(
        self,
        texts: Sequence[str],
        layers: Sequence[int] = (-1,),
        *,
        combine: Combination | None = None,
        weights: Sequence[float] | None = None,
        words: bool = False,
    ) -> Features:
        """The vectors of each text's word pieces in some layers (Section 5.3), whatever the head.

        Args:
            texts: seen one by one. None is too long.
            layers: 0 is the output of the embeddings, 1 to L that of each layer, -1 the last one.
            combine: layers to one vector.
            weights: of a sum; None is 1 for each layer.
            words: of each word its first piece's vector, in place of all pieces.

        Raises:
            SettingsError: the model has no such layer, or the weights do not fit.
        """
        reading = read_texts(texts, self.tokenizer, self.max_seq_length, words)
        choice = LayerChoice(layers, combine, weights)
        return compute_features(self.engine, reading, choice, self.config)

    def _require(self, method: Method) -> None:
        if self.method != method:
            can = f", which can {self.method}" if self.method else ""
            found = f"this model is a {self.engine.architecture}{can}"
            raise ModelError(f"{self.path}: {method} needs {NEEDED[method]}; {found}")

    def _classifier_logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Float32s:
        examples = LabelledTexts(texts, pairs)
        return self._logits(CustomClassification().encode(examples, self.tokenizer, self.max_seq_length))

    def _logits(self, inputs: Inputs) -> Float32s:
        if not len(inputs):
            return np.empty((0, max(len(self.labels), 2)), np.float32)
        return compute_logits(self.engine, inputs)

    def _word_spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """First character and end of each word of each text."""
        encoding = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        first, end = word_token_ranges(encoding)
        ends = encoding.offsets[end - 1, 1].tolist()
        spans = list(zip(encoding.offsets[first, 0].tolist(), ends, strict=True))
        return [spans[begin:end] for begin, end in pairwise(np.searchsorted(first, encoding.bounds).tolist())]


def load(path: str | Path, device: str = "auto", precision: Precision = "float32") -> Predictor:
    """Load a model directory, exported or not.

    Raises:
        ModelError: it is absent, damaged, or not a model's; or what computes it is not installed.
        SettingsError: there is no such device; an exported model takes neither device nor precision.
    """
    return Predictor(Path(path), device, precision)
