"""Run the same commands with two checkouts of bertie, and compare everything they write.

    python scripts/compare_trees.py OLD_CHECKOUT NEW_CHECKOUT --data DATA --work DIR [--only STAGE ...]

Use it to check a refactoring. Names, messages and documentation may change; vocabularies, shards, weights,
scores, predictions and command lines may not. All commands except `demo` and `doctor` run on small parts of
the public data sets in DATA (the folder of BERTIE_DATA), with networks of two layers of width 64. Both
checkouts run in this Python, one after the other, with OMP_NUM_THREADS=1 and without GPUs. A side takes about
five minutes on one core.

DIR/inputs   inputs of the commands
DIR/old      output of OLD_CHECKOUT, one folder for each stage
DIR/new      output of NEW_CHECKOUT

A stage is skipped if its commands, its inputs and the checkout's `src` have not changed since its last run.
To repeat a side, remove its folder. With --only, the script compares the named stages, and also runs the
stages that they need.

How files are compared:
    bytes      the bytes must be equal
    tensors    names, types, shapes and values of all tensors must be equal
    table      columns, types and values of a Parquet file must be equal
    settings   values must be equal; RENAMED maps former names of settings to current ones
    rows       JSON must be equal, except timings and the wording of warnings
    options    help texts must have the same options, kinds of values and defaults
    figures    printed text and tables must have the same numbers; words may differ
    text       model cards, reports and stderr: differences are shown, but allowed

The exit status is 1 if required equality fails, or if a command has another exit status.
"""

import argparse
import bz2
import gzip
import hashlib
import http.client
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import pyarrow
import pyarrow.parquet
from safetensors import deserialize

# Settings with a new name. Commands and recipes below have the old one; a checkout that knows the new one
# gets that.
RENAMED = {
    "warmup_share": "warmup_ratio",
    "mask_share": "mask_probability",
    "keep_share": "keep_probability",
}
# Fields of metrics.jsonl and of a checkpoint's state.json that no two runs have in common. `metrics_bytes` is
# the size of a file with timings in it.
TIMINGS = {"seconds", "tokens_per_second", "window_seconds", "metrics_bytes"}
WORDING = {"message", "found"}  # of warnings, and of what `inspect` has checked

# ---------------------------------------------------------------------------------------------------------
# Recipes. They are written into the folder of each side, because the names of settings may differ.

RECIPES = {
    "pretrain.toml": """
batch_size = 16
warmup_steps = 6
log_every = 4
evaluate_every = 8
save_every = 8
keep_checkpoints = 10
held_out_examples = 64
precision = "float32"

[[phases]]
steps = 24
max_seq_length = 16

[[phases]]
steps = 16
max_seq_length = 64

[model]
num_hidden_layers = 2
hidden_size = 64
num_attention_heads = 2
intermediate_size = 128
max_position_embeddings = 128
initializer_range = 0.05
position_initializer_range = 0.1

[optimizer]
learning_rate = 2e-3
bias_correction = true
""",
    "grid.toml": """
batch_sizes = [16]
learning_rates = [1e-3, 3e-3]
epochs = [1, 2]
""",
    "wider-grid.toml": """
batch_sizes = [16]
learning_rates = [1e-3, 3e-3]
epochs = [1, 2]
restarts = 2
""",
    "scale.toml": """
name = "small"
seeds = 2
pretrain_each_seed = true
vocabulary_size = 800
held_out = 0.1
learning_rates = [1e-3, 4e-3]

[halves]
training = 256
dev = 64

[pretraining]
batch_size = 8
warmup_steps = 2
log_every = 4
evaluate_every = 6
save_every = 6
held_out_examples = 32
precision = "float32"

[[pretraining.phases]]
steps = 12
max_seq_length = 32

[pretraining.model]
num_hidden_layers = 2
hidden_size = 32
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 64

[finetuning]
epochs = 1
max_seq_length = 32
keep_best = false
max_training_examples = 64
warmup_share = 0.2

[folders]
ner = "ner"

[tasks.features]
hidden_size = 16
epochs = 2
max_seq_length = 64
""",
    "table.toml": """
title = "A table to compare checkouts with"

[[columns]]
name = "perplexity"
outcome = "held_out/perplexity"
lower_is_better = true

[[columns]]
name = "SST-2"
outcome = "sst-2/dev/accuracy"

[[columns]]
name = "halves"
outcome = "halves/dev/accuracy"

[[columns]]
name = "NER"
outcome = "ner/dev/f1"

[[rows]]
name = "both ways"
paper = { perplexity = 3.0, "SST-2" = 90.0 }

[[rows]]
name = "both ways, half"
after = 0.5
paper = { perplexity = 4.0 }

[[rows]]
name = "other masks"
pretraining = { examples.mask_share = 0.5, examples.keep_share = 0.2 }
features = "weighted-sum-all"
outcomes = { NER = "features/f1" }

[[rows]]
name = "left to right, BiLSTM"
pretraining = { model.is_decoder = true, examples.pairs = "none" }
finetuning = { bilstm = true }
paper = { "SST-2" = 80.0 }

[[claims]]
better = "both ways"
worse = "left to right, BiLSTM"
columns = ["halves", "NER"]
""",
}

# ---------------------------------------------------------------------------------------------------------
# Stages. A line is a command of bertie, run in the folder of its side; `< FILE` is its standard input. Before
# a command, `fails` says that its status is not 0. Besides these there are
#     copy FROM TO           a file or a folder
#     remove PATH ...        files or folders
#     replace FILE OLD NEW   text in a file
#     serve MODEL < FILE     `bertie serve`, asked what FILE has: a request a line


class Stage(NamedTuple):
    """Commands, and the stages whose results they use."""

    needs: tuple[str, ...]
    commands: str


VERBS = ("vocab", "prepare", "pretrain", "finetune", "search", "evaluate", "predict", "features", "reproduce")
VERBS += ("inspect", "convert", "export", "serve", "submission", "tokenize", "doctor", "demo")
PRETRAIN = "pretrain recipes/pretrain.toml --corpus prepare/uncased"
SHORT = f'{PRETRAIN} --set "phases=[{{steps=10,max_seq_length=24}},{{steps=6,max_seq_length=48}}]"'
# With this rate and so many steps, most models do not give every example the same answer.
LEARN = "--set batch_size=8 --set epochs=6 --set max_seq_length=64 --set optimizer.learning_rate=1e-3"
FINETUNE = f"finetune --model pretrain/further/model {LEARN} --set max_training_examples=150"
QUESTIONS = "--set max_seq_length=96"
GLUE = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli")
GLUE_RUNS = " ".join(f"finetune/{task}" for task in GLUE)
GLUE_COMMANDS = "\n".join(
    f"{FINETUNE} --task {task} --data ../inputs/glue --out finetune/{task} --set keep_best=false"
    for task in GLUE
)
MULTI_LABEL = "--text sentence --label labels --separator |"
CHOICES = "--kind choices --column context=startphrase --column endings=ending0,ending1,ending2,ending3"

