"""Contextual vectors of a text's tokens or words, from any layers (Section 5.3).

Texts may have any length. A long text is cut into overlapping windows, and each token takes its
vector from the window in which it has most context, like the tags of words in tasks/ner.py. The windows
of a batch are of similar length, and only the layers that are needed are computed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Integral, Real
from typing import Literal, Self, get_args, overload

import numpy as np

from bertie.base.arrays import Float32s, Int64s
from bertie.base.errors import SettingsError
from bertie.base.schemas import shorten
from bertie.base.texts import count_noun
from bertie.model.config import BertConfig
from bertie.model.engines.engine import Engine
from bertie.model.sequences import Sequences, token_indices
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.ner import NER
from bertie.tasks.windows import split_into_windows
from bertie.text.encoding import word_token_ranges
from bertie.text.tokenizer import Tokenizer
from bertie.text.words import encoded_word_spans, slice_words

Combination = Literal["concat", "sum", "mean"]


@dataclass(frozen=True)
class LayerSelection:
    """Layers of a model, and how to combine them.

    Attributes:
        layers: 0 is the output of the embeddings, 1 to L the outputs of the layers. Negative values
            count from the end: -1 is the last layer.
        combine: concatenate the layers, or take their sum or mean; None keeps each as a column.
        weights: weights of the sum, one for each layer; None means 1 for each.
    """

    layers: Sequence[int] = (-1,)
    combine: Combination | None = None
    weights: Sequence[float] | None = None

    def resolve(self, num_hidden_layers: int) -> Self:
        """Return this selection with layers from 0 to L, for a model with L layers.

        Raises:
            SettingsError: `layers` is not a list of different layers of the model, the combination
                is unknown, or the weights do not fit the layers.
        """
        outputs = range(num_hidden_layers + 1)
        listed = list(self.layers) if isinstance(self.layers, Iterable) else []
        if not listed or not all(isinstance(layer, Integral) for layer in listed):
            raise SettingsError(f"layers={self.layers!r}: expected a list of integers, such as [-1]")
        for layer in listed:
            if not -len(outputs) <= layer < len(outputs):
                raise SettingsError(
                    f"layer {layer}: not in this model; choose from 0, the embeddings, to "
                    f"{num_hidden_layers}, or from -{len(outputs)} to -1"
                )
        layers = [outputs[layer] for layer in listed]
        if len(set(layers)) < len(layers):
            twice = next(layer for layer in layers if layers.count(layer) > 1)
            raise SettingsError(f"layers {listed}: layer {twice} is there twice; select it once")
        if not isinstance(self.combine, str | None) or self.combine not in (None, *get_args(Combination)):
            known = ", ".join(get_args(Combination))
            raise SettingsError(f"combine={shorten(self.combine)}: unknown combination; use one of {known}")
        return replace(self, layers=layers, weights=self._check_weights(len(layers)))

    def _check_weights(self, layer_count: int) -> list[float] | None:
        if self.weights is None:
            return None
        listed = list(self.weights) if isinstance(self.weights, Iterable) else [None]
        if not (
            all(isinstance(weight, Real) for weight in listed)
            and np.abs(listed).max(initial=0) <= np.finfo(np.float32).max
        ):
            raise SettingsError("weights: expected a list of finite numbers")
        if self.combine != "sum":
            raise SettingsError(
                "weights are for a weighted sum of layers; pass --combine sum (combine='sum') or omit them"
            )
        if len(listed) != layer_count:
            layers = count_noun(layer_count, "layer")
            raise SettingsError(f"{count_noun(len(listed), 'weight')} for {layers}; give one for each layer")
        return listed

    @property
    def columns(self) -> list[str]:
        """Names of the columns of vectors: `layer_12` and so on, or `combined`."""
        return ["combined"] if self.combine else [f"layer_{layer}" for layer in self.layers]

    def vector_size(self, hidden_size: int) -> int:
        """Return the size of a vector, W, for a model with hidden size H."""
        return hidden_size * len(self.layers) if self.combine == "concat" else hidden_size

    def apply(self, outputs: Sequence[Float32s]) -> Float32s:
        """Combine the layers' outputs, float32 (P, H) each, into (columns, P, W)."""
        columns: Float32s
        match self.combine:
            case "concat":
                columns = np.concatenate(outputs, axis=1)[None]
            case "sum":
                weights = np.ones(len(outputs)) if self.weights is None else np.array(self.weights)
                columns = np.einsum("l,lph->ph", weights.astype(np.float32), np.stack(outputs))[None]
            case "mean":
                columns = np.mean(outputs, axis=0)[None]
            case None:
                columns = np.stack(outputs)
        return columns


@dataclass(frozen=True)
class EncodedTexts:
    """Texts cut into windows, and their tokens or words, which receive vectors.

    There are n texts and P tokens or words in all.

    Attributes:
        windows: sequences that cover the texts.
        positions: int64 (P,), for each token or word, the index of its token in `windows`.
        tokens: the P WordPiece tokens, or words.
        bounds: int64 (n+1,), text i has the tokens `bounds[i]` to `bounds[i + 1]`.
    """

    windows: Sequences
    positions: Int64s
    tokens: list[str]
    bounds: Int64s

    def slice(self, start: int, stop: int) -> "EncodedTexts":
        """Return texts `start` to `stop` (exclusive), with the same windows."""
        first, end = self.bounds[[start, stop]].tolist()
        bounds = self.bounds[start : stop + 1] - first
        return EncodedTexts(self.windows, self.positions[first:end], self.tokens[first:end], bounds)


