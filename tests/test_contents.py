"""The table of contents: every module is listed, in the order the data flows, and imports only point back.

A module may import those listed before it. `TORCH_FREE` ones must not need torch, directly or through others.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "bertie"

CONTENTS = """
base.errors
base.arrays
base.processors
base.environment
base.files
base.checksums
base.locks
base.storage
base.outputs
base.compression
base.parquet_pages
base.arrow_messages
base.tables
base.memory
base.texts
base.rows
base.kernels
base.threads
base.random
base.schemas
base.arguments
base.settings
base.progress
base.executor
base.cluster
text.unicode
text.casing
text.vocabulary
text.trie
text.token_rows
text.wordpiece
text.matching
text.encoding
text.token_search
text.added_tokens
text.tokenizer_files
text.tokenizer_schemas
text.tokenizer
text.words
text.vocabulary_extension
text.wordpiece_trainer
text.languages
text.sentences
corpus.documents
corpus.formats
corpus.wikipedia
corpus.sources
corpus.row_readers
corpus.readers
corpus.input_languages
corpus.input_splits
corpus.word_counts
corpus.shards
corpus.manifest
corpus.prepared
corpus.remote_corpora
corpus.part_writer
corpus.assembly
corpus.preparation_plan
corpus.preparation
corpus.masking
corpus.sentence_pairs
corpus.examples
corpus.sampling
model.config
model.objectives
model.sequences
model.buckets
model.batch
model.cpu
model.cpu_math
model.cpu_bfloat16
model.cpu_vectors
model.memory
model.products
model.packed_weights
model.dropout
model.cpu_attention_kernels
model.cpu_training_attention
model.cpu_attention
model.layer_weights
model.cpu_training
model.cpu_inference_kernels
model.cpu_inference
model.cpu_inference_attention
model.gpu_kernels
model.gpu_training
model.gpu
model.attention
model.bilstm
model.rows
model.bert
model.cpu_int8
model.cpu_cross_entropy
model.cross_entropy
model.formats.sentence_transformers
model.heads
model.formats.crc32c
model.formats.config
model.formats.directory
model.formats.weight_names
model.formats.huggingface
model.formats.weights
model.formats.sorted_table
model.formats.tensor_bundle
model.formats.tensorflow
model.engines.engine
model.engines.embeddings
model.engines.hardware
model.engines.onnx_engine
model.engines.openvino_engine
model.engines.torch_engine
model.engines.loading
model.formats.onnx
model.formats.conversion
model.formats.inspection
tasks.metrics
tasks.thresholds
tasks.probabilities
tasks.calibration
tasks.error_analysis
tasks.task
tasks.dev_split
tasks.windows
tasks.long_texts
tasks.label_types
tasks.classification
tasks.glue
tasks.squad.questions
tasks.squad.windows
tasks.squad.decoding
tasks.squad.averaging
tasks.squad.scores
tasks.squad.task
tasks.entities
tasks.conll
tasks.tagging_errors
tasks.ner
tasks.swag
tasks.custom.tables
tasks.custom.classification
tasks.custom.tagging
tasks.custom.entities
tasks.custom.questions
tasks.custom.choices
tasks.blimp
tasks.pairs
tasks.registry
tasks.evaluation
tasks.ensemble
training.optimizers
training.schedules
training.signals
training.distributed
training.tracking
training.metrics_file
training.checkpoints
training.resuming
training.health
training.loop
training.pretraining_settings
training.pretraining_setup
training.held_out
training.planning
training.pretraining
training.finetuning_settings
training.finetuning_batches
training.contrastive
training.class_weights
training.model_selection
training.finetuning
training.search
inference.features
inference.feature_files
inference.results
inference.inputs
inference.masks
inference.labels
inference.tags
inference.answers
inference.choices
inference.likelihood
inference.capabilities
inference.predictor
inference.records
inference.writers
inference.embedding_files
inference.dispatch
inference.export
inference.server.responses
inference.server.schemas
inference.server.errors
inference.server.metrics
inference.server.middleware
inference.server.batching
inference.server.operations
inference.server.models
inference.server.encoding
inference.server.tei
inference.server.openai
inference.server.own
inference.server.pipelines
inference.server.endpoints
inference.server.info
inference.server.openapi
inference.server.page
inference.server.docs
inference.server.app
inference.server.running
reports.page
reports.drawing
reports.pictures
reports.finetuning
reports.pretraining
recipes
api.arguments
api.results
api.vocabulary
api.corpus
api.pretraining
api.task_data
api.finetuning
api.search
api.evaluation
api.blimp
api.conversion
reproduction.split_pairs
reproduction.same_article
reproduction.feature_tagger
reproduction.tables
reproduction.example_scores
reproduction.cells
reproduction.sources
reproduction.pretrained_models
reproduction.scoring
reproduction.runner
reproduction.intervals
reproduction.verdicts
reproduction.report
reproduction.checkpoint_tables
reproduction.budget
reproduction.checkpoint_report
reproduction.checkpoint_runner
commands.options
commands.parsing
commands.vocab
commands.prepare
commands.pretrain
commands.task_options
commands.finetune
commands.search
commands.evaluate
commands.predict
commands.serve
commands.embed
commands.features
commands.submission
commands.reproduce
commands.tokenize
commands.convert
commands.export
commands.inspect
commands.doctor
commands.documentation
commands.demo_report
commands.demo
commands.main
__main__
""".split()  # noqa: SIM905

TORCH_FREE = [
    name
    for name in CONTENTS
    if name.split(".")[0] in {"base", "text", "corpus", "tasks", "reports", "recipes", "commands"}
    or name
    in {
        "model.config",
        "model.objectives",
        "model.sequences",
        "model.formats.crc32c",
        "model.formats.config",
        "model.formats.sentence_transformers",
        "model.formats.directory",
        "model.formats.weight_names",
        "model.formats.sorted_table",
        "model.formats.tensor_bundle",
        "model.engines.engine",
        "model.engines.embeddings",
        "model.engines.onnx_engine",
        "model.engines.openvino_engine",
        "model.engines.loading",
        "training.health",
        "training.metrics_file",
    }
    or (name.startswith("inference.") and name != "inference.export")
]


def path_of(name: str) -> Path:
    file = SOURCE / Path(*name.split(".")).with_suffix(".py")
    return file if file.exists() else SOURCE / Path(*name.split(".")) / "__init__.py"


@cache
def parse(name: str) -> ast.Module:
    return ast.parse(path_of(name).read_text())


def imports_of(name: str) -> set[str]:
    """Return the bertie modules that a module imports, anywhere in the file, except for type checking."""
    tree = parse(name)
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


@pytest.mark.parametrize("name", CONTENTS)
def test_functions_have_at_most_60_lines(name):
    """The training loop is flat instead (CONTRIBUTING.md)."""
    functions = [
        node for node in ast.walk(parse(name)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = {function.name: function.end_lineno - function.lineno + 1 for function in functions}
    assert [f for f in lengths if lengths[f] > 60] == (["train"] if name == "training.loop" else [])


def test_packages_before_the_model_need_no_torch():
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


@pytest.mark.parametrize("page", sorted((SOURCE.parents[1] / "docs").glob("*.md")), ids=lambda p: p.name)
def test_pages_have_each_section_once(page):
    headings = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings))
