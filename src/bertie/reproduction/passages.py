"""A pair set of any size, of a corpus's own documents: does the second passage go on from the first?

Dev sets of some hundred examples do not show differences of a point. The pairs are those of next sentence
prediction, unmasked: a model that was pre-trained with it has learnt this very task.
"""

from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.sampling import ExampleStream, held_out_examples
from bertie.corpus.shards import Corpus
from bertie.tasks.classification import Values
from bertie.tasks.custom import OwnTexts
from bertie.tasks.task import Inputs
from bertie.text.tokenizer import Tokenizer

SEED = 0  # the same pairs for all models, whatever their seed


class PassagePairs(OwnTexts):
    """The task, on examples that are word pieces already."""

    def gold(self, examples: Examples) -> Values:  # type: ignore[override]
        """0 where the second passage follows the first, 1 where it does not: int64 (n,)."""
        assert examples.next_sentence_labels is not None
        return examples.next_sentence_labels

    def encode(  # type: ignore[override]
        self, examples: Examples, tokenizer: Tokenizer, max_seq_length: int
    ) -> Inputs:
        """The pairs as they are: they were cut to a length when they were made."""
        return Inputs(examples.input_ids, examples.token_type_ids, examples.bounds, self.gold(examples))


PASSAGE_PAIRS = PassagePairs("passages", ("follows", "elsewhere")).settled("single_label_classification")


def passage_pairs(
    corpus: Corpus, tokenizer: Tokenizer, max_seq_length: int, training: int, dev: int
) -> tuple[Examples, Examples]:
    """Pairs of the corpus's training documents to learn from, and of its held-out ones to be judged by.

    Raises:
        DataError: a shard has too few documents.
    """
    settings = ExampleSettings(max_seq_length=max_seq_length).unmasked()
    vocabulary = tokenizer.vocabulary
    learnt = ExampleStream(corpus.train, settings, vocabulary, SEED).next(training)
    return learnt, held_out_examples(corpus.held_out, settings, vocabulary, SEED, dev)
