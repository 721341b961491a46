"""The data that a table's models are fine-tuned and scored on."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base.files import sha256
from bertie.corpus.prepared import Corpus
from bertie.reproduction.cells import Outcomes, digest, name_outcomes
from bertie.reproduction.same_article import SAME_ARTICLE, SAME_ARTICLE_TASK, draw_same_article
from bertie.reproduction.split_pairs import SPLIT_PAIRS, SPLIT_PAIRS_TASK, draw_split_pairs
from bertie.reproduction.tables import BLIMP, DRAWN_TASKS, FEATURES, HELD_OUT, Scale
from bertie.tasks.blimp import Paradigm, read_blimp
from bertie.tasks.ner import NER
from bertie.tasks.task import Task
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

HELD_OUT_PART = "held_out"  # the dev part of training examples that are not trained on


class TaskExamples(NamedTuple):
    """A task, with its labels known, and its examples.

    Attributes:
        task: the task.
        training: the training examples.
        dev: the examples of each dev part.
        digest: a hash of all examples.
    """

    task: Task[Any, Any]
    training: Any
    dev: Mapping[str, Any]
    digest: str


class Sources:
    """The data of a table's outcomes.

    Args:
        scale: the scale of the runs.
        corpus: the corpus that pairs are drawn from; opened when it is first used.
        tasks: the official examples of tasks, by name.
        folders: the folders of the official files of NER and BLiMP, by name of the source.
    """

    def __init__(
        self, scale: Scale, corpus: Path, tasks: Mapping[str, TaskExamples], folders: Mapping[str, Path]
    ) -> None:
        self.scale, self.corpus_directory, self.official, self.folders = scale, corpus, tasks, folders

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus that pairs are drawn from."""
        return Corpus.open(self.corpus_directory)

    def task_examples(self, task: str) -> TaskExamples:
        """Return a task and its examples.

        Raises:
            DataError: the corpus is too small to draw the examples from it.
        """
        if task == SPLIT_PAIRS:
            return self._split_pairs
        return self._same_article if task == SAME_ARTICLE else self.official[task]

    def digest(self, source: str) -> str:
        """Return a hash of the training and dev examples of a source."""
        if source == HELD_OUT:
            return ""  # the corpus has a fingerprint
        if source == FEATURES:
            return digest(*(sha256(NER.file(self.folders["ner"], part)) for part in ("train", "dev")))
        if source == BLIMP:
            return digest(repr(self.minimal_pairs))
        return self.task_examples(source).digest

    def majority_baseline(self, source: str) -> Outcomes:
        """Return the scores of always predicting the majority class.

        The result is empty if there are none. For BLiMP, where each of two sentences is as likely to be the
        acceptable one, this is 50.
        """
        if source == BLIMP:
            return {f"{BLIMP}/accuracy": 50.0}
        if source not in (*self.official, *DRAWN_TASKS):
            return {}
        task, training, dev, _ = self.task_examples(source)
        baselines = {part: task.majority_baseline(training, examples) for part, examples in dev.items()}
        return name_outcomes(source, {part: scores for part, scores in baselines.items() if scores})

    @cached_property
    def minimal_pairs(self) -> list[Paradigm]:
        """The first pairs of each of BLiMP's paradigms.

        Raises:
            DataError: the folder lacks BLiMP's files.
        """
        count = self.scale.blimp_pairs
        return [
            paradigm._replace(good=paradigm.good[:count], bad=paradigm.bad[:count])
            for paradigm in read_blimp(self.folders[BLIMP])
        ]

    @cached_property
    def _split_pairs(self) -> TaskExamples:
        """The split pairs of the corpus, which are the same for all models."""
        counts = self.scale.split_pairs
        training, dev = draw_split_pairs(self.corpus, self._vocabulary, counts.training, counts.dev)
        examples_digest = digest(self.corpus.fingerprint, counts.model_dump_json())
        return TaskExamples(SPLIT_PAIRS_TASK, training, {"dev": dev}, examples_digest)

    @cached_property
    def _same_article(self) -> TaskExamples:
        """The pairs of passages of the corpus, which are the same for all models."""
        counts = self.scale.same_article
        training, dev = draw_same_article(self.corpus, self._vocabulary, counts.training, counts.dev)
        examples_digest = digest(self.corpus.fingerprint, SAME_ARTICLE, counts.model_dump_json())
        return TaskExamples(SAME_ARTICLE_TASK, training, {"dev": dev}, examples_digest)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the corpus."""
        return Tokenizer.load(self.corpus.tokenizer_directory)

    @property
    def _vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary
