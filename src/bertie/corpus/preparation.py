"""Documents -> shards, as idempotent tasks on the executor.

First each task reads its share of the inputs and writes a part: token ids, and a hash of each document.
Then the parts are assembled into shards (assembly.py). Parts and shards appear whole or not at all, so a run
that was killed goes on where it was. What is written follows from the inputs and the settings alone, not
from the number of workers. A task holds some megabytes of text at a time.
"""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertie import __version__
from bertie.base.errors import DataError, SettingsError
from bertie.base.executor import run_tasks
from bertie.base.files import atomic_directory, locked_directory, read_json, write_json
from bertie.base.progress import Progress
from bertie.corpus.assembly import (
    DUPLICATE,
    assemble_shards,
    decide_fates,
    part_directory,
    read_fates,
    write_hashes,
)
from bertie.corpus.readers import Document, Format, Span, cut_into_tasks
from bertie.corpus.shards import (
    Manifest,
    Shard,
    count_split,
    record_file,
    write_manifest,
    write_shard,
)
from bertie.corpus.word_counts import batch_documents
from bertie.text.tokenizer import Tokenizer

UInt64s = npt.NDArray[np.uint64]


def prepare(
    inputs: Sequence[Path],
    tokenizer_directory: Path,
    output: Path,
    workers: int,
    held_out: float = 0.005,
    language: str = "en",
    format: Format | None = None,
) -> Manifest:
    """Make the corpus `output` from the documents of `inputs`; give its manifest.

    A document is held out by its hash, so on average `held_out` of them are; of equal documents the first
    is kept. `language` is for splitting sentences, `format` for files whose format is not to be detected.
    If an earlier run of the same work was stopped, this one goes on from its parts.

    Raises:
        DataError: an input cannot be read, as in `read_documents`; there is no text; or `output` holds
            another corpus or anything else.
        ModelError: the tokenizer cannot be read.
        SettingsError: `held_out` is no share.
        BertieError: another process writes to `output`, or workers keep dying.
    """
    if not 0 <= held_out < 1:
        raise SettingsError(f"held_out = {held_out}: expected a share of the documents, from 0 to below 1")
    settings = {"held_out": held_out, "language": language, "format": format}
    tokenizer = Tokenizer.load(tokenizer_directory)
    tasks = cut_into_tasks(inputs, format)
    plan = {
        "bertie": __version__,  # another may cut the inputs into other tasks
        "tokenizer": tokenizer.fingerprint,
        "settings": settings,
        "inputs": [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in inputs],
    }
    parts = output / "parts"
    _refuse_foreign(output)
    with locked_directory(output):
        if not parts.exists():
            with atomic_directory(parts) as temporary:
                write_json(temporary / "plan.json", plan)
        elif read_json(parts / "plan.json") != plan:
            raise DataError(
                f"{output}: holds unfinished work on other inputs or settings; remove it or name another"
            )
        with atomic_directory(output / "tokenizer") as temporary:
            tokenizer.save(temporary)
        counts = _write_parts(tasks, output, language, tokenizer.fingerprint, workers)
        offsets = np.cumsum([0, *(part["documents"] for part in counts)])
        if not offsets[-1]:
            shutil.rmtree(output)
            raise DataError(f"{inputs[0]}: no text in any document here, nor in the other inputs")
        decide_fates(parts, offsets, held_out)
        files = assemble_shards(output, offsets, len(tokenizer.vocabulary), workers)
        files |= {f"tokenizer/{file.name}": record_file(file) for file in (output / "tokenizer").iterdir()}
        manifest = Manifest(
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocabulary_size=len(tokenizer.vocabulary),
            settings=settings,
            train=count_split("train", files, len(tokenizer.vocabulary)),
            held_out=count_split("held_out", files, len(tokenizer.vocabulary)),
            duplicates_dropped=int(np.count_nonzero(read_fates(parts) == DUPLICATE)),
            empty_documents_dropped=sum(part["empty_documents"] for part in counts),
            empty_sentences_dropped=sum(part["empty_sentences"] for part in counts),
            files=dict(sorted(files.items())),
        )
        for leftover in [*output.glob(".*.tmp"), *output.glob(".*.old")]:  # of killed processes
            leftover.unlink() if leftover.is_file() else shutil.rmtree(leftover)
        write_manifest(output, manifest)
        shutil.rmtree(parts)
    return manifest