@dataclass(frozen=True, repr=False)
class TextFeatures:
    """The vectors of one text.

    Attributes:
        columns: names of the C columns, such as `layer_12`.
        vectors: float32 (C, P, W), a vector of W numbers for each token or word.
        tokens: the P WordPiece tokens, or words.
    """

    columns: list[str]
    vectors: Float32s
    tokens: list[str]

    def __repr__(self) -> str:
        return f"TextFeatures(columns={self.columns}, vectors={self.vectors.shape}, tokens={self.tokens})"


@dataclass(frozen=True, repr=False)
class Features:
    """The vectors of n texts, a sequence of `TextFeatures` stored in flat arrays.

    Attributes:
        columns: names of the C columns, such as `layer_12`.
        vectors: float32 (C, P, W), the vectors of all texts, one after the other.
        tokens: the P WordPiece tokens, or words.
        bounds: int64 (n+1,), text i has the tokens `bounds[i]` to `bounds[i + 1]`.
    """

    columns: list[str]
    vectors: Float32s
    tokens: list[str]
    bounds: Int64s

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[TextFeatures]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, i: int) -> TextFeatures: ...

    @overload
    def __getitem__(self, i: slice) -> list[TextFeatures]: ...

    def __getitem__(self, i: int | slice) -> TextFeatures | list[TextFeatures]:
        if isinstance(i, slice):
            return [self[j] for j in range(len(self))[i]]
        i = range(len(self))[i]  # negative values count from the end
        first, end = self.bounds[i : i + 2]
        return TextFeatures(self.columns, self.vectors[:, first:end], self.tokens[first:end])

    def __repr__(self) -> str:
        return (
            f"Features({count_noun(len(self), 'text')}, columns={self.columns}, vectors={self.vectors.shape})"
        )


def encode_texts(
    texts: Sequence[str], tokenizer: Tokenizer, max_seq_length: int, words: bool
) -> EncodedTexts:
    """Encode texts independently of each other, cut into windows.

    Args:
        texts: the texts, of any length.
        tokenizer: the tokenizer of the model.
        max_seq_length: maximum length of a window, with [CLS] and [SEP].
        words: read one vector for each word, at its first token, instead of one for each token.
            BERT's basic tokenizer splits a text into words.
    """
    encoding = tokenizer.encode_batch(texts, add_special_tokens=False)
    cut = split_into_windows(encoding.input_ids, encoding.bounds, tokenizer.vocabulary, max_seq_length)
    windows = Sequences(cut.input_ids, np.zeros_like(cut.input_ids), cut.bounds)
    if not words:
        tokens = tokenizer.convert_ids_to_tokens(encoding.input_ids)
        return EncodedTexts(windows, cut.positions, tokens, encoding.bounds)
    first, _ = word_token_ranges(encoding)
    tokens = list(chain.from_iterable(map(slice_words, texts, encoded_word_spans(encoding))))
    return EncodedTexts(windows, cut.positions[first], tokens, np.searchsorted(first, encoding.bounds))


def encode_sentences(sentences: TaggedSentences, tokenizer: Tokenizer, max_seq_length: int) -> EncodedTexts:
    """Encode sentences of words, each with its document as context.

    The vector of a word is read at its first token. The tags of the sentences are ignored.
    """
    inputs = NER.encode(replace(sentences, tags=None), tokenizer, max_seq_length)
    words = list(chain.from_iterable(sentences.words))
    return EncodedTexts(inputs.sequences, inputs.word_positions, words, sentences.bounds)


def compute_features(
    engine: Engine, encoded: EncodedTexts, selection: LayerSelection, config: BertConfig
) -> Features:
    """Compute the vectors of encoded texts.

    Windows that hold none of the tokens, which `EncodedTexts.slice` leaves, are skipped.

    Raises:
        SettingsError: the model has no such layer, or the weights do not fit the layers.
    """
    selection = selection.resolve(config.num_hidden_layers)
    columns, positions, bounds = selection.columns, encoded.positions, encoded.windows.bounds
    vectors = np.empty((len(columns), len(positions), selection.vector_size(config.hidden_size)), np.float32)
    needed = np.unique(np.searchsorted(bounds, positions, side="right") - 1)
    windows = encoded.windows.select(needed)
    row_of_token = np.full(windows.bounds[-1], -1)  # -1: the vector is read in another window
    row_of_token[np.searchsorted(token_indices(bounds, needed), positions)] = np.arange(len(positions))
    for chosen, batch in windows.batches(engine.max_batch_tokens):
        rows = row_of_token[token_indices(windows.bounds, chosen)]
        tokens = np.flatnonzero(rows >= 0)
        outputs = [hidden[tokens] for hidden in engine.hidden_states(batch, selection.layers)]
        vectors[:, rows[tokens]] = selection.apply(outputs)
    return Features(columns, vectors, encoded.tokens, encoded.bounds)
