"""The advice at the end of an error works: whoever follows it succeeds."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from tests.commands.test_main import run
from tests.inference.small_models import save_small

KINDS = ("classifier", "encoder", "masked LM", "next sentence", "squad-v2", "tagger")
NO_FILES: Mapping[str, bytes] = MappingProxyType({})


class Case(NamedTuple):
    """A command that fails, and the same after its advice has been followed.

    command  the arguments; {KIND} is the directory of a model
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
        "its vectors: bertie embed {encoder} (to predict, fine-tune it first)",
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
        "in.csv, line 2: expected 1 fields, got 2; quote fields that contain the separator",
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
        "predict {classifier} --text cat --output out.csv",
        "exists already; choose another name, or replace it with --force",
        "predict {classifier} --text cat --output out.csv --force",
        {"out.csv": b"labels\n"},
    ),
    "output that is the input": Case(
        "predict {classifier} --input in.csv --output in.csv --force",
        "would replace the input in.csv; choose another name",
        "predict {classifier} --input in.csv --output out.csv --force",
        {"in.csv": b"text\ncat\n"},
    ),
    "name of the output": Case(
        "embed {encoder} --text cat --output out.txt",
        "unknown format; name it .npy, .parquet, .jsonl",
        "embed {encoder} --text cat --output out.npy",
    ),
    "words": Case(
        "embed {encoder} --input in.conll",
        ".conll files have words; bertie features writes their vectors",
        "features {encoder} --input in.conll --words --output out.parquet",
        {"in.conll": b"the O\ncat O\n"},
    ),
    "types of a column": Case(
        "embed {encoder} --input in.jsonl --output out.parquet",
        "write a .jsonl file, or convert the column",
        "embed {encoder} --input in.jsonl --output out.jsonl",
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
        "expected NAME=COLUMN with NAME one of text",
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
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_small(folder, kind) for kind in KINDS}


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
        words = command.replace("{next sentence}", "{next_sentence}").split()
        named = {kind.replace(" ", "_"): path for kind, path in models.items()}
        status, _, err = run(capsys, *(word.format(**named) for word in words))
        return status, err

    status, err = bertie(case.command)
    assert status == 2
    assert case.advice.format(**models) in err.splitlines()[-1]
    for file, content in case.changed.items():
        Path(file).write_bytes(content)
    status, err = bertie(case.fixed or case.command)
    assert status == 0, err
