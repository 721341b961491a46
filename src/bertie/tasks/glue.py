"""GLUE (Section 4.1): the nine tasks and the diagnostic set, as rows of one table.

The layouts are those of the official download. Nothing in these files is quoted. A malformed line is an
error, but in QQP's training file, where some are known.
"""

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError
from bertie.base.files import atomic_file
from bertie.base.rows import read_header, read_unquoted
from bertie.tasks.classification import LabelledTexts, TextClassification, Values
from bertie.tasks.task import Inputs

_DECIMALS = 3  # of STS-B's numbers, as its gold scores have them


class Columns(NamedTuple):
    """What the columns of a task's files are called."""

    text: str
    pair: str | None
    label: str


_SENTENCE = Columns("sentence", None, "label")
_SENTENCES = Columns("sentence1", "sentence2", "label")


@dataclass(frozen=True)
class GlueTask(TextClassification):
    """A task of GLUE.

    folder       of the official download
    columns      of its files
    header       the columns of files without a header line
    submissions  the official file of predictions of each part without labels
    malformed    the official file whose malformed lines are left out
    note         what a user is to know before believing a score
    """

    main_metric: str = "accuracy"
    defaults: dict[str, Any] = field(default_factory=dict)  # Section 4.1's are those of all fine-tuning
    folder: str = ""
    columns: Columns = _SENTENCES
    header: tuple[str, ...] = ()
    submissions: dict[str, str] = field(default_factory=dict)
    malformed: str = ""
    note: str = ""

    def file(self, data: Path, part: str) -> Path:
        """`data` is a file, the task's folder, or the folder of all tasks."""
        if not data.is_dir():
            return data
        below = data / self.folder
        folder = below if below.is_dir() or not any(data.glob("*.tsv")) else data
        if part == "diagnostic":  # beside MNLI's
            folder = folder.absolute().parent / "diagnostic"  # of "." there is no parent
        return folder / f"{part}.tsv"

    def read(self, path: Path, labelled: bool) -> LabelledTexts:
        """Read a .tsv of the official download.

        Raises:
            SettingsError: a column is missing, as labels are in the test files.
            DataError: the file is missing, a line is malformed and not left out, or a label is unknown.
        """
        text, pair, label = self.columns
        header = () if text in read_header(path) else self.header
        names = [text, *filter(None, [pair]), *[label] * labelled]
        rows = read_unquoted(path, names, header, leave_out_malformed=path.name == self.malformed)
        examples = LabelledTexts(
            rows.columns[text],
            rows.columns[pair] if pair else None,
            rows.columns[label] if labelled else None,
            rows,
        )
        if labelled:
            self.gold(examples)  # an unknown label is to be found before anything is trained
        return examples

    def decode(self, examples: LabelledTexts, inputs: Inputs, logits: npt.NDArray[np.float32]) -> Values:
        """As of every classification; numbers as they are submitted, so that the file has the same score."""
        predictions = super().decode(examples, inputs, logits)
        return predictions.round(_DECIMALS) if self.problem_type == "regression" else predictions


_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")  # run_classifier.py, MnliProcessor.get_labels


TASKS = (
    GlueTask(
        "cola",
        ("0", "1"),
        main_metric="matthews_correlation",
        metrics=("matthews_correlation", "accuracy"),
        folder="CoLA",
        columns=_SENTENCE,
        header=("source", "label", "mark", "sentence"),  # of train and dev
        submissions={"test": "CoLA.tsv"},
    ),
    GlueTask("sst-2", ("0", "1"), folder="SST-2", columns=_SENTENCE, submissions={"test": "SST-2.tsv"}),
    GlueTask(
        "mrpc",
        ("0", "1"),
        main_metric="f1",
        metrics=("f1", "accuracy"),
        folder="MRPC",
        columns=Columns("#1 String", "#2 String", "Quality"),
        submissions={"test": "MRPC.tsv"},
    ),
    GlueTask(
        "sts-b",
        (),
        main_metric="spearmanr",
        problem_type="regression",
        metrics=("spearmanr", "pearson"),
        folder="STS-B",
        columns=Columns("sentence1", "sentence2", "score"),
        submissions={"test": "STS-B.tsv"},
    ),
    GlueTask(
        "qqp",
        ("0", "1"),
        main_metric="f1",
        metrics=("f1", "accuracy"),
        folder="QQP",
        columns=Columns("question1", "question2", "is_duplicate"),
        submissions={"test": "QQP.tsv"},
        # A question that holds a line end is cut there, so no part of it has all fields; `transformers`,
        # QqpProcessor, leaves these out too (github.com/nyu-mll/GLUE-baselines/issues/5).
        malformed="train.tsv",
    ),
    GlueTask(
        "mnli",
        _INFERENCE,
        dev_parts=("dev_matched", "dev_mismatched"),
        test_parts=("test_matched", "test_mismatched", "diagnostic"),
        folder="MNLI",
        columns=Columns("sentence1", "sentence2", "gold_label"),
        submissions={
            "test_matched": "MNLI-m.tsv",
            "test_mismatched": "MNLI-mm.tsv",
            "diagnostic": "AX.tsv",
        },
    ),
    GlueTask(
        "qnli",
        _ENTAILMENT,
        folder="QNLI",
        columns=Columns("question", "sentence", "label"),
        submissions={"test": "QNLI.tsv"},
    ),
    GlueTask("rte", _ENTAILMENT, folder="RTE", columns=_SENTENCES, submissions={"test": "RTE.tsv"}),
    GlueTask(
        "wnli",
        ("0", "1"),
        folder="WNLI",
        columns=_SENTENCES,
        submissions={"test": "WNLI.tsv"},
        note="the paper leaves WNLI out of its average and submits the majority class, for no system trained "
        "on it had beaten that (Appendix B.1)",
    ),
    GlueTask(
        "ax",
        _INFERENCE,
        main_metric="matthews_correlation",
        metrics=("matthews_correlation", "accuracy"),
        dev_parts=("diagnostic-full",),
        test_parts=(),  # without labels it is a part of MNLI
        folder="diagnostic",
        columns=Columns("Premise", "Hypothesis", "Label"),
        note="the diagnostic set has no training part: a model fine-tuned on MNLI answers it",
    ),
)
SUBMISSION_FILES = tuple(name for task in TASKS for name in task.submissions.values())


def write_submission(predictions: Path, output: Path) -> None:
    """Zip a folder's files of predictions for the GLUE server; the same files give the same bytes.

    Raises:
        DataError: the folder lacks one of SUBMISSION_FILES.
    """
    if missing := [name for name in SUBMISSION_FILES if not (predictions / name).is_file()]:
        raise DataError(
            f"{predictions}: no {', '.join(missing)}; a submission has {len(SUBMISSION_FILES)} files"
        )
    with atomic_file(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name in SUBMISSION_FILES:
            # ZipInfo's own date is 1980. Not compressed, for the bytes would be those of a version of zlib.
            archive.writestr(zipfile.ZipInfo(name), (predictions / name).read_bytes())
