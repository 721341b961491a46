"""Predict with a model directory: `bertie.load(path)` returns a `Predictor`.

The tasks (`bertie.tasks`) encode texts and decode logits here as they do in evaluation.
"""

# mypy: disable-error-code="overload-overlap"
# A string is also a sequence of strings; it matches the overload for one text, which comes first.

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, overload

import numpy as np

from bertie.base.arguments import check_flag, check_integer, checked
from bertie.base.arrays import Float32s
from bertie.base.checksums import verification
from bertie.base.errors import ModelError
from bertie.base.texts import check_text, list_pairs, list_texts
from bertie.inference.answers import rank_answers, unanswered_questions
from bertie.inference.capabilities import (
    REQUIRED_HEADS,
    check_pairs,
    decision_thresholds,
    main_method,
    resolve_embedding,
    resolve_max_seq_length,
)
from bertie.inference.choices import rank_endings
from bertie.inference.features import (
    Combination,
    Features,
    LayerSelection,
    TextFeatures,
    compute_features,
    encode_texts,
)
from bertie.inference.inputs import check_top_k, list_endings, list_sentences
from bertie.inference.labels import rank_labels
from bertie.inference.masks import fill_masks
from bertie.inference.results import (
    Answer,
    Attention,
    Choice,
    Entity,
    Label,
    MaskPrediction,
    Method,
    Results,
    TaggedWord,
)
from bertie.inference.tags import entities_of, tagged_words, untagged_sentences
from bertie.model.engines.embeddings import embed
from bertie.model.engines.loading import Precision, load_engine
from bertie.model.formats.directory import LongTexts
from bertie.model.formats.sentence_transformers import EmbeddingConfig, Pooling
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom.choices import CustomMultipleChoice
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.custom.questions import CustomQuestionAnswering
from bertie.tasks.custom.tagging import CustomTagging
from bertie.tasks.entities import is_plain
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.probabilities import softmax
from bertie.tasks.squad.decoding import SpanPredictions
from bertie.tasks.task import Examples, Inputs, Task
from bertie.text.words import slice_words, split_words, word_spans

_counting = Lock()