STAGES = {
    "help": Stage((), "\n".join(["--help", *(f"{verb} --help" for verb in VERBS)])),
    "vocab": Stage(
        (),
        """
        vocab ../inputs/text --size 3000 --out vocab/uncased --workers 1
        vocab ../inputs/text --size 3000 --cased --out vocab/cased --workers 1
        vocab ../inputs/text --size 1200 --merges likelihood --alphabet 60 --out vocab/likelihood
        vocab ../inputs/large --size 3000 --out vocab/large --workers 2
        """,
    ),
    "tokenize": Stage(
        ("vocab",),
        """
        tokenize vocab/uncased --json < ../inputs/lines.txt
        tokenize vocab/cased --json < ../inputs/lines.txt
        tokenize vocab/likelihood --json < ../inputs/lines.txt
        tokenize ../inputs/vocab/uncased.txt --json < ../inputs/lines.txt
        tokenize ../inputs/vocab/cased.txt --cased --json < ../inputs/lines.txt
        tokenize vocab/uncased --json --pair "The second segment." "Unaffable, isn't it?" "[MASK] and [E1]"
        tokenize vocab/uncased "Naïve café: 12,345 words"
        """,
    ),
    "prepare": Stage(
        ("vocab",),
        """
        prepare ../inputs/text --tokenizer vocab/uncased --out prepare/uncased --held-out 0.05 --workers 1
        prepare ../inputs/text --tokenizer vocab/cased --out prepare/cased --held-out 0.05 --workers 1
        prepare ../inputs/large --tokenizer vocab/large --out prepare/one-worker --workers 1
        prepare ../inputs/large --tokenizer vocab/large --out prepare/two-workers --workers 2
        prepare ../inputs/text/sentences.txt ../inputs/damaged --tokenizer vocab/uncased --held-out 0 \
            --on-error skip --out prepare/skipped
        prepare ../inputs/formats --tokenizer vocab/cased --out prepare/formats --held-out 0
        prepare ../inputs/text/articles.jsonl.gz --tokenizer vocab/uncased --out prepare/summaries \
            --column summary --language fr --held-out 0.2
        """,
    ),
    "pretrain": Stage(
        ("prepare",),
        f"""
        {PRETRAIN} --out pretrain/whole
        {PRETRAIN} --out pretrain/planned --dry-run
        {PRETRAIN} --corpus prepare/cased --out pretrain/cased --set seed=3
        {SHORT} --out pretrain/order --set examples.pairs=order --set optimizer.name=lamb
        {SHORT} --out pretrain/near --set examples.pairs=near --set examples.short_sequence_probability=0.5
        {SHORT} --out pretrain/whole-word --set examples.pairs=none --set examples.whole_word_masking=true \
            --set examples.max_predictions_per_sequence=5
        {SHORT} --out pretrain/masks --set examples.mask_share=0.5 --set examples.keep_share=0.3 \
            --set examples.masking_rate=0.3 --set optimizer.bias_correction=false
        {SHORT} --out pretrain/bfloat16 --set precision=bfloat16 --set gradient_checkpointing=true \
            --set micro_batch_tokens=200
        {SHORT} --out pretrain/left-to-right --set model.is_decoder=true --set examples.pairs=none
        {SHORT} --out pretrain/further --init pretrain/whole/model --set model.hidden_dropout_prob=0.0
        """,
    ),
    "resume": Stage(  # from the checkpoints that a run would have, had it been stopped
        ("pretrain",),
        f"""
        copy pretrain/whole resume/first-phase
        remove resume/first-phase/model resume/first-phase/checkpoints/step-00000024
        remove resume/first-phase/checkpoints/step-00000032 resume/first-phase/checkpoints/step-00000040
        {PRETRAIN} --out resume/first-phase --resume
        copy pretrain/whole resume/second-phase
        remove resume/second-phase/model resume/second-phase/checkpoints/step-00000040
        {PRETRAIN} --out resume/second-phase --resume --set keep_checkpoints=2
        fails {PRETRAIN} --out resume/second-phase --resume --set seed=1
        """,
    ),
    "finetune": Stage(
        ("pretrain",),
        f"""
        {GLUE_COMMANDS}
        {FINETUNE} --task cola --data ../inputs/glue/CoLA --out finetune/left-to-right --json \
            --model pretrain/left-to-right/model --set bilstm=true --set warmup_share=0.3
        {FINETUNE} --task cola --data ../inputs/glue --out finetune/cola --set keep_best=false \
            --resume
        {FINETUNE} --task squad-v1 --data ../inputs/squad --out finetune/squad-v1 {QUESTIONS} --json
        {FINETUNE} --task squad-v2 --data ../inputs/squad --out finetune/squad-v2 {QUESTIONS} --json
        {FINETUNE} --task ner --data ../inputs/ner --out finetune/ner --model pretrain/cased/model --json \
            --set batch_size=4 --set epochs=12 --set optimizer.learning_rate=3e-3
        {FINETUNE} --task swag --data ../inputs/swag --out finetune/swag --json
        """,
    ),
    "own": Stage(
        ("pretrain",),
        f"""
        {FINETUNE} --train ../inputs/own/plain-train.csv --dev ../inputs/own/plain-dev.csv --text sentence \
            --out own/plain --json
        {FINETUNE} --train ../inputs/own/rated-train.csv --dev ../inputs/own/rated-dev.csv --text sentence1 \
            --pair sentence2 --label score --out own/rated --json
        {FINETUNE} --train ../inputs/own/several-train.csv --dev ../inputs/own/several-dev.csv \
            {MULTI_LABEL} --out own/several --json
        {FINETUNE} --train ../inputs/own/several-train.jsonl --dev ../inputs/own/several-dev.jsonl \
            --text sentence --label labels --out own/several-lists --json
        {FINETUNE} --train ../inputs/ner/train.conll --dev ../inputs/ner/dev.conll --kind tags --json \
            --out own/tags
        {FINETUNE} --train ../inputs/squad/train-v2.0.json --dev ../inputs/squad/dev-v2.0.json \
            --kind questions {QUESTIONS} --out own/questions --json
        {FINETUNE} --train ../inputs/swag/train.csv --dev ../inputs/swag/val.csv {CHOICES} --out own/choices \
            --json
        {FINETUNE} --train ../inputs/own/plain-train.csv --text sentence --out own/unjudged
        """,
    ),
    "search": Stage(
        ("pretrain",),
        """
        search --task rte --model pretrain/whole/model --data ../inputs/glue --out search/rte --json \
            --recipe recipes/grid.toml --set finetuning.max_training_examples=64 \
            --set finetuning.max_seq_length=48 --set finetuning.warmup_share=0.2
        search --task rte --model pretrain/whole/model --data ../inputs/glue --out search/rte \
            --recipe recipes/wider-grid.toml --set finetuning.max_training_examples=64 \
            --set finetuning.max_seq_length=48 --set finetuning.warmup_share=0.2
        """,
    ),
    "evaluate": Stage(
        ("finetune", "own"),
        f"""
        evaluate --task cola --data ../inputs/glue/CoLA/dev.tsv --model finetune/cola/model --json
        evaluate --task cola --data ../inputs/glue --model finetune/left-to-right/model --json
        evaluate --task sts-b --data ../inputs/glue --model finetune/sts-b/model
        evaluate --task mnli --data ../inputs/glue --model finetune/mnli/model --json
        evaluate --task squad-v2 --data ../inputs/squad --model finetune/squad-v2/model --json
        evaluate --task squad-v1 --data ../inputs/squad --model finetune/squad-v1/model --max-seq-length 80
        evaluate --task ner --data ../inputs/ner --model finetune/ner/model --json
        evaluate --task ner --data ../inputs/ner/train.conll --model finetune/ner/model --json
        evaluate --task swag --data ../inputs/swag --model finetune/swag/model --json --precision bfloat16
        evaluate --data ../inputs/own/several-dev.csv {MULTI_LABEL} --model own/several/model --json
        evaluate --task mrpc --data ../inputs/glue --json \
            --predictions finetune/mrpc/predictions/dev/predictions.tsv
        evaluate --task sts-b --data ../inputs/glue/STS-B/dev.tsv \
            --predictions finetune/sts-b/predictions/dev/predictions.tsv --json
        evaluate --task mnli --data ../inputs/glue --part dev_mismatched \
            --predictions finetune/mnli/predictions/dev_mismatched/predictions.tsv --json
        evaluate --task squad-v1 --data ../inputs/squad/dev-v1.1.json \
            --predictions finetune/squad-v1/predictions/dev/predictions.json --json
        evaluate --task squad-v2 --data ../inputs/squad/dev-v2.0.json --json \
            --predictions finetune/squad-v2/predictions/dev/predictions.json \
            --null-scores finetune/squad-v2/predictions/dev/null_odds.json
        evaluate --task ner --data ../inputs/ner --json \
            --predictions finetune/ner/predictions/dev/predictions.conll
        evaluate --task swag --data ../inputs/swag --json \
            --predictions finetune/swag/predictions/val/predictions.csv
        evaluate --data ../inputs/own/plain-dev.csv --text sentence --json \
            --predictions own/plain/predictions/dev/predictions.tsv
        """,
    ),
    "predict": Stage(
        ("finetune", "own"),
        """
        predict pretrain/whole/model --text "The capital is [MASK]." --text "A [MASK] of [MASK]." --json
        predict pretrain/whole-word/model --input - --top-k 2 --output predict/masks.jsonl \
            < ../inputs/masks.txt
        predict pretrain/masks/model --input ../inputs/masks.txt --output predict/masks.csv
        copy pretrain/whole/model predict/next-sentence
        replace predict/next-sentence/config.json BertForPreTraining BertForNextSentencePrediction
        predict predict/next-sentence --text "He went home." --pair "She stayed." --pair "He went home." \
            --text "It rained." --json
        predict finetune/sst-2/model --text "A charming and often affecting journey." --json
        predict finetune/sst-2/model --text "A charming and often affecting journey."
        predict finetune/sst-2/model --input ../inputs/own/plain-dev.parquet --column text=sentence --json
        predict finetune/left-to-right/model --text "Bill whistled past the house." --json
        predict finetune/mrpc/model --input ../inputs/own/rated-dev.csv --column text=sentence1 \
            --column pair=sentence2 --output predict/pairs.jsonl
        predict finetune/sts-b/model --input ../inputs/own/rated-dev.csv --column text=sentence1 \
            --column pair=sentence2 --output predict/rated.csv
        predict finetune/mnli/model --input ../inputs/own/rated-dev.csv --column text=sentence1 \
            --column pair=sentence2 --json --top-k 1
        predict own/several/model --input ../inputs/own/several-dev.jsonl --column text=sentence \
            --output predict/several.tsv
        predict own/several-lists/model --input ../inputs/own/several-dev.jsonl --column text=sentence --json
        predict finetune/ner/model --text "Anna lives in New York and works for Reuters." --json
        predict finetune/ner/model --input ../inputs/lines.txt --output predict/entities.jsonl
        predict finetune/ner/model --input ../inputs/ner/train.conll --output predict/tags.conll
        predict finetune/squad-v1/model --input ../inputs/own/questions.jsonl --output predict/answers.jsonl
        predict finetune/squad-v2/model --input ../inputs/own/questions.jsonl --output predict/answers.csv
        predict finetune/squad-v2/model --text "Where was he born?" --pair "He was born in Ulm." --json
        predict finetune/swag/model --input ../inputs/own/choices.jsonl --output predict/choices.jsonl
        predict own/choices/model --text "He opened the door." --pair "It rained." --pair "He went." --json
        fails predict pretrain/whole/model --text "no mask"
        fails predict finetune/sst-2/model
        """,
    ),
    "features": Stage(
        ("finetune",),
        """
        features pretrain/whole/model --input ../inputs/lines.txt --output features/pieces.parquet
        features pretrain/whole/model --input ../inputs/lines.txt --output features/words.parquet \
            --layers 0,1,-1 --words --float16
        features finetune/ner/model --input ../inputs/ner/dev.conll --output features/conll.parquet \
            --layers 1,2 --combine sum --weights 0.3,0.7
        features pretrain/whole/model --input ../inputs/own/rated-dev.csv --column text=sentence1 \
            --output features/pooled.parquet --layers 1,2 --combine concat --pool mean
        features pretrain/cased/model --input ../inputs/lines.txt --output features/max.arrow \
            --layers 1,2 --combine mean --pool max
        """,
    ),
    "convert": Stage(
        ("finetune",),
        """
        convert pretrain/whole/model convert/tensorflow --to tensorflow
        convert convert/tensorflow convert/and-back --to bertie
        convert convert/tensorflow/bert_model.ckpt convert/cased --to huggingface --cased
        convert finetune/mrpc/model convert/classifier --to tensorflow
        convert convert/classifier convert/classifier-and-back --to huggingface
        convert finetune/squad-v2/model convert/spans --to tensorflow
        convert pretrain/whole/model convert/sentences --to sentence-transformers
        convert convert/sentences convert/encoder --to bertie
        convert ../inputs/checkpoints/keras_bert_tf1_tiny convert/keras --to bertie --uncased
        convert ../inputs/checkpoints/hf_tiny_bert_seqcls convert/seqcls --to huggingface --allow-pickle
        convert ../inputs/checkpoints/camphr_ner_bert convert/ner --to bertie --allow-pickle
        convert convert/ner convert/ner-tensorflow --to tensorflow
        predict convert/seqcls --text "A good day." --json
        predict convert/ner --text "Tokyo is a city." --json
        fails convert pretrain/left-to-right/model convert/refused --to tensorflow
        fails convert ../inputs/checkpoints/camphr_ner_bert convert/refused --to bertie
        """,
    ),
    "export": Stage(
        ("finetune", "convert"),
        """
        export finetune/sst-2/model --onnx export/sst-2 --task sst-2 --dev ../inputs/glue/SST-2/dev.tsv
        export finetune/sst-2/model --onnx export/sst-2-int8 --int8 --int8-embeddings --task sst-2 \
            --dev ../inputs/glue/SST-2/dev.tsv
        export finetune/sts-b/model --onnx export/sts-b --int8
        export finetune/squad-v2/model --onnx export/squad-v2
        export finetune/ner/model --onnx export/ner --int8
        export finetune/swag/model --onnx export/swag
        export pretrain/whole/model --onnx export/pretrained --int8 --int8-embeddings
        export pretrain/whole-word/model --onnx export/masks
        export convert/encoder --onnx export/encoder --int8 --dev ../inputs/lines.txt
        predict export/sst-2 --text "A charming journey." --json
        predict export/sst-2-int8 --text "A charming journey." --json
        predict export/sts-b --input ../inputs/own/rated-dev.csv --column text=sentence1 \
            --column pair=sentence2 --json
        predict export/squad-v2 --input ../inputs/own/questions.jsonl --output export/answers.jsonl
        predict export/ner --input ../inputs/lines.txt --output export/entities.jsonl
        predict export/swag --input ../inputs/own/choices.jsonl --output export/choices.jsonl
        predict export/pretrained --input ../inputs/masks.txt --json
        predict export/masks --input ../inputs/masks.txt --json
        features export/encoder --input ../inputs/lines.txt --output export/vectors.parquet
        evaluate --task sst-2 --data ../inputs/glue --model export/sst-2-int8 --json
        inspect export/sst-2-int8 --json
        fails export pretrain/left-to-right/model --onnx export/refused
        """,
    ),
    "inspect": Stage(
        ("finetune", "own", "convert"),
        """
        inspect pretrain/whole/model --json
        inspect pretrain/left-to-right/model --json
        inspect finetune/left-to-right/model --json
        inspect finetune/squad-v2/model --json
        inspect finetune/ner/model
        inspect own/several/model --json
        inspect convert/tensorflow --json
        inspect convert/sentences --json
        inspect ../inputs/checkpoints/keras_bert_tf1_tiny --json
        inspect ../inputs/checkpoints/hf_tiny_bert_seqcls --json --allow-pickle
        inspect ../inputs/checkpoints/camphr_ner_bert --json --allow-pickle
        """,
    ),
    "submission": Stage(("finetune",), f"submission {GLUE_RUNS} --out submission/glue.zip"),
    "serve": Stage(
        ("finetune",),
        """
        serve pretrain/whole/model < ../inputs/requests/masks.jsonl
        serve finetune/mrpc/model < ../inputs/requests/pairs.jsonl
        serve finetune/ner/model < ../inputs/requests/texts.jsonl
        """,
    ),
    "reproduce": Stage(
        (),
        """
        reproduce recipes/table.toml --scale recipes/scale.toml --text ../inputs/text --data ../inputs \
            --out reproduce/out --device cpu --workers 1
        reproduce recipes/table.toml --scale recipes/scale.toml --text ../inputs/text --data ../inputs \
            --out reproduce/out --device cpu --workers 1
        """,
    ),
    "errors": Stage(
        ("prepare",),
        f"""
        fails tokenise
        fails vocab ../inputs/nothing --out errors/vocab
        fails vocab ../inputs/damaged --out errors/vocab
        fails prepare ../inputs/text/sentences.txt --tokenizer vocab/uncased --out prepare/uncased
        fails prepare ../inputs/damaged --tokenizer vocab/uncased --out errors/corpus
        fails prepare ../inputs/text --tokenizer vocab/uncased --out errors/corpus --held-out 1.5
        fails {PRETRAIN} --out errors/run --set optimizer.learning_rat=1e-3
        fails {PRETRAIN} --out errors/run --set batch_size=none
        fails {PRETRAIN} --out errors/run --set examples.mask_share=0.8 --set examples.keep_share=0.3
        fails pretrain no-such-recipe --corpus prepare/uncased --out errors/run
        fails finetune --task no-such-task --model pretrain/whole/model --data ../inputs/glue --out errors/run
        fails evaluate --task cola --data ../inputs/glue
        fails inspect errors
        """,
    ),
}

