"""Each known failure injected for real is named, and healthy corpora and runs are met with silence."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.corpus.examples import ExampleSettings
from bertie.corpus.preparation import prepare
from bertie.corpus.shards import Corpus
from bertie.text.tokenizer import Tokenizer
from bertie.training.health import Finding, RunHealth, check_corpus
from bertie.training.pretraining import pretrain

NOTICE = "The letter is under the table near the window inside the house."

# Real runs, rounded: (step, loss, gradient_norm) of every log row or every few, (step, masked_lm_loss).
# A network of 4 × 256 on Wikipedia, batch 16, warm-up 500; 2026-11-21.
WIKIPEDIA = (
    [
        (50, 9.53, 2.08),
        (100, 8.53, 1.7),
        (200, 7.84, 3.71),
        (500, 7.53, 2.24),
        (550, 7.42, 1.39),
        (600, 7.43, 5.02),
    ],
    [(500, 6.80), (1000, 6.61), (1500, 6.60), (2000, 6.56), (2500, 6.55)],
    7.05,
)
# `bertie demo` with the paper's Adam: 2 × 128 on Python's documentation, warm-up 100.
STUCK = ([(20, 8.49, 1.37), (1430, 6.93, 4.4)], [(500, 6.39), (1000, 6.35), (1430, 6.33)], 6.40)
# Made up after fine-tuning runs that end with nothing left to learn: their losses near 0 vary by any factor.
FINE_TUNING = [
    *((1, 2.55, 14.25), (2, 1.8, 3.8), (3, 0.4, 2.2)),
    *((step, 0.02, 0.02) for step in range(4, 14)),
    *((14, 0.3, 4.8), (15, 0.4, 5.0)),
]
# A regression's are as large as its labels squared.
REGRESSION = [(1, 990.0, 14.0), (2, 900.0, 13.0), (3, 930.0, 12.0), (4, 940.0, 12.0)]


def train_row(step: int, loss: float, norm: float) -> dict:
    return {"kind": "train", "step": step, "loss": loss, "gradient_norm": norm, "learning_rate": 1e-3}


def evaluation_row(step: int, loss: float, unigram_loss: float) -> dict:
    return {"kind": "evaluation", "step": step, "masked_lm_loss": loss, "unigram_loss": unigram_loss}


def rows_of(training: list, evaluations: list, unigram_loss: float) -> list[dict]:
    rows = [train_row(*figures) for figures in training]
    rows += [evaluation_row(*figures, unigram_loss) for figures in evaluations]
    return sorted(rows, key=lambda row: row["step"])


def watch(rows: list[dict], warmup_steps: int = 100, total_steps: int = 2000) -> list[Finding]:
    health = RunHealth([], warmup_steps, total_steps)
    return [finding for row in rows for finding in health.check(row)]


def examine(corpus: Corpus, **settings) -> list[Finding]:
    vocabulary = Tokenizer.load(corpus.tokenizer_directory).vocabulary
    return check_corpus(corpus, ExampleSettings(**settings), vocabulary, seed=0)


def checks(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings]


@pytest.fixture
def prepared(corpus_path, tmp_path) -> Callable[[list[str]], Corpus]:
    """A function: a corpus of these texts, with the tiny corpus's tokenizer."""

    def prepare_texts(texts: list[str]) -> Corpus:
        file = tmp_path / "texts.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        prepare([file], corpus_path / "tokenizer", tmp_path / "corpus", workers=1, held_out=0.1)
        return Corpus.open(tmp_path / "corpus")

    return prepare_texts


def sentences(count: int) -> list[str]:
    """Sentences that are no other's."""
    chance = random.Random(1)
    things = ["cat", "dog", "house", "river", "mountain", "garden"]
    return [
        f"The {chance.choice(things)} is near the {chance.choice(things)} {n} of it." for n in range(count)
    ]


def documents(count: int, length: int = 10) -> list[list[str]]:
    flat = sentences(count * length)
    return [flat[first : first + length] for first in range(0, len(flat), length)]


def test_documents_of_one_sentence_put_the_labels_off_balance(prepared):
    corpus = prepared(sentences(300))
    (finding,) = examine(corpus, max_seq_length=64)
    assert finding.check == "label_balance"
    assert "100% of the pairs" in finding.message
    assert "1.0 sentences of" in finding.message
    assert examine(corpus, max_seq_length=64, pairs="none") == []


@pytest.mark.parametrize("length", [10, 200])
def test_a_sentence_that_every_document_has_is_duplicated(prepared, length):
    """In documents of 200 sentences it is a hundredth of the text, and still a notice forgotten there."""
    texts = documents(40, length)
    corpus = prepared([" ".join([NOTICE, *text]) for text in texts])
    (finding,) = examine(corpus, max_seq_length=64)
    documents_left = corpus.manifest.train.documents
    assert finding.check == "duplicated_lines"
    assert f'{documents_left} documents have "the letter is under the table near' in finding.message
    assert "\n" not in finding.message


def test_many_sentences_of_a_few_documents_each_are_duplicated(prepared):
    texts = documents(60)
    copies = [
        " ".join(text[:5] + other[5:]) for text, other in zip(texts, texts[1:] + texts[:1], strict=True)
    ]
    (finding,) = examine(prepared([*(" ".join(text) for text in texts), *copies]), max_seq_length=64)
    assert finding.check == "duplicated_lines"
    share = float(finding.message.split()[2].removesuffix("%"))
    assert 40 < share < 50  # half of all sentences come twice, less what is held out


