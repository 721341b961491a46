"""The advice at the end of an error works: whoever follows it succeeds."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from tests.commands.test_main import run
from tests.inference.small_models import save_small

from bertie import prepare

KINDS = ("classifier", "encoder", "masked LM", "multi-label", "next sentence", "squad-v2", "tagger")
NO_FILES: Mapping[str, bytes] = MappingProxyType({})


class Case(NamedTuple):
    """A command that fails, and the same after its advice has been followed.

    command  the arguments; {KIND} is the directory of a model, {text} 20 texts, {corpus} their corpus
    advice   the end of the error
    fixed    the arguments that follow the advice; the same command if empty
    files    the files that the command reads
    changed  the files that differ when the advice has been followed
    """

    command: str
    advice: str
    fixed: str = ""
    files: Mapping[str, bytes] = NO_FILES
    changed: Mapping[str, bytes] = NO_FILES


CASES = {
    "no input": Case(
        "predict {classifier}", "give either --text or --input", "predict {classifier} --text cat"
    ),
    "encoder": Case(
        "predict {encoder} --text cat",
        "to get its vectors, run bertie embed {encoder}",
        "embed {encoder} --text cat",
    ),
    "no second text": Case(
        "predict {next sentence} --text cat",
        "--text is the text; give the pair with --pair",
        "predict {next sentence} --text cat --pair mat",
    ),
    "number of pairs": Case(
        "predict {classifier} --text a --text b --text c --pair d --pair e",
        "2 --pair for 3 --text; give one for each, or one for all",
        "predict {classifier} --text a --text b --text c --pair d",
    ),
    "column": Case(
        "predict {classifier} --input in.csv",
        "choose one of them, such as --column text=review",
        "predict {classifier} --input in.csv --column text=review",
        {"in.csv": b"review\ncat\n"},
    ),
    "value": Case(
        "predict {classifier} --input in.jsonl",
        "correct it, or choose another column with --column text=NAME",
        "predict {classifier} --input in.jsonl --column text=review",
        {"in.jsonl": b'{"text": 1, "review": "cat"}\n'},
    ),
    "several columns": Case(
        "predict {squad-v2} --input in.txt",
        "give a .csv, .tsv, .jsonl or .parquet file",
        "predict {squad-v2} --input in.csv",
        {"in.txt": b"who?\n", "in.csv": b"question,context\nwho?,the cat\n"},
    ),
    "number of fields": Case(
        "predict {classifier} --input in.csv",
        "in.csv, line 2: expected 1 field, got 2; quote fields that contain the separator",
        "",
        {"in.csv": b"text\ncat,mat\n"},
        {"in.csv": b'text\n"cat,mat"\n'},
    ),
    "quotation marks": Case(
        "predict {classifier} --input in.csv",
        'quote fields that contain quotation marks, and double these ("")',
        "",
        {"in.csv": b'text\n"the "cat" sat"\n'},
        {"in.csv": b'text\n"the ""cat"" sat"\n'},
    ),
    "names of columns": Case(
        "predict {classifier} --input in.csv",
        "two columns are called 'text'; rename one",
        "",
        {"in.csv": b"text,text\ncat,mat\n"},
        {"in.csv": b"text,other\ncat,mat\n"},
    ),
    "JSON": Case(
        "predict {classifier} --input in.jsonl",
        "fix or remove the line",
        "",
        {"in.jsonl": b'{"text": "cat"}\n{"text": cat}\n'},
        {"in.jsonl": b'{"text": "cat"}\n'},
    ),
    "encoding": Case(
        "predict {classifier} --input in.txt",
        "convert the file to UTF-8",
        "",
        {"in.txt": "né\n".encode("latin-1")},
        {"in.txt": "né\n".encode()},
    ),
    "existing output": Case(
        "predict {classifier} --text cat --out out.csv",
        "exists already; choose another name, or replace it with --force (force=True)",
        "predict {classifier} --text cat --out out.csv --force",
        {"out.csv": b"labels\n"},
    ),
    "output that is the input": Case(
        "predict {classifier} --input in.csv --out in.csv --force",
        "would replace the input in.csv; choose another name",
        "predict {classifier} --input in.csv --out out.csv --force",
        {"in.csv": b"text\ncat\n"},
    ),
    "name of the output": Case(
        "embed {encoder} --text cat --out out.txt",
        "unknown format; name it .npy, .parquet or .jsonl",
        "embed {encoder} --text cat --out out.npy",
    ),
    "words": Case(
        "embed {encoder} --input in.conll",
        ".conll files have words; bertie features writes their vectors",
        "features {encoder} --input in.conll --words --out out.parquet",
        {"in.conll": b"the O\ncat O\n"},
    ),
    "types of a column": Case(
        "embed {encoder} --input in.jsonl --out out.parquet",
        "write a .jsonl file, or convert the column",
        "embed {encoder} --input in.jsonl --out out.jsonl",
        {"in.jsonl": b'{"text": "cat", "id": 1}\n{"text": "mat", "id": "b"}\n'},
    ),
    "skipped sentences": Case(
        "predict {tagger} --input in.conll --on-error skip",
        "correct the file, and leave the option out",
        "predict {tagger} --input in.conll",
        {"in.conll": b"the O\ncat O\n"},
    ),
    "role of a column": Case(
        "embed {encoder} --input in.csv --column review",
        "expected NAME=COLUMN with NAME one of text; for example --column text=review",
        "embed {encoder} --input in.csv --column text=review",
        {"in.csv": b"review\ncat\n"},
    ),
    "format of standard input": Case(
        "predict {classifier} --input - --format parquet",
        "cannot be read from standard input; give a file",
        "predict {classifier} --input in.txt",
        {"in.txt": b"cat\n"},
    ),
    "language": Case(
        "prepare in.txt --tokenizer {encoder} --out corpus --workers 1 --language german",
        "not an ISO 639-1 code; did you mean de?",
        "prepare in.txt --tokenizer {encoder} --out corpus --workers 1 --language de",
        {"in.txt": b"The cat sat.\n"},
    ),
    "column of a corpus": Case(
        "prepare in.csv --tokenizer {encoder} --out corpus --workers 1",
        "the columns are review; choose one with --column NAME",
        "prepare in.csv --tokenizer {encoder} --out corpus --workers 1 --column review",
        {"in.csv": b"review\nthe cat sat\n"},
    ),
    "name of a setting": Case(
        "finetune --model {encoder} --train in.csv --dev in.csv --out out --set learning_rate=1e-3",
        "unknown setting 'learning_rate'; did you mean 'optimizer.learning_rate'?",
        "finetune --model {encoder} --train in.csv --dev in.csv --out out --set optimizer.learning_rate=1e-3",
        {"in.csv": b"text,label\nthe cat,a\nthe mat,b\nthe dog,a\nmat,b\n"},
    ),
    "tags in a csv file": Case(
        "finetune --model {encoder} --kind tags --train in.csv --dev in.csv --out out",
        "write a .conll file with a word, a tab and its tag in each line",
        "finetune --model {encoder} --kind tags --train in.conll --dev in.conll --out out",
        {"in.csv": b"words,tags\nthe cat,O O\n", "in.conll": b"the\tO\ncat\tB-PET\n\n"},
    ),
    "special tokens of a foreign vocabulary": Case(
        "prepare in.txt --tokenizer vocab.txt --out corpus --workers 1",
        "BERT needs [PAD], [UNK], [CLS], [SEP], [MASK]: write each in place of an unused token such as "
        "[unused1], or as a new line at the end",
        "",
        {"in.txt": b"The cat sat.\n", "vocab.txt": b"the\ncat\n"},
        {"vocab.txt": b"the\ncat\n[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"},
    ),
    "existing model": Case(
        "convert {encoder} out --to bertie",
        "choose another name",
        "convert {encoder} other --to bertie",
        {"out": b""},
    ),
    "recipe": Case(
        "pretrain xx --corpus {corpus} --out out --dry-run",
        "choose one of base, continue, demo, large, medium, mini, mini-laptop, small, tiny, tiny-laptop, or "
        "the path of a .toml file",
        "pretrain tiny-laptop --corpus {corpus} --out out --dry-run",
    ),
    "spelling of a recipe": Case(
        "pretrain tiny-laptp --corpus {corpus} --out out --dry-run",
        "did you mean 'tiny-laptop'?",
        "pretrain tiny-laptop --corpus {corpus} --out out --dry-run",
    ),
    "held-out documents": Case(
        "prepare {text} --tokenizer {encoder} --out corpus --workers 1 --held-out 2",
        "expected a fraction of the documents, from 0 to below 1",
        "prepare {text} --tokenizer {encoder} --out corpus --workers 1 --held-out 0.1",
    ),
    "other files in the output": Case(
        "prepare {text} --tokenizer {encoder} --out .",
        "contains other files (notes.md); choose a new directory",
        "prepare {text} --tokenizer {encoder} --out corpus --workers 1",
        {"notes.md": b"mine\n"},
    ),
    "existing corpus": Case(
        "prepare in.txt --tokenizer {encoder} --out {corpus} --workers 1",
        "choose another directory, or replace it with --force (force=True)",
        "prepare in.txt --tokenizer {encoder} --out corpus --workers 1",
        {"in.txt": b"The cat sat.\n"},
    ),
    "binary file": Case(
        "prepare in.txt noise.txt --tokenizer {encoder} --out corpus --workers 1",
        "remove it from the inputs, or convert it to text in UTF-8; then run again with --force "
        "(force=True), or skip such inputs with --on-error skip (on_error='skip')",
        "prepare in.txt --tokenizer {encoder} --out corpus --workers 1 --force",
        {"in.txt": b"The cat sat.\n", "noise.txt": b"\0\1\2"},
    ),
    "damaged compression, skipped": Case(
        "prepare in.txt noise.txt.gz --tokenizer {encoder} --out corpus --workers 1",
        "or skip such inputs with --on-error skip (on_error='skip')",
        "prepare in.txt noise.txt.gz --tokenizer {encoder} --out corpus --workers 1 --on-error skip",
        {"in.txt": b"The cat sat.\n", "noise.txt.gz": b"not gzip"},
    ),
    "damaged compression of a vocabulary": Case(
        "vocab in.txt noise.txt.gz --size 120 --out tokenizer --workers 1",
        "or skip such inputs with --on-error skip (on_error='skip')",
        "vocab in.txt noise.txt.gz --size 120 --out tokenizer --workers 1 --on-error skip",
        {"in.txt": b"The cat sat.\n", "noise.txt.gz": b"not gzip"},
    ),
    "binary file, skipped": Case(
        "prepare in.txt noise.txt --tokenizer {encoder} --out corpus --workers 1",
        "or skip such inputs with --on-error skip (on_error='skip')",
        "prepare in.txt noise.txt --tokenizer {encoder} --out corpus --workers 1 --on-error skip",
        {"in.txt": b"The cat sat.\n", "noise.txt": b"\0\1\2"},
    ),
    "tokenizer": Case(
        "prepare in.txt --tokenizer nowhere --out corpus --workers 1",
        "choose a tokenizer directory or a vocab.txt file",
        "prepare in.txt --tokenizer {encoder} --out corpus --workers 1",
        {"in.txt": b"The cat sat.\n"},
    ),
    "size of an extension": Case(
        "vocab in.txt --extend {encoder} --out out",
        "the number of entries to learn; pass --add N",
        "vocab in.txt --extend {encoder} --out out --add 1",
        {"in.txt": b"oak oak oak\n"},
    ),
    "which tokenizer to extend": Case(
        "vocab in.txt --add 1 --out out",
        "need a tokenizer to extend; pass --extend DIR",
        "vocab in.txt --extend {encoder} --out out --add 1",
        {"in.txt": b"oak oak oak\n"},
    ),
    "languages": Case(
        "vocab in.txt de.txt --size 100 --smoothing 0.7 --out out",
        "pass --language CODE=PATH for each, or omit it",
        "vocab in.txt de.txt --size 100 --smoothing 0.7 --out out --language en=in.txt --language de=de.txt",
        {"in.txt": b"The cat sat.\n", "de.txt": b"Die Katze.\n"},
    ),
    "languages without a place": Case(
        "vocab in.jsonl --size 100 --out out --language en --language de",
        "pass --language CODE=PATH with the file or folder of each, or --language-column NAME",
        "vocab in.jsonl --size 100 --out out --language en --language de --language-column lang",
        {"in.jsonl": b'{"lang": "en", "text": "The cat sat."}\n{"lang": "de", "text": "Die Katze."}\n'},
    ),
    "a language more": Case(
        "vocab in.csv --size 100 --out out --language en --language de --language-column lang",
        "lang is 'fr', which is none of de, en; add --language fr; or skip such inputs with --on-error skip",
        "vocab in.csv --size 100 --out out --language en --language de --language-column lang --language fr",
        {"in.csv": b"lang,text\nen,The cat sat.\nde,Die Katze.\nfr,Le chat.\n"},
    ),
    "column of languages": Case(
        "prepare in.csv --tokenizer {encoder} --out out --workers 1 --language en --language de "
        "--language-column long",
        "the columns are lang, text; choose one with --language-column NAME",
        "prepare in.csv --tokenizer {encoder} --out out --workers 1 --language en --language de "
        "--language-column lang",
        {"in.csv": b"lang,text\nen,The cat sat.\nde,Die Katze.\n"},
    ),
    "label of a row": Case(
        "evaluate --model {classifier} --data in.csv",
        "in.csv, line 3: no label in the column 'label'; add it or delete the row",
        "",
        {"in.csv": b"text,label\ncat,bad\nmat,\n"},
        {"in.csv": b"text,label\ncat,bad\n"},
    ),
    "columns of texts": Case(
        "evaluate --model {classifier} --data in.csv",
        "in.csv: no column 'text'; the columns are review, stars; pass --text NAME --label NAME",
        "evaluate --model {classifier} --data in.csv --text review --label stars",
        {"in.csv": b"review,stars\ncat,bad\n"},
    ),
    "column of words": Case(
        "evaluate --model {tagger} --kind tags --data in.jsonl",
        "in.jsonl, line 1: no column 'words'; the columns are tokens, tags; pass --column words=NAME",
        "evaluate --model {tagger} --kind tags --data in.jsonl --column words=tokens",
        {"in.jsonl": b'{"tokens": ["cat"], "tags": ["O"]}\n'},
    ),
    "column of questions": Case(
        "evaluate --model {squad-v2} --kind questions --data in.jsonl",
        "no column 'question'; the columns are key, context, answers; pass --column question=NAME",
        "evaluate --model {squad-v2} --kind questions --data in.jsonl --column question=key",
        {"in.jsonl": b'{"key": "cat", "context": "mat", "answers": []}\n'},
    ),
    "several labels": Case(
        "evaluate --model {multi-label} --data in.jsonl",
        "in.jsonl, line 2: 'good' is not a list of labels, as other rows have; write a list",
        "",
        {"in.jsonl": b'{"text": "a", "label": ["bad"]}\n{"text": "b", "label": "good"}\n'},
        {"in.jsonl": b'{"text": "a", "label": ["bad"]}\n{"text": "b", "label": ["good"]}\n'},
    ),
    "several labels in one string": Case(
        "evaluate --model {multi-label} --data in.csv",
        "in.csv, line 2: 'good' is not a list of labels, but the model gives a text several labels; write "
        "lists, or name the separator with --separator '|' (separator=…)",
        "evaluate --model {multi-label} --data in.csv --separator |",
        {"in.csv": b"text,label\na,good\nb,good|bad\n"},
    ),
    "labels of an ensemble": Case(
        "evaluate --model {classifier} --model {multi-label} --data in.csv",
        "give models that were fine-tuned on the same task",
        "evaluate --model {classifier} --data in.csv",
        {"in.csv": b"text,label\ncat,bad\n"},
    ),
    "folder of BLiMP": Case(
        "evaluate --task blimp --model {masked LM} --data blimp.jsonl",
        "no such folder; give the folder data of github.com/alexwarstadt/blimp",
        "evaluate --task blimp --model {masked LM} --data .",
        {
            "agreement.jsonl": b'{"sentence_good": "the cat sat", "sentence_bad": "the cat mat", "UID": "x", '
            b'"linguistics_term": "y"}\n'
        },
    ),
    "length of the texts": Case(
        "finetune --model {encoder} --train in.csv --dev in.csv --out out --set max_seq_length=500",
        "exceeds the model's 128 positions; use 128 or less",
        "finetune --model {encoder} --train in.csv --dev in.csv --out out --set max_seq_length=128",
        {"in.csv": b"text,label\nthe cat,a\nthe mat,b\nthe dog,a\nmat,b\n"},
    ),
    "size of a dev set": Case(
        "finetune --model {encoder} --train in.csv --dev 0.01 --out out",
        "give a larger fraction or a dev file",
        "finetune --model {encoder} --train in.csv --dev 0.5 --out out",
        {"in.csv": b"text,label\nthe cat,a\nthe mat,b\nthe dog,a\nmat,b\n"},
    ),
    "a label that occurs once": Case(
        "finetune --model {encoder} --train in.csv --dev 0.5 --out out",
        "no other example has the label 'c'; add some or delete it",
        "",
        {"in.csv": b"text,label\nthe cat,a\nthe mat,b\nthe dog,a\nmat,b\nsat,c\n"},
        {"in.csv": b"text,label\nthe cat,a\nthe mat,b\nthe dog,a\nmat,b\n"},
    ),
    "task": Case(
        "finetune --model {encoder} --task mrpcc --data . --out out",
        "no task 'mrpcc'; did you mean 'mrpc'?",
        "finetune --model {encoder} --train in.csv --dev in.csv --out out",
        {"in.csv": b"text,label\nthe cat,a\nthe mat,b\nthe dog,a\nmat,b\n"},
    ),
    "a run that is not there": Case(
        "finetune --resume --model {encoder} --train in.csv --dev in.csv --out out",
        "no run to resume here; start one without --resume (resume=True)",
        "finetune --model {encoder} --train in.csv --dev in.csv --out out",
        {"in.csv": b"text,label\nthe cat,a\nthe mat,b\nthe dog,a\nmat,b\n"},
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    paths = {kind: save_small(folder, kind) for kind in KINDS}
    paths["text"], paths["corpus"] = folder / "text", folder / "corpus"
    paths["text"].mkdir()
    for number in range(20):
        (paths["text"] / f"{number}.txt").write_text("The cat sat.\nThe mat, too.\n" + f"Cat {number}.\n" * 3)
    prepare([paths["text"]], tokenizer=paths["encoder"], out=paths["corpus"], held_out=0.2, workers=1)
    return paths


@pytest.mark.parametrize("name", CASES)
def test_following_the_advice_succeeds(
    name: str,
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    for file, content in case.files.items():
        Path(file).write_bytes(content)

    def bertie(command: str) -> tuple[int, str]:
        # Formatted after the split, since the names of some models have a space.
        words = command.replace("{next sentence}", "{next_sentence}").replace("{masked LM}", "{masked_LM}")
        named = {kind.replace(" ", "_"): path for kind, path in models.items()}
        status, _, err = run(capsys, *(word.format(**named) for word in words.split()))
        return status, err

    status, err = bertie(case.command)
    assert status == 2
    assert case.advice.format(**models) in err.splitlines()[-1]
    for file, content in case.changed.items():
        Path(file).write_bytes(content)
    status, err = bertie(case.fixed or case.command)
    assert status == 0, err