# ---------------------------------------------------------------------------------------------------------
# Inputs: small parts of the data sets, the same bytes whenever they are made.

INPUTS_CHANGED = 1_600_000_000
PAGE = """<page><title>{title}</title><ns>0</ns><revision><text xml:space="preserve">
{{{{Infobox|name={title}}}}}
'''{title}''' is a [[page|part]] of it&lt;ref&gt;A note.&lt;/ref&gt;, with &amp;nbsp;spaces.

== Heading ==
* a list
{text}
[[Category:Pages]]</text></revision>
</page>
"""


def make_inputs(data: Path, folder: Path) -> None:
    """Write all that the commands read."""
    if folder.exists():
        shutil.rmtree(folder)
    for name in ("text", "large", "formats", "damaged", "own", "vocab"):
        (folder / name).mkdir(parents=True)
    make_texts(data / "text", folder)
    make_glue(data / "glue", folder / "glue")
    for part, sentences in (("train", 200), ("dev", 60)):
        lines = (data / "ner/wnut17" / f"{part}.conll").read_text(encoding="utf-8").splitlines()
        ends = [number for number, line in enumerate(lines) if not line.strip()]
        write(folder / "ner" / f"{part}.conll", "\n".join(lines[: ends[sentences]]) + "\n")
    for version in ("1.1", "2.0"):
        for part, paragraphs in (("train", 6), ("dev", 3)):
            name = f"{part}-v{version}.json"
            squad = json.loads((data / "squad" / name).read_text(encoding="utf-8"))
            squad["data"] = squad["data"][:2]
            for article in squad["data"]:
                article["paragraphs"] = article["paragraphs"][:paragraphs]
            write(folder / "squad" / name, json.dumps(squad))
    for part, rows in (("train", 120), ("val", 60)):
        copy_lines(data / "swag-layout" / f"{part}.csv", folder / "swag" / f"{part}.csv", rows)
    make_own(folder)
    for casing in ("uncased", "cased"):
        shutil.copyfile(data / "vocab" / f"{casing}_en" / "vocab.txt", folder / "vocab" / f"{casing}.txt")
    for name in ("keras_bert_tf1_tiny", "hf_tiny_bert_seqcls", "camphr_ner_bert"):
        source, target = data / "checkpoints" / name, folder / "checkpoints" / name
        shutil.copytree(source, target, copy_function=shutil.copyfile)
    make_requests(folder / "requests")
    for file in folder.rglob("*"):  # `prepare` notes when its inputs were changed
        os.utime(file, (INPUTS_CHANGED, INPUTS_CHANGED))


