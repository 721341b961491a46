"""The tasks of GLUE and its diagnostic set, as rows of a table (Section 4.1).

The tasks read the files of the official download. Their fields are not quoted. A malformed line is
an error, except in QQP's training file, which is known to have malformed lines.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from bertie.base.arrays import Float32s
from bertie.base.errors import DataError, ModelError
from bertie.base.files import atomic_file
from bertie.base.rows import read_header, read_unquoted
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.classification import LabelledTexts, TextClassification
from bertie.tasks.metrics import LabelArray
from bertie.tasks.task import Inputs

_STS_B_DECIMALS = 3  # as in its gold scores


class Columns(NamedTuple):
    """Names of the columns of a task's files; `pair` is None for single sentences."""

    text: str
    pair: str | None
    label: str


_SENTENCE = Columns("sentence", None, "label")
_SENTENCES = Columns("sentence1", "sentence2", "label")


@dataclass(frozen=True)
class GlueTask(TextClassification):
    """A task of GLUE, with the layout of its official files.

    folder          the task's folder in the official download
    columns         names of the columns that are read
    header          names of all columns, for files without a header line
    malformed_file  name of the official file in which malformed lines are skipped
    """

    website: ClassVar[str] = "https://gluebenchmark.com/tasks"
    main_metric: str = "accuracy"
    defaults: dict[str, Any] = field(default_factory=dict)  # the settings' own defaults are Section 4.1's
    folder: str = ""
    columns: Columns = _SENTENCES
    header: tuple[str, ...] = ()
    malformed_file: str = ""

    @property
    def input_columns(self) -> dict[str, str]:
        """The names of the roles: other files than GLUE's do not have its columns."""
        return {"text": "text"} | ({"pair": "pair"} if self.columns.pair else {})

    def file(self, data: Path, part: str) -> Path:
        """Return the path of a part's file.

        `data` is the folder of all tasks, the task's own folder, or a file.
        """
        if not data.is_dir():
            return data
        subfolder = data / self.folder
        folder = subfolder if subfolder.is_dir() or not any(data.glob("*.tsv")) else data
        if part == "diagnostic":  # its folder is next to MNLI's
            folder = folder.absolute().parent / "diagnostic"  # the relative path "." has no parent
        return folder / f"{part}.tsv"

    def read(self, path: Path, labelled: bool) -> LabelledTexts:
        """Read a .tsv file of the official download.

        Raises:
            SettingsError: a column is missing, as the labels are in the test files.
            DataError: the file is missing, a line is malformed, or a label is unknown.
        """
        text, pair, label = self.columns
        header = () if text in read_header(path) else self.header
        names = [text, *filter(None, [pair]), *[label] * labelled]
        rows = read_unquoted(path, names, header, skip_malformed=path.name == self.malformed_file)
        examples = LabelledTexts(
            rows.columns[text],
            rows.columns[pair] if pair else None,
            rows.columns[label] if labelled else None,
            rows,
        )
        if labelled:
            self.gold(examples)  # reject unknown labels before anything is trained
        return examples

    def fitted_to_model(self, metadata: ModelMetadata) -> Self:
        """Return this task with the labels and other results of fine-tuning.

        Raises:
            ModelError: the model was fine-tuned for other labels, or on pairs of texts if the task has single
                texts, or the other way round.
        """
        columns, kinds = metadata.input_columns, ("single texts", "pairs of texts")
        has_pairs, learnt_pairs = self.columns.pair is not None, "pair" in columns
        if columns and has_pairs != learnt_pairs:
            raise ModelError(
                f"the model was fine-tuned on {kinds[learnt_pairs]}, but {self.name} has {kinds[has_pairs]}; "
                f"fine-tune it on {self.name} first"
            )
        return super().fitted_to_model(metadata)

    def decode(self, examples: LabelledTexts, inputs: Inputs, logits: Float32s) -> LabelArray:
        """Decode labels; round regression scores as in submissions.

        Rounding gives the predictions the same metrics as the file that they are written to.
        """
        predictions = super().decode(examples, inputs, logits)
        return predictions.round(_STS_B_DECIMALS) if self.problem_type == "regression" else predictions


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
        header=("source", "label", "mark", "sentence"),  # train.tsv and dev.tsv have none
        submission_files={"test": "CoLA.tsv"},
    ),
    GlueTask("sst-2", ("0", "1"), folder="SST-2", columns=_SENTENCE, submission_files={"test": "SST-2.tsv"}),
    GlueTask(
        "mrpc",
        ("0", "1"),
        main_metric="f1",
        metrics=("f1", "accuracy"),
        folder="MRPC",
        columns=Columns("#1 String", "#2 String", "Quality"),
        submission_files={"test": "MRPC.tsv"},
    ),
    GlueTask(
        "sts-b",
        (),
        main_metric="spearmanr",
        problem_type="regression",
        metrics=("spearmanr", "pearson"),
        folder="STS-B",
        columns=Columns("sentence1", "sentence2", "score"),
        submission_files={"test": "STS-B.tsv"},
    ),
    GlueTask(
        "qqp",
        ("0", "1"),
        main_metric="f1",
        metrics=("f1", "accuracy"),
        folder="QQP",
        columns=Columns("question1", "question2", "is_duplicate"),
        submission_files={"test": "QQP.tsv"},
        # A line break inside a question splits its row, so that neither part has all fields. The
        # QqpProcessor of `transformers` skips these lines too
        # (github.com/nyu-mll/GLUE-baselines/issues/5).
        malformed_file="train.tsv",
    ),
    GlueTask(
        "mnli",
        _INFERENCE,
        dev_parts=("dev_matched", "dev_mismatched"),
        test_parts=("test_matched", "test_mismatched", "diagnostic"),
        folder="MNLI",
        columns=Columns("sentence1", "sentence2", "gold_label"),
        submission_files={
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
        submission_files={"test": "QNLI.tsv"},
    ),
    GlueTask("rte", _ENTAILMENT, folder="RTE", columns=_SENTENCES, submission_files={"test": "RTE.tsv"}),
    GlueTask(
        "wnli",
        ("0", "1"),
        folder="WNLI",
        columns=_SENTENCES,
        submission_files={"test": "WNLI.tsv"},
        note="the paper leaves WNLI out of its average and submits the majority class, which no system "
        "trained on WNLI had beaten (Appendix B.1)",
    ),
    GlueTask(
        "ax",
        _INFERENCE,
        main_metric="matthews_correlation",
        metrics=("matthews_correlation", "accuracy"),
        dev_parts=("diagnostic-full",),
        test_parts=(),  # the file without labels is a test part of MNLI
        folder="diagnostic",
        columns=Columns("Premise", "Hypothesis", "Label"),
        trained_on="mnli",
    ),
)
SUBMISSION_FILES = tuple(name for task in TASKS for name in task.submission_files.values())
WNLI_FILE = "WNLI.tsv"
# WNLI's test file has 146 examples; "0" is the majority class of its training file.
_WNLI_MAJORITY = "index\tprediction\n" + "".join(f"{index}\t0\n" for index in range(146))


