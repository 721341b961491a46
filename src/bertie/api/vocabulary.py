"""Learn a WordPiece vocabulary from text, or extend an existing one."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np

from bertie.api.arguments import PathLike, absolute_if, as_paths, open_workers, print_skipped
from bertie.base.arguments import checked
from bertie.base.arrays import Int64s
from bertie.base.checksums import write_sums
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import atomic_directory, reject_changes
from bertie.base.outputs import lock_output
from bertie.base.storage import as_path, fetch_directory, is_remote
from bertie.base.texts import count_noun
from bertie.corpus.documents import InputErrors, OnError
from bertie.corpus.formats import Format
from bertie.corpus.input_languages import Language, group_by_language
from bertie.corpus.readers import list_inputs
from bertie.corpus.sources import LanguageColumn
from bertie.corpus.word_counts import (
    count_tokenized_words,
    count_words,
    lowercase_words,
    smooth_counts,
)
from bertie.text import wordpiece_trainer
from bertie.text.casing import MAX_ACCENTED, Casing, measure_casing
from bertie.text.tokenizer import Tokenizer
from bertie.text.tokenizer_files import VOCABULARY_FILE
from bertie.text.tokenizer_schemas import read_tokenizer_files
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.vocabulary_extension import (
    MIN_OCCURRENCES,
    extend_vocabulary,
    find_unused_slots,
    learn_entries,
)


@checked
def learn_vocabulary(
    inputs: PathLike | Iterable[PathLike],
    out: PathLike | None = None,
    *,
    size: int = 30522,
    cased: bool | None = None,
    merges: Literal["frequency", "likelihood"] = "frequency",
    alphabet: int = 1000,
    format: Format | None = None,
    column: str = "text",
    language: Language = "en",
    language_column: str | None = None,
    smoothing: float = 1.0,
    on_error: OnError = "stop",
    workers: int | None = None,
    scheduler: str | None = None,
    force: bool = False,
) -> Tokenizer:
    """Learn a WordPiece vocabulary from text, like `bertie vocab`.

    The result does not depend on the order of the files or the number of workers.

    Args:
        inputs: a file, folder or pattern of text, or several of them.
        out: the tokenizer directory to write, or its URL; without it, nothing is written.
        size: the number of entries, special tokens included, 9 or more; fewer if no pairs are left.
        cased: keep case and accents (True), or lower-case text and strip accents (False). By default, the
            text decides, and stderr reports the choice: cased if stripping accents would change more than
            2 % of the words, or if most words have no case.
        merges: merge the most frequent pair first, or the pair with the largest gain in likelihood.
        alphabet: the largest number of characters, the most frequent ones. Chinese and Japanese need more.
        format, column: the format of the inputs, and the key or column of the text, as in `prepare`.
        language, language_column: for inputs of several languages, as in `prepare`.
        smoothing: exponent S, for several languages: a fraction p of the words becomes proportional to p^S.
        on_error: "stop" at an unreadable input, or "skip" and count it.
        workers, scheduler: where to count words, as in `prepare`.
        force: replace a tokenizer that bertie wrote to `out` before.

    Returns: the tokenizer with the new vocabulary.

    Raises:
        DataError: an input cannot be read, there are no words, or `out` holds other files.
        SettingsError: `out` exists or cannot be created, or another argument is wrong.

    Example:
        >>> tokenizer = bertie.learn_vocabulary("text/", out="tokenizer", size=150, workers=1)
        >>> tokenizer.convert_ids_to_tokens(tokenizer.encode("the cat").input_ids)[0]
        '[CLS]'
    """
    wordpiece_trainer.limit_alphabet(size, alphabet)  # for its errors, before all words are counted
    output, paths = None if out is None else as_path(out), as_paths(inputs)
    with _lock(output, paths, force) as written:
        files = list_inputs(paths, [output] if output else [])
        reading = (language, language_column, smoothing, workers, scheduler, format, column, on_error)
        cased, words, counts = _resolve_casing(cased, *_count_words(files, *reading))
        tokens = wordpiece_trainer.learn_vocabulary(words, counts, size, merges, alphabet)
        tokenizer = Tokenizer(Vocabulary(tokens), lowercase=not cased)
        _save(tokenizer, written)
        _print_summary(words, counts, tokens, size, "words" if smoothing == 1 else "words after smoothing")
    return tokenizer


@checked
def extend_tokenizer(
    tokenizer: PathLike,
    inputs: PathLike | Iterable[PathLike],
    out: PathLike | None = None,
    *,
    add: int,
    fill_unused: bool = False,
    format: Format | None = None,
    column: str = "text",
    on_error: OnError = "stop",
    workers: int | None = None,
    scheduler: str | None = None,
    force: bool = False,
) -> Tokenizer:
    """Learn more entries for an existing tokenizer, like `bertie vocab --extend`.

    It adds the entries that save the most tokens on the text. Old entries keep their ids, and casing,
    added tokens and other options stay the same. To adapt a model to the extended tokenizer, continue
    its pre-training with `pretrain(…, init=MODEL)`.

    Args:
        tokenizer: a tokenizer or model directory, or a vocab.txt file.
        inputs: a file, folder or pattern of text, or several of them.
        out: the tokenizer directory to write, or its URL; without it, nothing is written.
        add: the number of entries to learn. There are fewer if no others save tokens.
        fill_unused: replace entries `[unusedN]`, so that the vocabulary keeps its size.
        format: the format of every input; detected file by file if not given.
        column: the key or column of the text in JSON lines, csv, tsv, Parquet and Arrow files.
        on_error: "stop" at an unreadable input, or "skip" and count it.
        workers, scheduler: where to count words, as in `prepare`.
        force: replace a tokenizer that bertie wrote to `out` before.

    Returns:
        The extended tokenizer.

    Raises:
        DataError: an input cannot be read, no entry saves tokens, or `out` holds other files.
        ModelError: there is no tokenizer of BERT's kind at `tokenizer`.
        SettingsError: `add` is less than 1, or more than the unused entries; `out` exists and `force`
            is false, or it cannot be created.

    Example:
        >>> with open("terms.txt", "w") as file: _ = file.write("documents documented " * 3)
        >>> new = bertie.extend_tokenizer("tokenizer", "terms.txt", out="extended", add=1, workers=1)
        >>> len(new.vocabulary) - len(bertie.Tokenizer.load("tokenizer").vocabulary)
        1
    """
    source, output = fetch_directory(as_path(tokenizer)), None if out is None else as_path(out)
    old = Tokenizer.load(source)
    slots = _choose_slots(source, old, add) if fill_unused else []
    paths = as_paths(inputs)
    with _lock(output, paths, force, source) as written:
        files = list_inputs(paths, [source, *([output] if output else [])])
        words, counts = _count_tokenized(files, old, workers, scheduler, format, column, on_error)
        entries = _learn_entries(old, words, counts, add)
        extended = old.replace(vocabulary=extend_vocabulary(old.vocabulary, entries, slots))
        _save(extended, written, _max_length(source))
        return extended


def _count_tokenized(
    files: list[Path],
    tokenizer: Tokenizer,
    workers: int | None,
    scheduler: str | None,
    format: Format | None,
    column: str,
    on_error: OnError,
) -> tuple[list[list[int]], Int64s]:
    """Count the words as sequences of token ids, and print the skipped inputs."""
    files, problems = absolute_if(scheduler, files), InputErrors(on_error)
    with open_workers(workers, scheduler, files[:1]) as pool, reject_changes(*files):
        counted = count_tokenized_words(files, tokenizer, pool, format, column, problems)
    print_skipped(problems.counts, problems.messages)
    return counted


def _choose_slots(source: Path, tokenizer: Tokenizer, number: int) -> list[int]:
    """Return the ids of the first unused entries of a tokenizer."""
    slots = find_unused_slots(tokenizer)
    if number > len(slots):
        fewer = f"add at most {len(slots):,}, or " if slots else ""
        raise SettingsError(
            f"{source}: has {len(slots):,} entries [unusedN], fewer than {number:,}; {fewer}append the new "
            f"entries, without fill_unused (--fill-unused)"
        )
    return slots[:number]


def _max_length(source: Path) -> int:
    """Return the number of positions that a tokenizer directory names."""
    config, _ = read_tokenizer_files(source)
    return int(config.model_max_length or 512)


def _save(tokenizer: Tokenizer, output: Path | None, max_length: int = 512) -> None:
    """Write a tokenizer, if there is a directory to write."""
    if output is None:
        return
    with atomic_directory(output) as temporary:
        tokenizer.save(temporary, max_length)
        write_sums(temporary)


@contextmanager
def _lock(
    output: Path | None, inputs: Iterable[Path], force: bool, *more_inputs: Path
) -> Iterator[Path | None]:
    """Lock the tokenizer directory to write, and check that it may be replaced.

    Without a directory to write, do nothing.

    Yields:
        The directory to write, which is a local one also for a URL.
    """
    if output is None:
        yield None
        return
    # Unlike `Path.is_file`, False for a text in place of a path, which `list_inputs` reports.
    files = [path for path in inputs if not is_remote(path) and os.path.isfile(path)]
    with lock_output(output, force=force, inputs=[*files, *more_inputs], replaces=[VOCABULARY_FILE]) as path:
        if not Tokenizer.can_overwrite(path):
            raise DataError(
                f"{output}: holds other files than a tokenizer that bertie wrote; name a new directory"
            )
        yield path


def _count_words(
    files: list[Path],
    language: Language,
    language_column: str | None,
    smoothing: float,
    workers: int | None,
    scheduler: str | None,
    format: Format | None,
    column: str,
    on_error: OnError,
) -> tuple[list[str], Int64s]:
    """Count the words of all languages, and print the skipped inputs."""
    files = absolute_if(scheduler, files)
    groups = group_by_language(files, language, language_column)
    _check_smoothing(smoothing, groups)
    problems, counted = InputErrors(on_error), {}
    with open_workers(workers, scheduler, files[:1]) as pool, reject_changes(*files):
        for code, group in groups.items():
            selected = LanguageColumn(language_column, code, tuple(groups)) if language_column else None
            counted[code] = count_words(group, False, pool, format, column, problems, selected)
    print_skipped(problems.counts, problems.messages)
    return smooth_counts(counted, smoothing)


def _check_smoothing(smoothing: float, groups: Mapping[str, Sequence[Path]]) -> None:
    """Raise SettingsError if `smoothing` is out of range or has no effect.

    With one language, it has no effect.
    """
    if not 0 < smoothing <= 1:
        raise SettingsError(f"smoothing = {smoothing}: expected a number above 0, up to 1")
    if smoothing != 1 and len(groups) == 1:
        raise SettingsError(
            f"smoothing = {smoothing}: the inputs have one language; pass --language CODE=PATH for each, or "
            f"omit it"
        )


def _resolve_casing(cased: bool | None, words: list[str], counts: Int64s) -> tuple[bool, list[str], Int64s]:
    """Return whether the vocabulary is cased, and its words and their counts."""
    if cased or _report_casing(measure_casing(words, counts.tolist()), cased):
        return True, words, counts
    return False, *lowercase_words(words, counts)


def _report_casing(casing: Casing, cased: bool | None) -> bool:
    """Return whether to learn a cased vocabulary.

    Print what an uncased one does to the text.
    """
    loss = "no word has accents to lose"
    if casing.example:
        accented, stripped = casing.example
        loss = f"{casing.accented:.2%} of the words lose accents ({accented!r} becomes {stripped!r})"
    if cased is not None:
        if casing.accented > MAX_ACCENTED:
            print(f"warning: in an uncased vocabulary, {loss}; a cased one keeps them", file=sys.stderr)
        return cased
    if casing.accented > MAX_ACCENTED:
        kind, reason = "a cased", f"in an uncased one, {loss}"
    elif casing.needs_cased:
        kind, reason = "a cased", f"{1 - casing.with_case:.0%} of the words have no upper and lower case"
    else:
        kind, reason = "an uncased", f"text is lower-cased, and {loss}"
    override = "--cased or --uncased (cased=True, cased=False) overrides this"
    print(f"learning {kind} vocabulary: {reason}; {override}", file=sys.stderr)
    return casing.needs_cased


def _learn_entries(
    tokenizer: Tokenizer, words: Sequence[list[int]], counts: Int64s, number: int
) -> list[str]:
    """Learn entries for a tokenizer from words as it splits them.

    Print how many tokens they save.

    Raises:
        SettingsError: `number` is less than 1.
        DataError: no entry saves tokens.
    """
    if number < 1:
        raise SettingsError(f"add = {number}: nothing to learn; use 1 or more")
    vocabulary = tokenizer.vocabulary
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    splits = [tokenizer.convert_ids_to_tokens(word) for word in words if len(word) > 1]
    entries, saving = learn_entries(vocabulary.ids, splits, counts[lengths > 1].tolist(), number)
    if not entries:
        raise DataError(
            f"no entry would save tokens: no two adjacent tokens of a word occur {MIN_OCCURRENCES} times in "
            f"this text; use more text, or keep the tokenizer as it is"
        )
    total, size = int((lengths * counts).sum()), int(counts.sum())
    print(
        f"{size:,} words, {len(words):,} unique; {len(entries):,} new entries lower the tokens per word from "
        f"{total / size:.3f} to {(total - saving) / size:.3f}",
        file=sys.stderr,
    )
    unknown = counts[[word == [vocabulary.unk_id] for word in words]].sum()
    if unknown:
        print(f"{unknown / size:.2%} of the words remain [UNK]; no characters are added", file=sys.stderr)
    if len(entries) < number:
        print(f"fewer than {number:,} entries: no others save tokens in this text", file=sys.stderr)
    return entries


def _print_summary(
    words: Sequence[str], counts: Int64s, tokens: Sequence[str], size: int, counted: str
) -> None:
    """Print the size of the vocabulary and the fraction of words it cannot spell."""
    print(f"{counts.sum():,} {counted}, {len(words):,} unique; {len(tokens):,} entries", file=sys.stderr)
    is_long = np.array([len(word) > wordpiece_trainer.MAX_WORD_CHARACTERS for word in words])
    if is_long.any():
        print(
            f"{counts[is_long].sum() / counts.sum():.2%} of the words have more than "
            f"{wordpiece_trainer.MAX_WORD_CHARACTERS} characters and become [UNK]; if the text has no spaces "
            f"between words, insert them",
            file=sys.stderr,
        )
    spelled = [word for word, long in zip(words, is_long, strict=True) if not long]
    characters = set("".join(spelled))
    missing = characters - {token.removeprefix("##") for token in tokens}
    if missing:
        unknown = counts[~is_long][[not missing.isdisjoint(word) for word in spelled]].sum()
        alphabet = len(characters)
        size_for_all = max(size, len(SPECIAL_TOKENS) + wordpiece_trainer.TOKENS_PER_CHARACTER * alphabet)
        print(
            f"the vocabulary lacks {count_noun(len(missing), 'rare character')}, so "
            f"{unknown / counts.sum():.2%} of the words become [UNK]; to include all, pass --alphabet "
            f"{alphabet} --size {size_for_all} (alphabet={alphabet}, size={size_for_all})",
            file=sys.stderr,
        )
    if len(tokens) < size:
        print(f"fewer than {size:,} entries: there are no more pairs to merge", file=sys.stderr)