def make_texts(data: Path, folder: Path) -> None:
    """A megabyte of text in four formats, twenty for two workers, what cannot be read, and single lines."""
    wikipedia = (data / "wikipedia-small/wiki_00").read_text(encoding="utf-8")
    end = "</doc>\n"
    cuts = [wikipedia.index(end, size) + len(end) for size in (1_000_000, 1_200_000)]
    write(folder / "text/wikipedia.txt", wikipedia[: cuts[0]])
    articles = re.findall(r"<doc[^>]*>\n(.*?)\n</doc>", wikipedia[cuts[0] : cuts[1]], re.DOTALL)
    rows = [json.dumps({"text": article, "summary": article[:300]}) for article in articles]
    compressed = gzip.compress("\n".join(rows).encode(), mtime=0)
    (folder / "text/articles.jsonl.gz").write_bytes(compressed)
    shutil.copyfile(data / "google-bert-sample_text.txt", folder / "text/sentences.txt")
    book = min((data / "gutenberg").glob("*.xz"), key=lambda file: (file.stat().st_size, file.name))
    (folder / "text/book.txt").write_bytes(lzma.decompress(book.read_bytes()))
    write_table(folder / "formats/articles.parquet", {"text": articles[:20]})
    dump = "".join(
        PAGE.format(title=f"Page {n}", text=escape(text)) for n, text in enumerate(articles[20:40])
    )
    (folder / "formats/dump.xml.bz2").write_bytes(bz2.compress(f"<mediawiki>\n{dump}</mediawiki>\n".encode()))
    # More than 16 MB, from where on there is work for two processes.
    shutil.copyfile(data / "wikipedia-small/wiki_00", folder / "large/wiki_00")
    shutil.copyfile(data / "wikipedia/wiki_00.xz", folder / "large/wiki_00.xz")
    (folder / "damaged/binary.txt").write_bytes(b"one\0two\0three")
    (folder / "damaged/cut.txt.gz").write_bytes(compressed[:5000])
    (folder / "damaged/empty.txt").write_bytes(b"")
    write(folder / "damaged/broken.jsonl", f'{rows[0]}\n{{"text": 7}}\n{{"text"\n{rows[1]}\n')
    odd = [
        "Naïve café, e\u0301te\u0301; İstanbul and ΣΊΣΥΦΟΣ.",
        "北京 is 2,000 km away; 한국어 and कि too.",
        "tabs\tand\u00a0spaces\u200b, \x07controls, \ufffd and \U0001f600",
        "",
        "don't--stop... http://example.org/a?b=c [MASK] [SEP] unaffable" + "x" * 120,
    ]
    lines = [line for line in wikipedia.splitlines() if 60 < len(line) < 400 and line[0] != "<"][:40]
    write(folder / "lines.txt", "\n".join([*lines, *odd]) + "\n")
    masked = [re.sub(r"\b(the|of|in)\b", "[MASK]", line[:120], count=2) for line in lines[:12]]
    masks = [line for line in masked if "[MASK]" in line]
    write(folder / "masks.txt", "\n".join([*masks[:4], "", *masks[4:]]) + "\n")


