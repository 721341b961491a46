"""The table of contents: every module is listed, in the order the data flows, and imports only point back.

A module may import those listed before it. `TORCH_FREE` ones must not need torch, directly or through others.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "bertie"

CONTENTS = """
base.errors
base.files
base.compression
base.tables
base.rows
base.kernels
base.crc32c
base.random
base.settings
base.progress
base.executor
text.unicode
text.vocabulary
text.trie
text.wordpiece
text.added_tokens
text.tokenizer
text.learning
text.sentences
corpus.documents
corpus.formats
corpus.wikipedia
corpus.readers
corpus.spans
corpus.word_counts
corpus.shards
corpus.assembly
corpus.preparation
corpus.masking
corpus.sentence_pairs
corpus.examples
corpus.sampling
model.config
model.sentence_transformers
model.directory
model.labels
model.objectives
model.sequences
model.engine
model.onnx_engine
model.batch
model.dropout
model.attention
model.bilstm
model.bert
model.cross_entropy
model.heads
model.onnx
model.weight_names
model.huggingface
model.weights
model.sorted_table
model.tensor_bundle
model.tensorflow
model.conversion
model.inspection
training.hardware
training.optimizers
training.schedules
training.signals
training.distributed
training.tracking
training.checkpoints
training.health
training.loop
training.evaluation
training.planning
training.pretraining
tasks.task
tasks.metrics
tasks.classification
tasks.glue
tasks.squad_questions
tasks.squad_windows
tasks.squad_decoding
tasks.squad_scores
tasks.squad
tasks.entities
tasks.ner
tasks.swag
tasks.own_labels
tasks.custom
tasks.details
tasks.catalogue
tasks.torch_engine
tasks.engines
tasks.evaluation
tasks.finetuning
tasks.search
tasks.feature_extraction
tasks.feature_files
tasks.features
inference.answers
inference.masks
inference.probabilities
inference.embeddings
inference.predictors
inference.records
inference.rendering
inference.asking
inference.exporting
inference.server.schemas
inference.server.batching
inference.server.pipelines
inference.server.app
inference.server.running
reports.metrics
reports.stylesheet
reports.page
reports.drawing
reports.pictures
reports.finetuning
reports.pretraining
recipes
reproduction.tables
reproduction.halves
reproduction.locks
reproduction.runner
reproduction.verdicts
reproduction.writing
commands.options
commands.vocab
commands.prepare
commands.pretrain
commands.task_options
commands.finetune
commands.search
commands.evaluate
commands.predict
commands.serve
commands.features
commands.submission
commands.reproduce
commands.tokenize
commands.convert
commands.export
commands.inspect
commands.doctor
commands.standard_library
commands.demo
commands.main
""".split()  # noqa: SIM905

TORCH_FREE = [
    name
    for name in CONTENTS
    if name.split(".")[0] in {"base", "text", "corpus", "reports", "recipes", "commands"}
    or name
    in {
        "model.config",
        "model.sentence_transformers",
        "model.directory",
        "model.labels",
        "model.objectives",
        "model.sequences",
        "model.engine",
        "model.onnx_engine",
        "model.weight_names",
        "model.sorted_table",
        "model.tensor_bundle",
        "training.health",
    }
    or (name.startswith("inference.") and name != "inference.exporting")
    or (
        name.startswith("tasks.")
        and name not in {"tasks.torch_engine", "tasks.finetuning", "tasks.search", "tasks.features"}
    )
]


def path_of(name: str) -> Path:
    file = SOURCE / Path(*name.split(".")).with_suffix(".py")
    return file if file.exists() else SOURCE / Path(*name.split(".")) / "__init__.py"


def imports_of(name: str) -> set[str]:
    """What a module imports of bertie, wherever in the file, less what is only for type checking."""
    tree = ast.parse(path_of(name).read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in typing_only:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import) and node not in typing_only:
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("bertie.") for name in found if name.startswith("bertie.")} & set(CONTENTS)


def test_every_module_is_listed_once():
    files = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert len(CONTENTS) == len(set(CONTENTS))
    assert set(CONTENTS) - {"recipes"} == files


@pytest.mark.parametrize("name", CONTENTS)
def test_imports_point_back(name):
    before = set(CONTENTS[: CONTENTS.index(name)])
    # The package's own `bertie.load` is what a user calls, and so may a command.
    assert imports_of(name) <= before, f"{name} imports {sorted(imports_of(name) - before)}"


def test_rooms_before_the_model_need_no_torch():
    names = ", ".join(f"bertie.{name}" for name in TORCH_FREE)
    check = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("command", ["--help", "pretrain --help"])
def test_help_imports_neither_torch_nor_numba(command):
    check = (
        "import sys; from bertie.commands.main import main\n"
        f"sys.argv = ['bertie', *{command.split()!r}]\n"
        "try: main()\n"
        "except SystemExit: print('heavy:', {'torch', 'numba', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: set()"