class Predictor:
    """A loaded model, and methods to predict with it. Create one with `bertie.load`.

    The head of the model decides which methods it has; the others raise ModelError:

    - `fill_mask`: BertForPreTraining, BertForMaskedLM
    - `next_sentence`: BertForPreTraining, BertForNextSentencePrediction
    - `classify`: BertForSequenceClassification, single-label or multi-label
    - `regress`: BertForSequenceClassification with problem_type regression
    - `tag`, `tag_words`: BertForTokenClassification
    - `answer`: BertForQuestionAnswering
    - `choose`: BertForMultipleChoice
    - `embed`, `features`: every PyTorch model, and exported encoders
    - `attention`: every PyTorch model

    Every method except `attention` takes one text (a string) and returns its result, or takes a list
    of texts and returns their results in the same order. A column of a DataFrame, a numpy array or an
    iterator serves as a list. Texts that come in pairs are two strings, or two lists of equal length.
    Other types raise DataError.

    `embed` returns an array, and `regress` and `next_sentence` return numbers. The results of most
    other methods are tuples of dataclasses, such as `Label`. A notebook shows the result for one text
    as a table, `pandas.DataFrame(result)` has the same columns, and `dataclasses.asdict` makes a dict of
    each `Label`, for JSON.

    Threads may share a predictor, and its copies share its weights. It can be pickled for another process,
    which loads its directory again. In a process that was forked after a model was loaded, PyTorch computes
    in one thread, and the exported models of the parent can hang; load those in the new process.

    Attributes:
        path: the model directory.
        engine: computes the model, in PyTorch, ONNX Runtime or OpenVINO.
        config: configuration of the network.
        labels: labels of a classifier, in the order of its logits. They are strings, also where the
            training data had numbers or flags.
        tokenizer: the tokenizer of the model.
        num_truncated: number of texts, or pairs of texts, that were truncated since the model was loaded.
    """

    def __init__(self, path: Path, device: str, precision: Precision, verify: bool) -> None:
        self.path = path
        with verification(verify):
            self.engine, self._metadata = load_engine(path, device, precision)
        self._arguments = (path.absolute(), device, precision, verify)
        self.config = self._metadata.config
        self.labels = self._metadata.labels
        self.tokenizer = self._metadata.tokenizer
        self._max_seq_length = resolve_max_seq_length(self._metadata)
        self.num_truncated = 0

    def __repr__(self) -> str:
        return f"Predictor({str(self.path)!r}, {self.engine.architecture})"

    def __reduce__(self) -> tuple[type["Predictor"], tuple[Path, str, Precision, bool], dict[str, int]]:
        return Predictor, self._arguments, {"_max_seq_length": self._max_seq_length}

    def __copy__(self) -> "Predictor":  # with the same engine; without this, `copy` would call `__reduce__`
        copied = object.__new__(Predictor)
        copied.__dict__ |= self.__dict__
        return copied

    def __deepcopy__(self, _: dict[int, Any]) -> "Predictor":  # likewise: no method changes the engine
        return self.__copy__()

    @property
    def max_seq_length(self) -> int:
        """The maximum number of tokens that the model reads at once.

        Longer texts are truncated, or cut into windows of this length. It may be set, up to the number of
        positions of the model. `embed` truncates at the length in `embedding` instead.
        """
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        limit = self.config.max_position_embeddings
        self._max_seq_length = check_integer("max_seq_length", length, minimum=3, maximum=limit)

    @property
    def method(self) -> Method | None:
        """The main method of the model's head; None for an encoder without a head."""
        return main_method(self.engine.architecture, self._metadata)

    @property
    def is_multilabel(self) -> bool:
        """Whether a text may have several labels, each with its own probability."""
        return self._metadata.problem_type == "multi_label_classification"

    @property
    def decision_thresholds(self) -> dict[str, float]:
        """The probability above which a classifier predicts each label.

        They are 0.5, unless fine-tuning tuned them (`tune_threshold`). Of two classes only the second one has
        a threshold; more classes have none, because the likeliest one is predicted.
        """
        return decision_thresholds(self.method, self._metadata)

    @property
    def has_plain_tags(self) -> bool:
        """Whether the tags do not mark entities, for example parts of speech."""
        return is_plain(self.labels)

    @property
    def input_columns(self) -> Mapping[str, str]:
        """The columns of the texts in fine-tuning by their role.

        `bertie predict` reads these.
        """
        return self._metadata.input_columns

    @property
    def long_texts(self) -> LongTexts:
        """How a classifier reads texts that are longer than `max_seq_length`.

        It reads them as in its fine-tuning.
        """
        return self._metadata.long_texts

    @property
    def embedding(self) -> EmbeddingConfig:
        """Pooling, normalization and truncation that `embed` uses by default."""
        return resolve_embedding(self._metadata)

    @overload
    def fill_mask(self, texts: str, top_k: int = 5) -> Results[Results[MaskPrediction]]: ...
    @overload
    def fill_mask(self, texts: Iterable[str], top_k: int = 5) -> list[Results[Results[MaskPrediction]]]: ...
    def fill_mask(
        self, texts: str | Iterable[str], top_k: int = 5
    ) -> Results[Results[MaskPrediction]] | list[Results[Results[MaskPrediction]]]:
        """Predict the token at each [MASK] of a text.

        Args:
            texts: a text, or a list of texts, each with one [MASK] or more.
            top_k: number of predictions for each [MASK].

        Returns:
            For each text and each [MASK] in it, in order, the most likely tokens, best first.

        Raises:
            ModelError: the model has no masked-LM head.
            DataError: a text has no [MASK], or more tokens than the model can read.

        Example:
            >>> predictions = model.fill_mask("The capital of France is [MASK].", top_k=3)
            >>> len(predictions), len(predictions[0])
            (1, 3)
            >>> predictions[0][0].score >= predictions[0][1].score
            True
        """
        self._require("fill_mask")
        top_k = check_integer("top_k", top_k)
        listed = list_texts(texts)
        max_length = self.config.max_position_embeddings
        results = fill_masks(listed, self.engine, self.tokenizer, max_length, top_k)
        return results[0] if isinstance(texts, str) else results

    @overload
    def next_sentence(self, texts: str, pairs: str) -> float: ...
    @overload
    def next_sentence(self, texts: Iterable[str], pairs: Iterable[str]) -> list[float]: ...
    def next_sentence(self, texts: str | Iterable[str], pairs: str | Iterable[str]) -> float | list[float]:
        """Predict whether the second text of a pair follows the first (Section 3.1).

        Args:
            texts: the first text, or a list of first texts.
            pairs: the second text of each pair, in the same form. A long pair is truncated.

        Returns:
            The probability that the second text follows the first.

        Raises:
            DataError: `texts` and `pairs` are not two strings or two lists of equal length.
            ModelError: the model has no next-sentence head.

        Example:
            >>> 0 <= model.next_sentence("The cat sat down.", "It began to purr.") <= 1
            True
        """
        if self.engine.architecture != "BertForPreTraining":
            self._require("next_sentence")
        first, second = list_pairs(texts, pairs)
        encoding = self.tokenizer.encode_batch(first, second, max_length=self.max_seq_length)
        count_truncated(self, encoding.num_truncated)
        logits = self._logits(Inputs.from_encoding(encoding))
        probabilities: list[float] = softmax(logits)[:, 0].tolist()
        return probabilities[0] if isinstance(texts, str) else probabilities

    def embed(
        self,
        texts: str | Iterable[str],
        pooling: Pooling | None = None,
        normalize: bool | None = None,
    ) -> Float32s:
        """Embed a text as one vector, whatever the model's head.

        The vector is computed from the encoder's last layer. A BiLSTM above it, as in Table 5, is
        part of the head and not included.

        Args:
            texts: a text, or a list of texts. A text longer than the model can read is truncated. A
                blank text has the vector of [CLS] [SEP]; `bertie embed` writes NaN for it.
            pooling: `mean` or `max` of the vectors of all tokens, or `cls`, the vector of [CLS].
                Default: the model directory's choice, and `mean` if it makes none.
            normalize: scale the vectors to length 1. Default: the model directory's choice, and
                False if it makes none.

        Returns:
            float32 (H,) for one text, (n, H) for a list of n texts.

        Raises:
            ModelError: the model is exported with a head, so that it returns no vectors.
            SettingsError: the pooling is unknown, or `normalize` is not a flag.

        Example:
            >>> model.embed("a text").shape == (model.config.hidden_size,)
            True
            >>> texts = ["The cat sat on the mat.", "Paris is a city."]
            >>> vectors = model.embed(texts, normalize=True)  # (2, H)
            >>> cosines = vectors @ model.embed("the cat sat on the mat.", normalize=True)
            >>> texts[cosines.argmax()]  # the most similar text
            'The cat sat on the mat.'
        """
        embedding = self.embedding.override(pooling, normalize)
        encoding = self.tokenizer.encode_batch(list_texts(texts), max_length=embedding.max_seq_length)
        count_truncated(self, encoding.num_truncated)
        vectors = embed(self.engine, Inputs.from_encoding(encoding).sequences, embedding)
        return vectors[0] if isinstance(texts, str) else vectors

    @overload
    def classify(self, texts: str, pairs: str | None = None, top_k: int | None = None) -> Results[Label]: ...
    @overload
    def classify(
        self, texts: Iterable[str], pairs: Iterable[str] | None = None, top_k: int | None = None
    ) -> list[Results[Label]]: ...
    def classify(
        self,
        texts: str | Iterable[str],
        pairs: str | Iterable[str] | None = None,
        top_k: int | None = None,
    ) -> Results[Label] | list[Results[Label]]:
        """Classify a text, or a pair of texts.

        If fine-tuning tuned the threshold of a two-class model, the predicted class comes first, even if
        its probability is below 0.5. A multi-label model assigns each label whose probability exceeds its
        threshold in `decision_thresholds`.

        Args:
            texts: a text, or a list of texts. Long texts are truncated or read in windows, as
                `long_texts` says.
            pairs: the second text of each pair, in the same form, for a classifier of pairs.
            top_k: number of labels to return. Default: all.

        Returns:
            The labels with their probabilities, most likely first (but see above). The probabilities
            of a multi-label classifier do not add up to 1: each label has its own.

        Raises:
            DataError: `texts` and `pairs` are not two strings or two lists of equal length.
            ModelError: the model has no classifier, or is a regression model.
            SettingsError: there are pairs, but the model was fine-tuned on single texts or does not truncate
                long texts (see `long_texts`); or there are single texts, but it was fine-tuned on pairs.

        Example:
            >>> labels = model.classify("A film to remember.")
            >>> labels[0].score >= labels[-1].score
            True
            >>> len(model.classify(["A film to remember.", "A film to forget."], top_k=1))
            2
        """
        self._require("classify")
        top_k = check_top_k(top_k)
        results = rank_labels(self.classifier_logits(texts, pairs), self._metadata, top_k)
        return results[0] if isinstance(texts, str) else results

    @overload
    def regress(self, texts: str, pairs: str | None = None) -> float: ...
    @overload
    def regress(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> list[float]: ...
    def regress(
        self, texts: str | Iterable[str], pairs: str | Iterable[str] | None = None
    ) -> float | list[float]:
        """Predict a number for a text, or a pair of texts, such as a similarity.

        Args:
            texts: a text, or a list of texts. Long texts are read as in `classify`.
            pairs: the second text of each pair, in the same form, for a regression model of pairs.

        Returns:
            The predicted number.

        Raises:
            DataError: `texts` and `pairs` are not two strings or two lists of equal length.
            ModelError: the model is not a regression model.
            SettingsError: as in `classify`.

        Example:
            >>> isinstance(model.regress("A cat sat.", "A cat was sitting."), float)
            True
        """
        self._require("regress")
        values: list[float] = self.classifier_logits(texts, pairs)[:, 0].astype(np.float64).tolist()
        return values[0] if isinstance(texts, str) else values

    def classifier_logits(
        self, texts: str | Iterable[str], pairs: str | Iterable[str] | None = None
    ) -> Float32s:
        """Return the logits of a classifier, or the numbers of a regression.

        No temperature is applied. Arguments and errors are as in `classify` and `regress`.

        Returns:
            float32 (n, labels) for n texts.

        Example:
            >>> model.classifier_logits(["A film to remember."]).shape == (1, len(model.labels))
            True
        """
        if self.method != "regress":
            self._require("classify")
        check_pairs(self._metadata, pairs is not None)
        if pairs is None:
            examples = LabelledTexts(list_texts(texts))
        else:
            examples = LabelledTexts(*list_pairs(texts, pairs))
        return self._compute(CustomClassification(long_texts=self.long_texts), examples)[1]

    @overload
    def tag(self, texts: str) -> Results[Entity]: ...
    @overload
    def tag(self, texts: Iterable[str]) -> list[Results[Entity]]: ...
    def tag(self, texts: str | Iterable[str]) -> Results[Entity] | list[Results[Entity]]:
        """Find the entities in a text.

        BERT's basic tokenizer splits the text into words; punctuation marks are words too. The tag
        of a word is predicted at its first token.

        Args:
            texts: a text, or a list of texts, of any length.

        Returns:
            The entities in the order of the text.

        Raises:
            ModelError: the model is not a token classifier, or its tags do not mark entities (use
                `tag_words`).

        Example:
            >>> text = "Ada Lovelace was born in London."
            >>> all(text[entity.start : entity.end] == entity.text for entity in model.tag(text))
            True
        """
        self._require("tag")
        if self.has_plain_tags:
            raise ModelError(
                f"{self.path}: label {self.labels[0]!r} is not the tag of an entity; use tag_words, which "
                f"returns the tag of each word"
            )
        listed = list_texts(texts)
        spans = word_spans(listed, self.tokenizer)
        words = [*map(slice_words, listed, spans)]
        results = [*map(entities_of, listed, spans, self._tag(words))]
        return results[0] if isinstance(texts, str) else results

    @overload
    def tag_words(self, sentences: str) -> Results[TaggedWord]: ...
    @overload
    def tag_words(
        self, sentences: Sequence[str | Sequence[str]], document_bounds: Sequence[int] | None = None
    ) -> list[Results[TaggedWord]]: ...
    def tag_words(
        self,
        sentences: str | Sequence[str | Sequence[str]],
        document_bounds: Sequence[int] | None = None,
    ) -> Results[TaggedWord] | list[Results[TaggedWord]]:
        """Tag each word of a text, or of a sentence that is split into words.

        Args:
            sentences: a text, or a list whose items are texts or lists of words. Texts are split
                into words as in `tag`.
            document_bounds: document i consists of the sentences `document_bounds[i]` to
                `document_bounds[i + 1]`, which the model sees together. Default: the model sees
                each sentence separately.

        Returns:
            The words with their most likely tags, in order.

        Raises:
            ModelError: the model is not a token classifier.

        Example:
            >>> words = model.tag_words("Ada was born in London.")
            >>> [word.word for word in words]
            ['Ada', 'was', 'born', 'in', 'London', '.']
            >>> len(model.tag_words([["Ada", "was", "born", "in", "the", "U.K."]])[0])
            6
        """
        self._require("tag")
        listed = list_sentences([sentences] if isinstance(sentences, str) else sentences)
        results = self._tag(split_words(listed, self.tokenizer), document_bounds)
        return results[0] if isinstance(sentences, str) else results

    @overload
    def answer(self, questions: str, contexts: str, top_k: int = 1) -> Results[Answer]: ...
    @overload
    def answer(
        self, questions: Iterable[str], contexts: Iterable[str], top_k: int = 1
    ) -> list[Results[Answer]]: ...
    def answer(
        self, questions: str | Iterable[str], contexts: str | Iterable[str], top_k: int = 1
    ) -> Results[Answer] | list[Results[Answer]]:
        """Answer a question with a span of its context.

        An answer consists of whole words: a span that begins or ends inside a word is widened. In
        scripts without spaces between words, such as Chinese, Japanese and Thai, the span stays as
        it is, except that no mark is separated from its letter. `bertie evaluate` scores the spans
        as they are, as the official script does.

        A model fine-tuned with unanswerable questions returns an empty answer first if the score of
        "no answer" exceeds the score of the best answer by more than the directory's
        `null_threshold`; otherwise it returns no empty answer.

        Args:
            questions: a question, or a list of questions.
            contexts: the context of each question, in the same form, of any length.
            top_k: number of answers to return.

        Returns:
            The most likely answers, best first.

        Raises:
            DataError: `questions` and `contexts` are not two strings or two lists of equal length, or a
                question is so long that the model cannot read a context with it.
            ModelError: the model has no question-answering head.

        Example:
            >>> context = "Ada Lovelace was born in London in 1815."
            >>> answer = model.answer("Where was she born?", context)[0]
            >>> context[answer.start : answer.end] == answer.text
            True
        """
        self._require("answer")
        top_k = check_integer("top_k", top_k)
        first, second = list_pairs(questions, contexts, ("questions", "contexts"))
        predictions = self._answer_spans(first, second, top_k)
        results = [Results(answers[:top_k]) for answers in rank_answers(second, predictions, self.tokenizer)]
        return results[0] if isinstance(questions, str) else results

    @overload
    def choose(self, contexts: str, endings: Sequence[str], top_k: int | None = None) -> Results[Choice]: ...
    @overload
    def choose(
        self, contexts: Iterable[str], endings: Sequence[Sequence[str]], top_k: int | None = None
    ) -> list[Results[Choice]]: ...
    def choose(
        self,
        contexts: str | Iterable[str],
        endings: Sequence[str] | Sequence[Sequence[str]],
        top_k: int | None = None,
    ) -> Results[Choice] | list[Results[Choice]]:
        """Choose how a context continues, from a list of endings.

        Args:
            contexts: a context, or a list of contexts. A long context is truncated.
            endings: the endings of the context, or a list of endings for each context.
            top_k: number of endings to return. Default: all.

        Returns:
            The endings with their probabilities, most likely first.

        Raises:
            DataError: `contexts` and `endings` do not have one of the two forms above.
            ModelError: the model has no multiple-choice head.

        Example:
            >>> endings = ["and lay down.", "and flew away.", "and sang."]
            >>> choices = model.choose("The cat sat on the mat", endings)
            >>> sorted(choice.number for choice in choices)
            [0, 1, 2]
        """
        self._require("choose")
        top_k = check_top_k(top_k)
        listed, endings_of = list_endings(contexts, endings)
        task = CustomMultipleChoice()
        results = rank_endings(listed, endings_of, top_k, lambda examples: self._compute(task, examples)[1])
        return results[0] if isinstance(contexts, str) else results

    @overload
    def features(
        self,
        texts: str,
        layers: Sequence[int] = (-1,),
        *,
        combine: Combination | None = None,
        weights: Sequence[float] | None = None,
        words: bool = False,
    ) -> TextFeatures: ...
    @overload
    def features(
        self,
        texts: Iterable[str],
        layers: Sequence[int] = (-1,),
        *,
        combine: Combination | None = None,
        weights: Sequence[float] | None = None,
        words: bool = False,
    ) -> Features: ...
    def features(
        self,
        texts: str | Iterable[str],
        layers: Sequence[int] = (-1,),
        *,
        combine: Combination | None = None,
        weights: Sequence[float] | None = None,
        words: bool = False,
    ) -> TextFeatures | Features:
        """Compute the contextual vectors of a text's tokens (Section 5.3).

        The vectors are the outputs of the encoder's layers. A BiLSTM above them, as in Table 5, is not
        included.

        Args:
            texts: a text, or a list of texts, of any length.
            layers: 0 is the output of the embeddings, 1 to L the outputs of the layers. Negative
                values count from the end: -1 is the last layer.
            combine: concatenate the layers, or take their sum or mean; None keeps each as a column.
            weights: weights of the sum, one for each layer. Default: 1 for each.
            words: return only the vector of the first token of each word.

        Returns:
            `TextFeatures` for one text; `Features`, a sequence of them, for a list of texts. The
            tokens have the order of `tokenizer.encode_batch(texts, add_special_tokens=False)`, whose
            `offsets` are their positions in the text.

        Raises:
            ModelError: the model is exported with a head, or exported and another layer than the last
                is selected.
            SettingsError: `layers` is not a list of different layers of the model, the weights do not
                fit them, or `words` is not a flag.

        Example:
            >>> features = model.features("The cat sat.", layers=[0, -1], words=True)
            >>> features.tokens
            ['The', 'cat', 'sat', '.']
            >>> features.vectors.shape == (2, 4, model.config.hidden_size)
            True
            >>> offsets = model.tokenizer.encode_batch(["The cat sat."], add_special_tokens=False).offsets
            >>> len(offsets) == len(model.features("The cat sat.").tokens)
            True
        """
        check_flag("words", words)
        encoded = encode_texts(list_texts(texts), self.tokenizer, self.max_seq_length, words)
        selection = LayerSelection(layers, combine, weights)
        features = compute_features(self.engine, encoded, selection, self.config)
        return features[0] if isinstance(texts, str) else features

    def attention(self, text: str, pair: str | None = None) -> Attention:
        """Return the attention probabilities of all layers and heads for a text.

        The text may have a pair.

        Args:
            text: a text. A long one is truncated at `max_seq_length`.
            pair: the second text of a pair.

        Returns:
            The tokens, their segments, and the probabilities.

        Raises:
            DataError: an argument is not a string.
            ModelError: the model is exported.

        Example:
            >>> attention = model.attention("The cat sat.")
            >>> attention.tokens[0], attention.probabilities.shape[2] == len(attention.tokens)
            ('[CLS]', True)
        """
        remedy = "attention takes one text, or one pair"
        first = check_text(text, "text", remedy)
        second = None if pair is None else check_text(pair, "pair", remedy)
        encoding = self.tokenizer.encode(first, second, max_length=self.max_seq_length)
        return Attention(
            self.tokenizer.convert_ids_to_tokens(encoding.input_ids),
            encoding.token_type_ids.tolist(),
            self.engine.attention_probabilities(Inputs.from_encoding(encoding).sequences),
        )

    def _require(self, method: Method) -> None:
        """Raise ModelError if the model has no head for a method."""
        if self.method != method:
            instead = f"; call {self.method} instead" if self.method else ""
            raise ModelError(
                f"{self.path}: {method} needs {REQUIRED_HEADS[method]}; this model is a "
                f"{self.engine.architecture}{instead}"
            )

    def _tag(
        self, sentences: list[list[str]], document_bounds: Sequence[int] | None = None
    ) -> list[Results[TaggedWord]]:
        """Tag the words of sentences; `document_bounds` is as in `tag_words`."""
        task = CustomTagging().with_labels(self.labels)
        examples = untagged_sentences(sentences, document_bounds)
        inputs, logits = self._compute(task, examples)
        probabilities = task.confidence(examples, inputs, logits)
        return tagged_words(examples, task.decode(examples, inputs, logits), probabilities)

    def _answer_spans(self, questions: list[str], contexts: list[str], n_best: int) -> SpanPredictions:
        """Predict the most likely spans of each context.

        Returns `n_best` spans, or as many as evaluation computes if that is more.
        """
        task = CustomQuestionAnswering(null_threshold=self._metadata.null_threshold)
        task = replace(task, n_best=max(task.n_best, n_best))
        examples = unanswered_questions(questions, contexts)
        inputs, logits = self._compute(task, examples)
        return task.decode(examples, inputs, logits)

    def _compute(self, task: Task[Examples, Any], examples: Examples) -> tuple[Inputs, Float32s]:
        """Encode a task's examples, count the truncated ones, and compute their logits."""
        inputs = task.encode(examples, self.tokenizer, self.max_seq_length)
        count_truncated(self, inputs.num_truncated)
        return inputs, self._logits(inputs)

    def _logits(self, inputs: Inputs) -> Float32s:
        if not len(inputs):
            return np.empty((0, 1 if self.method == "regress" else len(self.labels) or 2), np.float32)
        return compute_logits(self.engine, inputs)


def count_truncated(model: Predictor, number: int) -> None:
    """Add to the `num_truncated` of a model, which threads may share."""
    with _counting:
        model.num_truncated += number


@checked
def load(
    path: str | Path, device: str = "auto", precision: Precision = "float32", *, verify: bool = True
) -> Predictor:
    """Load a model directory, in PyTorch or exported to ONNX.

    Args:
        path: the directory. A directory from `bertie export` needs ONNX Runtime, but not PyTorch.
        device: `auto` (a CUDA device if there is one), `cpu`, `cuda`, `cuda:1` and so on.
        precision: precision of the matrix products, `float32`, `bfloat16` or, on a CPU, `int8`: the
            fastest one, whose results differ most. An exported model needs OpenVINO for `bfloat16`; in
            ONNX Runtime it has the precision of its export.
        verify: compare the files with the directory's SHA256SUMS, if it has one.

    Raises:
        ModelError: the directory is missing, damaged, changed or not a model directory, or PyTorch, ONNX
            Runtime or OpenVINO is needed and not installed.
        SettingsError: `path` is not a path; the device does not exist, or `precision` is int8 and the
            device is no CPU with AVX2; or the model is exported, and another device than the CPU is
            selected, or bfloat16 for an export in int8, or int8 for one in float32.

    Example:
        >>> model = bertie.load("run/model")
        >>> model.embed("a text").shape == (model.config.hidden_size,)
        True
    """
    return Predictor(Path(path), device, precision, verify)