def make_glue(data: Path, folder: Path) -> None:
    """Parts of every task. What DATA lacks is made of what it has, in the official columns."""
    tasks = ("CoLA", "SST-2", "MRPC", "STS-B", "MNLI", "QNLI", "RTE", "WNLI", "diagnostic")
    for source in sorted(file for task in tasks for file in (data / task).glob("*.tsv")):
        rows = 160 if source.name == "train.tsv" else 60
        copy_lines(source, folder / source.parent.name / source.name, rows)
    for task, part, test in (
        ("QNLI", "dev", "test"),
        ("MNLI", "dev_matched", "test_matched"),
        ("MNLI", "dev_mismatched", "test_mismatched"),
    ):
        lines = (folder / task / f"{part}.tsv").read_text(encoding="utf-8").splitlines()
        unlabelled = [line.rpartition("\t")[0] for line in lines]
        write(folder / task / f"{test}.tsv", "\n".join(unlabelled) + "\n")
    for part in ("train", "dev", "test"):
        lines = (folder / "MRPC" / f"{part}.tsv").read_text(encoding="utf-8-sig").splitlines()[1:]
        rows = [line.split("\t") for line in lines]
        if part == "test":
            header = "id\tquestion1\tquestion2"
            lines = [f"{number}\t{row[3]}\t{row[4]}" for number, row in enumerate(rows)]
        else:
            header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
            lines = ["\t".join([str(number), *row[1:5], row[0]]) for number, row in enumerate(rows)]
        write(folder / "QQP" / f"{part}.tsv", "\n".join([header, *lines]) + "\n")


def make_own(folder: Path) -> None:
    """Tables of the kinds that people have: labels, numbers, several labels, questions, choices."""
    for part in ("train", "dev"):
        tables = {"plain": "SST-2", "rated": "STS-B"}
        for kind, task in tables.items():
            lines = (folder / "glue" / task / f"{part}.tsv").read_text(encoding="utf-8").splitlines()
            rows = [line.split("\t") for line in lines]
            write(folder / "own" / f"{kind}-{part}.csv", "".join(map(csv_line, rows)))
            if kind == "plain":
                several = [(row[0], labels_of(row[0])) for row in rows[1:]]
                texts = [text for text, _ in several]
                write_table(folder / "own" / f"plain-{part}.parquet", {"sentence": texts})
        joined = [("sentence", "labels"), *((text, "|".join(labels)) for text, labels in several)]
        write(folder / "own" / f"several-{part}.csv", "".join(map(csv_line, joined)))
        listed = [json.dumps({"sentence": text, "labels": labels}) for text, labels in several]
        write(folder / "own" / f"several-{part}.jsonl", "\n".join(listed) + "\n")
    squad = json.loads((folder / "squad/dev-v2.0.json").read_text(encoding="utf-8"))
    questions = [
        {"question": asked["question"], "context": paragraph["context"]}
        for article in squad["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"][:2]
    ]
    write(folder / "own/questions.jsonl", "\n".join(map(json.dumps, questions)) + "\n")
    choices = [
        {"context": asked["question"], "endings": asked["context"].split(". ")[:3]} for asked in questions[:8]
    ]
    write(folder / "own/choices.jsonl", "\n".join(map(json.dumps, choices)) + "\n")


def labels_of(text: str) -> list[str]:
    """Something that texts can have several of, or none."""
    found = {"short": len(text) < 60, "comma": "," in text, "negation": " not " in text or "n't" in text}
    return [label for label, has in found.items() if has]