@pytest.mark.parametrize(("count", "with_notice"), [(8, 8), (40, 14)])
def test_a_sentence_that_only_some_long_documents_have_is_no_fault(prepared, count, with_notice):
    texts = [" ".join([NOTICE] * (n < with_notice) + text) for n, text in enumerate(documents(count, 200))]
    assert examine(prepared(texts), max_seq_length=64) == []


def test_a_refrain_within_one_document_is_not_duplicated(prepared):
    assert examine(prepared([" ".join([*text, text[0], text[0]]) for text in documents(40)])) == []


def test_the_tiny_corpus_is_healthy(corpus_path):
    assert examine(Corpus.open(corpus_path), max_seq_length=32) == []


@pytest.fixture(scope="module", params=["wikipedia-small", "gutenberg"])
def real_corpus(request, shared_data, tmp_path_factory) -> Corpus:
    """Some real files of a kind."""
    files = sorted((shared_data / "text" / request.param).iterdir())[:8]
    path = tmp_path_factory.mktemp("real") / "corpus"
    prepare(files, shared_data / "vocab" / "uncased_en", path, workers=1, held_out=0.1)
    return Corpus.open(path)


@pytest.mark.parametrize("max_seq_length", [32, 128, 512])
def test_real_text_is_healthy(real_corpus, max_seq_length):
    assert examine(real_corpus, max_seq_length=max_seq_length) == []


def run(corpus_path: Path, out: Path, settings) -> tuple[list[dict], list[Finding]]:
    """The rows of a run without its warnings, and what is found in them."""
    pretrain(settings, corpus_path, out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] != "warning"]
    return rows, watch(rows, settings.warmup_steps, settings.total_steps)


def test_a_run_is_judged_by_its_longest_sequences(corpus_path, tmp_path, tiny_settings):
    """A first phase may be too short for two sentences, on purpose."""
    phases = [{"steps": 1, "max_seq_length": length} for length in (8, 32)]
    for name, chosen, found in (("short first", phases, []), ("short", phases[:1], ["label_balance"])):
        pretrain(tiny_settings(phases=chosen), corpus_path, tmp_path / name)
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [row["check"] for row in rows if row["kind"] == "warning" and row["step"] == 0] == found


EXPLODING = {"optimizer": {"learning_rate": 10.0, "max_gradient_norm": 1e9}}


@pytest.mark.parametrize(("changes", "expected"), [(EXPLODING, ["exploding_gradient"]), ({}, [])])
def test_a_rate_that_explodes_is_found_and_a_healthy_one_is_not(
    corpus_path, tmp_path, tiny_settings, changes, expected
):
    schedule = {"phases": [{"steps": 60, "max_seq_length": 32}], "warmup_steps": 10, "save_every": 0}
    _, findings = run(corpus_path, tmp_path / "run", tiny_settings(**schedule, **changes))
    assert checks(findings) == expected


def test_a_run_that_learns_nothing_is_stuck(corpus_path, tmp_path, tiny_settings):
    settings = tiny_settings(
        batch_size=1,
        model={"num_hidden_layers": 1},
        phases=[{"steps": 520, "max_seq_length": 16}],
        log_every=520,
        evaluate_every=510,
        save_every=0,
        optimizer={"learning_rate": 1e-7},
    )
    _, findings = run(corpus_path, tmp_path / "run", settings)
    assert checks(findings) == ["unigram_plateau"]
    assert "after 510 of 520 steps" in findings[0].message


def test_recorded_runs():
    assert watch(rows_of(*WIKIPEDIA), 500, 12_600) == []
    for figures in (FINE_TUNING, REGRESSION):
        assert watch([train_row(*row) for row in figures]) == []
    (finding,) = watch(rows_of(*STUCK))
    assert finding.check == "unigram_plateau"
    assert "after 1,000 of 2,000 steps the held-out loss is 6.35" in finding.message
    assert "gives 6.40" in finding.message


def test_nothing_is_called_stuck_before_it_had_time_to_learn():
    rows = [evaluation_row(step, 7.2, 7.05) for step in (500, 1000, 1499)]
    assert watch(rows, warmup_steps=1000) == []
    assert checks(watch([*rows, evaluation_row(1500, 7.2, 7.05)], warmup_steps=1000)) == ["unigram_plateau"]


def test_a_norm_explodes_that_clipping_hides_from_the_loss_and_one_spike_does_not():
    calm = [train_row(step, 6.5, 2.0) for step in range(10)]
    spike = [train_row(10, 6.6, 900.0), *(train_row(step, 6.5, 2.0) for step in range(11, 15))]
    assert watch(calm + spike) == []
    (finding,) = watch(calm + [train_row(step, 6.6, 900.0) for step in range(10, 15)])
    assert finding.check == "exploding_gradient"
    assert "at step 11 the gradient norm is 900 where 2 was usual" in finding.message


@given(st.data())
def test_a_run_that_goes_on_finds_what_the_undisturbed_one_finds(data):
    figures = st.tuples(st.floats(0, 1e4), st.floats(0, 1e6), st.booleans())
    rows = [
        train_row(step, loss, norm) if trains else evaluation_row(step, loss, 7.0)
        for step, (loss, norm, trains) in enumerate(data.draw(st.lists(figures, max_size=20)), 600)
    ]
    cut = data.draw(st.integers(0, len(rows)))
    before = watch(rows[:cut])
    found = [{"kind": "warning", "step": 1, **finding._asdict()} for finding in before]
    resumed = RunHealth([*rows[:cut], *found], 100, 2000)
    undisturbed = watch(rows)
    assert before + [finding for row in rows[cut:] for finding in resumed.check(row)] == undisturbed
    assert len(set(checks(undisturbed))) == len(undisturbed)
