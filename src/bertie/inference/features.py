"""Contextual vectors of any layers (Section 5.3), for word pieces or words; nothing is trained.

No text is too long: it is cut into windows that overlap, and a piece has its vector from the one in which it
has most context, as a tag has (ner.py). The texts of a batch are of similar length, and only the layers that
are asked for, and those below them, are computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from bertie.base.errors import SettingsError
from bertie.model.config import BertConfig
from bertie.model.engines.engine import Engine
from bertie.model.sequences import Sequences, token_indices
from bertie.tasks.ner import NER, TaggedSentences, cut_into_windows, word_token_ranges
from bertie.text.tokenizer import Tokenizer

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Combination = Literal["concat", "sum", "mean"]


@dataclass(frozen=True)
class LayerChoice:
    """Layers of a model, and what becomes of them.

    numbers  0 is the output of the embeddings, 1 to L that of each layer; -1 is the last one
    combine  to one vector: side by side, their sum, their mean; None leaves each as it is
    weights  of the sum, one for each layer; None is 1 for each
    """

    numbers: Sequence[int] = (-1,)
    combine: Combination | None = None
    weights: Sequence[float] | None = None

    def of(self, num_hidden_layers: int) -> Self:
        """With numbers from 0 to L.

        Raises:
            SettingsError: there is no such layer, or the weights do not fit.
        """
        outputs = range(num_hidden_layers + 1)
        for number in self.numbers:
            if not -len(outputs) <= number < len(outputs):
                raise SettingsError(
                    f"layer {number}: the model has 0, its embeddings, to {num_hidden_layers}, or "
                    f"-{len(outputs)} to -1"
                )
        if self.weights is not None and (self.combine != "sum" or len(self.weights) != len(self.numbers)):
            raise SettingsError(
                f"weights are for a sum, one for each layer: {len(self.weights)} for {len(self.numbers)} "
                f"layers and combine = {self.combine}"
            )
        return replace(self, numbers=[outputs[number] for number in self.numbers])

    @property
    def columns(self) -> list[str]:
        """What the vectors are called: `layer_12`, or `combined`."""
        return ["combined"] if self.combine else [f"layer_{number}" for number in self.numbers]

    def width(self, hidden_size: int) -> int:
        """The size of a vector, W."""
        return hidden_size * len(self.numbers) if self.combine == "concat" else hidden_size

    def apply(self, layers: Sequence[Float32s]) -> Float32s:
        """The chosen layers, each (P, H), as (columns, P, W)."""
        columns: Float32s
        match self.combine:
            case "concat":
                columns = np.concatenate(layers, axis=1)[None]
            case "sum":
                weights = np.array(self.weights or [1.0] * len(layers), dtype=np.float32)
                columns = np.einsum("l,lph->ph", weights, np.stack(layers))[None]
            case "mean":
                columns = np.mean(layers, axis=0)[None]
            case None:
                columns = np.stack(layers)
        return columns


@dataclass(frozen=True)
class Reading:
    """n texts as a model reads them, and what in them has vectors: P pieces, or words.

    windows  over the texts
    places   int64 (P,)    the token of each
    names    P strings     the pieces or the words
    bounds   int64 (n+1,)  those of text i: bounds[i] to bounds[i + 1]
    """

    windows: Sequences
    places: Int64s
    names: list[str]
    bounds: Int64s

    def part(self, first: int, last: int) -> "Reading":
        """The texts from `first` to before `last`, seen in the same windows."""
        begin, end = self.bounds[[first, last]].tolist()
        bounds = self.bounds[first : last + 1] - begin
        return Reading(self.windows, self.places[begin:end], self.names[begin:end], bounds)


@dataclass(frozen=True)
class Features:
    """The vectors of n texts, one text after the other.

    columns  what each of the C vectors of a piece or word is called
    vectors  float32 (C, P, W)
    names    P strings     the pieces or the words
    bounds   int64 (n+1,)  those of text i: bounds[i] to bounds[i + 1]
    """

    columns: list[str]
    vectors: Float32s
    names: list[str]
    bounds: Int64s

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, i: int) -> Float32s:
        """The vectors of text i: float32 (C, pieces or words, W)."""
        i = range(len(self))[i]
        return self.vectors[:, self.bounds[i] : self.bounds[i + 1]]


def read_texts(texts: Sequence[str], tokenizer: Tokenizer, max_seq_length: int, words: bool) -> Reading:
    """Each text seen alone. A word is what BERT's basic tokenizer takes for one, read at its first piece."""
    encoding = tokenizer.encode_batch(texts, add_special_tokens=False)
    cut = cut_into_windows(encoding.input_ids, encoding.bounds, tokenizer.vocabulary, max_seq_length)
    windows = Sequences(cut.input_ids, np.zeros_like(cut.input_ids), cut.bounds)
    if not words:
        return Reading(windows, cut.piece_tokens, tokenizer.tokens(encoding.input_ids), encoding.bounds)
    first, end = word_token_ranges(encoding)
    bounds = np.searchsorted(first, encoding.bounds)
    owners = np.repeat(np.arange(len(texts)), np.diff(bounds)).tolist()
    starts, ends = encoding.offsets[first, 0].tolist(), encoding.offsets[end - 1, 1].tolist()
    names = [texts[i][start:stop] for i, start, stop in zip(owners, starts, ends, strict=True)]
    return Reading(windows, cut.piece_tokens[first], names, bounds)


def read_sentences(sentences: TaggedSentences, tokenizer: Tokenizer, max_seq_length: int) -> Reading:
    """Words given as such, each seen with its document around it and read at its first piece."""
    inputs = NER.encode(replace(sentences, tags=None), tokenizer, max_seq_length)
    windows = Sequences(inputs.input_ids, inputs.token_type_ids, inputs.bounds)
    names = list(chain.from_iterable(sentences.words))
    return Reading(windows, inputs.word_tokens, names, sentences.bounds)


def compute_features(engine: Engine, reading: Reading, choice: LayerChoice, config: BertConfig) -> Features:
    """The vectors of a reading; only the windows that hold some of it are computed.

    Raises:
        SettingsError: the model has no such layer, or the weights do not fit.
    """
    choice = choice.of(config.num_hidden_layers)
    columns, places, bounds = choice.columns, reading.places, reading.windows.bounds
    vectors = np.empty((len(columns), len(places), choice.width(config.hidden_size)), np.float32)
    wanted = np.unique(np.searchsorted(bounds, places, side="right") - 1)
    windows = reading.windows.select(wanted)
    rows = np.full(windows.bounds[-1], -1)  # of each token; -1 where its vector is not wanted
    rows[np.searchsorted(token_indices(bounds, wanted), places)] = np.arange(len(places))
    for chosen, batch in windows.batches(engine.max_tokens):
        batch_rows = rows[token_indices(windows.bounds, chosen)]
        tokens = np.flatnonzero(batch_rows >= 0)
        layers = [layer[tokens] for layer in engine.hidden_states(batch, choice.numbers)]
        vectors[:, batch_rows[tokens]] = choice.apply(layers)
    return Features(columns, vectors, reading.names, reading.bounds)