def make_requests(folder: Path) -> None:
    """What servers are asked: path and body of a request a line; without a body it is a GET."""
    pair = {"text": "The cat sat.", "pair": "A cat was sitting."}
    requests: dict[str, list[tuple[str, Any]]] = {
        "masks": [
            ("/predict", {"inputs": ["The capital of France is [MASK].", "[MASK] and [MASK]"], "top_k": 3}),
            ("/embed", {"inputs": ["A text.", "Another, longer text."], "pooling": "cls", "normalize": True}),
            ("/", {"inputs": "A [MASK] of trees."}),
            ("/predict", {"inputs": "no mask"}),
        ],
        "pairs": [
            ("/predict", {"inputs": [pair, {"text": "It rained.", "pair": ""}], "top_k": 1}),
            ("/embed", {"inputs": "A text.", "truncate": True}),
            ("/", {"inputs": "The cat sat."}),
            ("/predict", {"inputs": [pair, {"txt": "x"}]}),
        ],
        "texts": [
            ("/predict", {"inputs": ["Anna lives in New York.", ""]}),
            ("/", {"inputs": "Anna lives in New York.", "parameters": {"aggregation_strategy": "first"}}),
            ("/nothing", {}),
        ],
    }
    for name, asked in requests.items():
        asked = [("/health", None), ("/info", None), *asked]
        write(folder / f"{name}.jsonl", "".join(json.dumps(request) + "\n" for request in asked))


def copy_lines(source: Path, target: Path, rows: int) -> None:
    """The first lines of a file, and one more for a header."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as lines:
        target.write_bytes(b"".join(line for _, line in zip(range(rows + 1), lines, strict=False)))


def csv_line(fields: Iterable[str]) -> str:
    """A row of a csv file, with every field in quotation marks."""
    quoted = (field.replace('"', '""') for field in fields)
    return ",".join(f'"{field}"' for field in quoted) + "\n"


def write_table(path: Path, columns: dict[str, list[str]]) -> None:
    """Write a Parquet file."""
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write(path: Path, text: str) -> None:
    """Write a file in UTF-8, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


# ---------------------------------------------------------------------------------------------------------
# Running

# The process that runs the commands of a stage: to import torch and numba for each of them would take longer
# than most commands do. It reads a line for each (words, and files for stdin, stdout and stderr), and answers
# with the exit status.
RUNNER = """
import json, os, sys, traceback
from MODULE import FUNCTION
asked, answers = open(os.dup(0), encoding="utf-8"), open(os.dup(1), "w")
for line in asked:
    words, *files = json.loads(line)
    for number, name in enumerate(files):
        with open(name, "wb" if number else "rb") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["bertie", *words]
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
    try:
        FUNCTION()
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    print(status, file=answers, flush=True)
"""


@dataclass
class Side:
    """A checkout, and the folder that its commands write to."""

    name: str
    checkout: Path
    folder: Path
    inputs: str  # their hash
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        project = tomllib.loads((self.checkout / "pyproject.toml").read_text(encoding="utf-8"))
        module, function = project["project"]["scripts"]["bertie"].split(":")
        self.program = [sys.executable, "-c", f"from {module} import {function}; {function}()"]
        self.runner = [sys.executable, "-c", RUNNER.replace("MODULE", module).replace("FUNCTION", function)]
        caches = self.folder.parent / "caches"
        self.environment = os.environ | {
            "PYTHONPATH": str(self.checkout / "src"),
            "PYTHONPYCACHEPREFIX": str(caches / "python"),  # nothing is written to a checkout
            "BERTIE_CACHE": str(caches / self.name),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "100",
            "TERM": "dumb",
            "NO_COLOR": "1",
        }
        self.sources = digest_of_folder(self.checkout / "src")
        text = "\n".join(file.read_text(encoding="utf-8") for file in self.checkout.glob("src/**/*.py"))
        self.renamed = {old: new for old, new in RENAMED.items() if re.search(rf"\b{new}\b", text)}

    def check(self) -> None:
        """Make sure that this checkout is what is run, not an installed one."""
        where = [sys.executable, "-c", "import bertie; print(bertie.__file__)"]
        found = subprocess.run(where, env=self.environment, capture_output=True, text=True, check=True)
        if not Path(found.stdout.strip()).resolve().is_relative_to(self.checkout / "src"):
            sys.exit(f"{self.checkout}: another bertie is imported: {found.stdout.strip()}")

    def translate(self, text: str) -> str:
        """`text` with the names that settings have in this checkout."""
        for old, new in self.renamed.items():
            text = re.sub(rf"\b{old}\b", new, text)
        return text

    def run(self, stage: str) -> None:
        """Run a stage, unless it has been run with the same commands, inputs and sources."""
        stamp = self.folder / "stamps" / stage
        needed = "".join(STAGES[name].commands for name in with_needed([stage]))
        named = digest(self.inputs, self.sources, needed, *RECIPES.values(), RUNNER)
        if stamp.exists() and stamp.read_text() == named:
            return
        stamp.unlink(missing_ok=True)
        for name, recipe in RECIPES.items():
            write(self.folder / "recipes" / name, self.translate(recipe))
        shutil.rmtree(self.folder / stage, ignore_errors=True)
        (self.folder / stage).mkdir()
        started, known = time.monotonic(), len(self.problems)
        statuses = {}
        lines = self.translate(STAGES[stage].commands).strip().splitlines()
        with subprocess.Popen(
            self.runner,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as runner:
            for number, line in enumerate(lines, 1):
                words = shlex.split(line)
                expected_to_fail = words[0] == "fails"
                if expected_to_fail:
                    words = words[1:]
                output = self.folder / stage / f"{number:02}-{words[0].strip('-')}"
                try:
                    status = self._execute(words, output, runner)
                except (OSError, http.client.HTTPException) as error:  # what an earlier failure leads to
                    print(f"{self.name}: {stage}/{output.name}: {error}", flush=True)
                    status = -1
                statuses[output.name] = status
                if (status != 0) != expected_to_fail:
                    self.problems.append(f"{self.name}: {stage}/{output.name}: status {status}")
                    print(self.problems[-1], flush=True)
        write(self.folder / stage / "statuses.json", json.dumps(statuses, indent=1))
        print(f"{self.name}: {stage}: {time.monotonic() - started:.0f} s", flush=True)
        if len(self.problems) == known:
            write(stamp, named)

    def _execute(self, words: list[str], output: Path, runner: "subprocess.Popen[str]") -> int:
        """Do what a line says; give the exit status. What is printed goes to files that `output` begins."""
        match words:
            case ["copy", source, target]:
                shutil.copytree(self.folder / source, self.folder / target)
            case ["remove", *paths]:
                for path in paths:
                    shutil.rmtree(self.folder / path)
            case ["replace", name, old, new]:
                file = self.folder / name
                write(file, file.read_text(encoding="utf-8").replace(old, new))
            case ["serve", model, "<", asked]:
                return self._serve(model, self.folder / asked, output.with_suffix(".json"))
            case [*words, "<", name]:
                return run_command(runner, words, name, output)
            case _:
                return run_command(runner, words, os.devnull, output)
        return 0

    def _serve(self, model: str, asked: Path, output: Path) -> int:
        """Serve a model on a free port, write what it answers, and stop it."""
        command = [*self.program, "serve", model, "--port", "0"]
        answers = []
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        ) as server:
            assert server.stderr is not None
            address = None
            while address is None and (line := server.stderr.readline()):
                address = re.search(r"http://([\d.:]+)", line)
            try:
                if address is not None:
                    for path, body in map(json.loads, asked.read_text(encoding="utf-8").splitlines()):
                        answers.append([path, *request(address[1], path, body)])
            finally:
                server.send_signal(signal.SIGTERM)
                server.stderr.read()
        write(output, json.dumps(answers, indent=1))
        return server.returncode