def _refuse_foreign(output: Path) -> None:
    if (output / "manifest.json").exists():
        raise DataError(f"{output}: already holds a prepared corpus; name another directory")
    if output.is_file():
        raise DataError(f"{output}: is a file; name a new directory")
    visible = [file for file in output.glob("*") if file.name[0] != "."]
    if visible and output / "parts" not in visible:
        raise DataError(f"{output}: holds other files; name a new directory")


def _write_parts(
    tasks: list[list[Span]], output: Path, language: str, fingerprint: str, workers: int
) -> list[dict[str, int]]:
    """Write the parts that are not there yet; give the counts of all."""
    parts = [part_directory(output / "parts", index) for index in range(len(tasks))]
    sizes = [sum(span.size for span in task) for task in tasks]
    missing = [index for index, part in enumerate(parts) if not part.exists()]
    done = sum(sizes) - sum(sizes[index] for index in missing)
    total = round(sum(sizes) / 1e6)
    with Progress("preparing documents", total, unit="MB", done=round(done / 1e6)) as progress:
        write = partial(_write_part, output / "tokenizer", fingerprint, language)
        arguments = [(parts[index], tasks[index]) for index in missing]
        for position, _ in run_tasks(write, arguments, workers):
            done += sizes[missing[position]]
            progress.update(round(done / 1e6))
    return [read_json(part / "counts.json") for part in parts]


def _write_part(
    tokenizer_directory: Path, fingerprint: str, language: str, argument: tuple[Path, list[Span]]
) -> None:
    part, task = argument
    tokenizer = _load_tokenizer(tokenizer_directory, fingerprint)
    counts = {"documents": 0, "empty_documents": 0, "empty_sentences": 0}
    hashes: list[UInt64s] = []

    def encoded() -> Iterator[Shard]:
        documents = (document for span in task for document in span.documents())
        for batch in batch_documents(documents):
            shard, kept, empty_sentences = _encode(batch, tokenizer, language)
            counts["documents"] += len(shard.document_ends)
            counts["empty_documents"] += len(batch) - len(shard.document_ends)
            counts["empty_sentences"] += empty_sentences
            hashes.append(_hash_documents(batch)[kept])
            yield shard

    with atomic_directory(part) as temporary:
        write_shard(temporary, encoded(), len(tokenizer.vocabulary))
        write_hashes(temporary, np.concatenate([np.empty((0, 2), np.uint64), *hashes]))
        write_json(temporary / "counts.json", counts)


@cache
def _load_tokenizer(directory: Path, fingerprint: str) -> Tokenizer:
    """Once in each worker; the fingerprint stands for what the directory holds."""
    return Tokenizer.load(directory)


def _encode(
    documents: list[Document], tokenizer: Tokenizer, language: str
) -> tuple[Shard, npt.NDArray[np.bool_], int]:
    """The documents as a shard, which of them it holds, and the number of empty sentences left out.

    A sentence is empty if it has no tokens, a document if it has no sentences.
    """
    sentences = [document.sentences(language) for document in documents]
    encoding = tokenizer.encode_batch([s for group in sentences for s in group], add_special_tokens=False)
    nonempty = np.diff(encoding.bounds) > 0
    sentence_ends = encoding.bounds[1:][nonempty]
    sentences_before = np.concatenate([[0], np.cumsum(nonempty)])
    ends = sentences_before[np.cumsum([len(group) for group in sentences])]
    kept = np.diff(ends, prepend=0) > 0
    return (
        Shard(encoding.input_ids.view(np.uint32), sentence_ends, ends[kept]),
        kept,
        int(np.count_nonzero(~nonempty)),
    )


def _hash_documents(documents: list[Document]) -> UInt64s:
    """128 bits of each document's text, uint64 (D, 2): among a trillion, no two are likely to be equal."""
    digests = (hashlib.blake2b(document.text.encode(), digest_size=16).digest() for document in documents)
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)