def write_submission(files: Mapping[str, Path], output: Path, *, wnli_majority: bool = True) -> None:
    """Pack files of predictions into a .zip file for GLUE's server.

    The same files always give the same bytes.

    Args:
        files: the file of predictions for each of SUBMISSION_FILES.
        output: the .zip file.
        wnli_majority: write the majority class for WNLI, as the paper does (Appendix B.1), instead of the
            predictions in `files`, which may then lack that file.

    Raises:
        DataError: a file is missing.
    """
    missing = [name for name in SUBMISSION_FILES if name not in files]
    if wnli_majority and WNLI_FILE in missing:
        missing.remove(WNLI_FILE)
    if missing:
        tasks = ", ".join(name.removesuffix(".tsv") for name in missing)
        raise DataError(
            f"{output}: not written, because no run has predictions for {tasks}; a submission has all "
            f"{len(SUBMISSION_FILES)} files, so fine-tune on the other tasks and add their runs"
        )
    with atomic_file(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name in SUBMISSION_FILES:
            majority = wnli_majority and name == WNLI_FILE
            content = _WNLI_MAJORITY.encode() if majority else files[name].read_bytes()
            # ZipInfo's default date is fixed (1980). Compressed bytes would depend on zlib's version.
            archive.writestr(zipfile.ZipInfo(name), content)