def run_command(runner: "subprocess.Popen[str]", words: list[str], given: str, output: Path) -> int:
    """Have a command run with the file `given` as standard input."""
    kind = "help" if "--help" in words else "plan" if "--dry-run" in words else "printed"
    printed = output.with_suffix(".json" if "--json" in words else f".{kind}")
    assert runner.stdin is not None
    assert runner.stdout is not None
    try:
        runner.stdin.write(
            json.dumps([words, given, str(printed), str(output.with_suffix(".stderr"))]) + "\n"
        )
        runner.stdin.flush()
        return int(runner.stdout.readline())
    except (BrokenPipeError, ValueError):  # the process has died, at this command or before
        return -1


def request(address: str, path: str, body: Any) -> tuple[int, Any]:
    """Status and JSON of an answer; of an error its type only, for its text may have other words."""
    connection = http.client.HTTPConnection(address, timeout=60)
    if body is None:
        connection.request("GET", path)
    else:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = json.loads(answer.read() or b"null")
    connection.close()
    if isinstance(content, dict) and "error" in content:
        del content["error"]
    return answer.status, content


def with_needed(stages: Iterable[str]) -> list[str]:
    """Stages with all that they need, in the order in which they run."""
    wanted: set[str] = set()
    waiting = list(stages)
    while waiting:
        stage = waiting.pop()
        wanted.add(stage)
        waiting.extend(STAGES[stage].needs)
    return [stage for stage in STAGES if stage in wanted]


def digest(*texts: str) -> str:
    """A hash of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def digest_of_folder(folder: Path) -> str:
    """A hash of all files, and their names."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    hashes = (hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    return digest(*(f"{file.relative_to(folder)} {found}" for file, found in zip(files, hashes, strict=True)))


# ---------------------------------------------------------------------------------------------------------
# Comparing. Each function gives "" for files that are equal by its rule, or what differs first.


def compare_bytes(old: Path, new: Path) -> str:
    one, other = old.read_bytes(), new.read_bytes()
    if one == other:
        return ""
    pairs = zip(one, other, strict=False)
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    return f"{len(one):,} and {len(other):,} bytes, first different at {place:,}"


def compare_tensors(old: Path, new: Path) -> str:
    one, other = (dict(deserialize(path.read_bytes())) for path in (old, new))
    if one.keys() != other.keys():
        return f"names: {', '.join(sorted(one.keys() ^ other.keys())[:4])}"
    return next((f"tensor {name}" for name in sorted(one) if one[name] != other[name]), "")


def compare_parquet(old: Path, new: Path) -> str:
    one, other = (pyarrow.parquet.read_table(path) for path in (old, new))
    if one.schema != other.schema:
        return "columns or their types"
    return "" if one.equals(other) else "values"


def compare_settings(old: Path, new: Path) -> str:
    return first_difference(*(new_names(read_settings(path)) for path in (old, new)))


def compare_rows(old: Path, new: Path) -> str:
    return first_difference(*(without(TIMINGS | WORDING, read_rows(path)) for path in (old, new)))


def compare_options(old: Path, new: Path) -> str:
    return first_difference(*(options_of(path.read_text(encoding="utf-8")) for path in (old, new)))


def compare_figures(old: Path, new: Path) -> str:
    texts = (path.read_text(encoding="utf-8") for path in (old, new))
    return first_difference(*(re.findall(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", text) for text in texts))


def compare_text(old: Path, new: Path) -> str:
    """Return stderr without progress lines and numbers, most of which are timings."""
    one, other = (path.read_text(encoding="utf-8", errors="replace") for path in (old, new))
    for name, renamed in RENAMED.items():
        one, other = one.replace(name, renamed), other.replace(name, renamed)
    if old.suffix in (".stderr", ".plan"):
        one, other = (re.sub(r"^.*/s\b.*\n", "", text, flags=re.MULTILINE) for text in (one, other))
        one, other = (re.sub(r"[\d.,:]+( [kMGT])?", "0", text) for text in (one, other))
    if old.suffix == ".html":
        one, other = (re.sub(r"[\d,]+ (minutes|seconds|tokens a second)", "", text) for text in (one, other))
    return first_difference(one.splitlines(), other.splitlines())


def read_settings(path: Path) -> Any:
    """The values of a TOML or JSON file."""
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)


def read_rows(path: Path) -> Any:
    """The value of a JSON file, or of each line of one."""
    text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def new_names(value: Any) -> Any:
    """The same settings under their new names."""
    if isinstance(value, dict):
        return {RENAMED.get(key, key): new_names(entry) for key, entry in value.items()}
    return [*map(new_names, value)] if isinstance(value, list) else value


def without(keys: set[str], value: Any) -> Any:
    """A JSON value without some keys, at any depth."""
    if isinstance(value, dict):
        return {key: without(keys, entry) for key, entry in value.items() if key not in keys}
    return [without(keys, entry) for entry in value] if isinstance(value, list) else value


def options_of(text: str) -> list[str]:
    """What a help text says that commands depend on."""
    options = re.findall(r"^ {2}(--?\S+(?: \S+)*)", text, re.MULTILINE)
    usage = re.findall(r"^Usage: (.*)", text)
    verbs = re.findall(r"^ {2}([a-z]+) ", text.partition("Commands:")[2], re.MULTILINE)
    defaults = re.findall(r"\[(?:required|default: [^\]]*)\]", " ".join(text.split()))
    return [*usage, *options, *verbs, *defaults]


def first_difference(one: Any, other: Any, place: str = "") -> str:
    """Where two values differ first, and how; "" where they are equal."""
    if one == other:
        return ""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next(
            found for key in one if (found := first_difference(one[key], other[key], f"{place}/{key}"))
        )
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next(found for n, (a, b) in pairs if (found := first_difference(a, b, f"{place}/{n}")))
    if isinstance(one, dict) and isinstance(other, dict):
        return f"{place}: keys {', '.join(map(str, sorted(one.keys() ^ other.keys())[:4]))}"
    return f"{place}: {shorten(one)} -> {shorten(other)}"


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 70 else f"{text[:67]}..."


class Kind(NamedTuple):
    """Files that are compared alike: those whose path has `pattern` in it, and which no kind before has."""

    name: str
    pattern: str
    rule: str
    compare: Callable[[Path, Path], str]
    must_be_equal: bool = True


KINDS = (
    Kind("weights and moments", r"\.safetensors$", "tensors", compare_tensors),
    Kind("shards", r"\.bin$", "bytes", compare_bytes),
    Kind("vocabularies, tokenizers", r"/(vocab\.txt|tokenizer\w*\.json)$", "bytes", compare_bytes),
    Kind("manifests of corpora", r"/manifest\.json$", "settings", compare_settings),
    Kind("settings", r"/settings\.toml$", "settings", compare_settings),
    Kind("metrics", r"/metrics\.jsonl$", "rows", compare_rows),
    Kind("states of checkpoints", r"/state\.json$", "rows", compare_rows),
    Kind("scores, results", r"/(scores|result)\.json$", "bytes", compare_bytes),
    Kind("predictions of runs", r"/(predictions|submission)/", "bytes", compare_bytes),
    Kind("model configurations", r"/\w*config\.json$|/modules\.json$", "bytes", compare_bytes),
    Kind("TensorFlow checkpoints", r"\.index$|\.data-|/checkpoint$", "bytes", compare_bytes),
    Kind("ONNX graphs", r"\.onnx$", "bytes", compare_bytes),
    Kind("feature tables", r"\.parquet$", "table", compare_parquet),
    Kind("answers of inspect", r"-inspect\.json$", "rows", compare_rows),
    Kind("printed JSON", r"/\d\d-\w+\.json$", "bytes", compare_bytes),
    Kind("exit statuses", r"/statuses\.json$", "bytes", compare_bytes),
    Kind("options", r"\.help$", "options", compare_options),
    Kind("printed answers, scores", r"-(predict|tokenize|evaluate)\.printed$", "bytes", compare_bytes),
    Kind("printed text, tables", r"\.printed$|^reproduce/out/[^/]*\.md$", "figures", compare_figures),
    Kind("inputs left out", r"/skipped\.txt$", "text", compare_text, must_be_equal=False),
    Kind("plans", r"\.plan$", "text", compare_text, must_be_equal=False),
    Kind("model cards", r"/README\.md$", "text", compare_text, must_be_equal=False),
    Kind("reports, pictures", r"\.(html|svg)$", "text", compare_text, must_be_equal=False),
    Kind("messages on stderr", r"\.stderr$", "text", compare_text, must_be_equal=False),
    Kind("all other files", r"", "bytes", compare_bytes),
)


@dataclass
class Count:
    """What was found in the files of a kind."""

    files: int = 0
    size: int = 0
    identical: int = 0
    equal: int = 0
    differing: list[str] = field(default_factory=list)


def files_of(folder: Path, stages: Iterable[str]) -> dict[str, Path]:
    """Every file that stages have written, by its path.

    `reproduce` names the folders of its runs by a hash of their settings, in which the names of settings are
    too. In the path such a hash is replaced by one of the settings under their new names.
    """
    found = {}
    for stage in stages:
        names = {
            file.parent: digest(json.dumps(new_names(read_settings(file)), sort_keys=True))[:12]
            for file in folder.glob(f"{stage}/out/*/*/settings.toml")
        }
        for file in sorted(path for path in (folder / stage).rglob("*") if path.is_file()):
            path = str(file.relative_to(folder))
            for run, name in names.items():
                if run in file.parents:
                    path = path.replace(run.name, re.sub(r"[0-9a-f]{12}$", name, run.name))
            if not file.name.endswith(".lock"):
                found[path] = file
    return found


def compare(old: Path, new: Path, stages: list[str]) -> dict[str, Count]:
    """Compare all files of stages, by kind."""
    ones, others = files_of(old, stages), files_of(new, stages)
    counts = {kind.name: Count() for kind in KINDS}
    for path in sorted(ones.keys() | others.keys()):
        kind = next(kind for kind in KINDS if re.search(kind.pattern, path))
        count = counts[kind.name]
        count.files += 1
        if path not in ones or path not in others:
            count.differing.append(f"{path}: only in {'new' if path in others else 'old'}")
            continue
        one, other = ones[path], others[path]
        count.size += one.stat().st_size
        if one.read_bytes() == other.read_bytes():
            count.identical += 1
        elif difference := kind.compare(one, other):
            count.differing.append(f"{path}: {difference}")
        else:
            count.equal += 1
    return counts


def report(counts: dict[str, Count]) -> bool:
    """Print a row for each kind, then what differs; say whether all that has to be is equal."""
    passed = True
    print(f"\n{'':26} {'compared by':12} {'files':>6} {'bytes':>12} {'identical':>10} {'equal':>6}  result")
    for kind in KINDS:
        count = counts[kind.name]
        if not count.files:
            continue
        result = "equal"
        if count.differing:
            passed = passed and not kind.must_be_equal
            result = f"{len(count.differing)} differ" if kind.must_be_equal else "text only: differs"
        numbers = f"{count.files:6} {count.size:12,} {count.identical:10} {count.equal:6}"
        print(f"{kind.name:26} {kind.rule:12} {numbers}  {result}")
    for kind in KINDS:
        if differing := counts[kind.name].differing:
            print(f"\n{kind.name}:")
            print("\n".join(f"    {line}" for line in differing[:20]))
            if len(differing) > 20:
                print(f"    ... and {len(differing) - 20} more")
    return passed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="a checkout of bertie")
    parser.add_argument("new", type=Path, help="another one, or the same")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the public data sets")
    parser.add_argument("--work", type=Path, required=True, help="a folder for inputs and results")
    parser.add_argument("--only", nargs="+", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    given = parser.parse_args()
    work = given.work.resolve()
    make_inputs(given.data, work / "inputs")
    inputs = digest_of_folder(work / "inputs")
    stages = [stage for stage in STAGES if not given.only or stage in given.only]
    sides = [
        Side("old", given.old.resolve(), work / "old", inputs),
        Side("new", given.new.resolve(), work / "new", inputs),
    ]
    for side in sides:
        side.check()
        started = time.monotonic()
        for stage in with_needed(stages):
            side.run(stage)
        print(f"{side.name}: {time.monotonic() - started:.0f} s", flush=True)
    passed = report(compare(work / "old", work / "new", stages))
    problems = [problem for side in sides for problem in side.problems]
    if problems:
        print("\ncommands that ended otherwise than expected:")
        print("\n".join(f"    {problem}" for problem in problems))
    sys.exit(0 if passed and not problems else 1)


if __name__ == "__main__":
    main()
