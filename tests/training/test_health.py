"""Each known failure is reported, and healthy corpora and runs are not."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.runs import read_rows

from bertie.corpus.examples import ExampleSettings
from bertie.corpus.preparation import PreparationOptions, prepare
from bertie.corpus.prepared import Corpus
from bertie.text.tokenizer import Tokenizer
from bertie.training.health import Finding, RunHealth, check_corpus
from bertie.training.planning import plan_pretraining
from bertie.training.pretraining import pretrain

# A sentence that a careless copy may leave in every document.
NOTICE = "The letter is under the table near the window inside the house."

# Recorded runs: rounded (step, loss, gradient_norm) of some training rows, (step, masked_lm_loss) of the
# evaluations, and the loss of the unigram baseline.
# A 4 × 256 model on Wikipedia, batch size 16, 500 steps of warm-up; 2026-11-21.
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
# `bertie demo` with the paper's Adam: a 2 × 128 model on Python's documentation, 100 steps of warm-up.
STUCK = ([(20, 8.49, 1.37), (1430, 6.93, 4.4)], [(500, 6.39), (1000, 6.35), (1430, 6.33)], 6.40)
# Invented, after fine-tuning runs that learn their training set completely: losses near 0 vary by any factor.
FINE_TUNING = [
    *((1, 2.55, 14.25), (2, 1.8, 3.8), (3, 0.4, 2.2)),
    *((step, 0.02, 0.02) for step in range(4, 14)),
    *((14, 0.3, 4.8), (15, 0.4, 5.0)),
]
# Losses of a regression are as large as its squared labels.
REGRESSION = [(1, 990.0, 14.0), (2, 900.0, 13.0), (3, 930.0, 12.0), (4, 940.0, 12.0)]


def train_row(step: int, loss: float, norm: float) -> dict:
    return {"kind": "train", "step": step, "loss": loss, "gradient_norm": norm, "learning_rate": 1e-3}


def evaluation_row(step: int, loss: float, unigram_loss: float) -> dict:
    return {"kind": "evaluation", "step": step, "masked_lm_loss": loss, "unigram_loss": unigram_loss}


def make_rows(training: list, evaluations: list, unigram_loss: float) -> list[dict]:
    rows = [train_row(*values) for values in training]
    rows += [evaluation_row(*values, unigram_loss) for values in evaluations]
    return sorted(rows, key=lambda row: row["step"])


def find_failures(rows: list[dict], warmup_steps: int = 100, total_steps: int = 2000) -> list[Finding]:
    health = RunHealth([], warmup_steps, total_steps)
    return [finding for row in rows for finding in health.check(row)]


def check(corpus: Corpus, **settings) -> list[Finding]:
    vocabulary = Tokenizer.load(corpus.tokenizer_directory).vocabulary
    return check_corpus(corpus, [ExampleSettings(**settings)], vocabulary, seed=0)


def names(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings]


@pytest.fixture
def prepare_documents(corpus_path, tmp_path) -> Callable[[list[str]], Corpus]:
    """A function that prepares a corpus of texts with the tiny tokenizer."""

    def prepare_corpus(texts: list[str]) -> Corpus:
        file = tmp_path / "texts.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        prepare([file], corpus_path / "tokenizer", tmp_path / "corpus", 1, PreparationOptions(held_out=0.1))
        return Corpus.open(tmp_path / "corpus")

    return prepare_corpus


def make_sentences(count: int) -> list[str]:
    """Make sentences that all differ."""
    rng = random.Random(1)
    nouns = ["cat", "dog", "house", "river", "mountain", "garden"]
    return [f"The {rng.choice(nouns)} is near the {rng.choice(nouns)} {n} of it." for n in range(count)]


def make_documents(count: int, length: int = 10) -> list[list[str]]:
    """Make documents of `length` sentences that all differ."""
    sentences = make_sentences(count * length)
    return [sentences[start : start + length] for start in range(0, len(sentences), length)]


def test_documents_of_one_sentence_unbalance_the_labels(prepare_documents):
    corpus = prepare_documents(make_sentences(300))
    (finding,) = check(corpus, max_seq_length=64)
    assert finding.check == "label_balance"
    assert "100% of the pairs" in finding.message
    assert "1.0 sentences of" in finding.message
    assert 'phases.0.pairs = "none"' in finding.message
    assert check(corpus, max_seq_length=64, pairs="none") == []


@pytest.mark.parametrize("length", [10, 200])
def test_sentence_in_every_document_is_reported(prepare_documents, length):
    """The sentence may be a small part of the text, as in documents of 200 sentences."""
    texts = make_documents(40, length)
    corpus = prepare_documents([" ".join([NOTICE, *text]) for text in texts])
    (finding,) = check(corpus, max_seq_length=64)
    documents_left = corpus.manifest.train.documents
    assert finding.check == "duplicated_lines"
    assert f'{documents_left} documents have "the letter is under the table near' in finding.message
    assert "\n" not in finding.message


def test_sentences_that_pairs_of_documents_share_are_reported(prepare_documents):
    texts = make_documents(60)
    copies = [
        " ".join(text[:5] + other[5:]) for text, other in zip(texts, texts[1:] + texts[:1], strict=True)
    ]
    (finding,) = check(prepare_documents([*(" ".join(text) for text in texts), *copies]), max_seq_length=64)
    assert finding.check == "duplicated_lines"
    percentage = float(re.search(r"([\d.]+)% of the text", finding.message)[1])
    assert 40 < percentage < 50  # half of all sentences are copies, and some of them are held out


@pytest.mark.parametrize(("count", "with_notice"), [(8, 8), (40, 14)])
def test_sentence_in_some_long_documents_is_not_reported(prepare_documents, count, with_notice):
    texts = [
        " ".join([NOTICE] * (n < with_notice) + text) for n, text in enumerate(make_documents(count, 200))
    ]
    assert check(prepare_documents(texts), max_seq_length=64) == []


def test_refrain_within_a_document_is_not_reported(prepare_documents):
    assert (
        check(prepare_documents([" ".join([*text, text[0], text[0]]) for text in make_documents(40)])) == []
    )


def test_tiny_corpus_is_healthy(corpus_path):
    assert check(Corpus.open(corpus_path), max_seq_length=32) == []


@pytest.fixture(scope="module", params=["wikipedia-small", "gutenberg"])
def real_corpus(request, shared_data, tmp_path_factory) -> Corpus:
    """A corpus of eight real files."""
    files = sorted((shared_data / "text" / request.param).iterdir())[:8]
    path = tmp_path_factory.mktemp("real") / "corpus"
    prepare(files, shared_data / "vocab" / "uncased_en", path, 1, PreparationOptions(held_out=0.1))
    return Corpus.open(path)


@pytest.mark.parametrize("max_seq_length", [32, 128, 512])
def test_real_text_is_healthy(real_corpus, max_seq_length):
    assert check(real_corpus, max_seq_length=max_seq_length) == []


def test_swapped_pairs_need_two_sentences_in_a_sequence(real_corpus):
    assert check(real_corpus, max_seq_length=128, pairs="order") == []
    assert check(real_corpus, max_seq_length=128, pairs="near") == []
    assert names(check(real_corpus, max_seq_length=32, pairs="order")) == ["random_negatives"]
    labels, negatives = check(real_corpus, max_seq_length=16, pairs="order")
    assert (labels.check, negatives.check) == ("label_balance", "random_negatives")
    percentage = int(re.search(r"only (\d+)% of the negatives at length 16", negatives.message)[1])
    assert percentage < 25


def corpus_warnings(run: Path) -> list[dict]:
    return [row for row in read_rows(run) if row["kind"] == "warning" and row["step"] == 0]


def test_every_phase_is_checked_before_it_starts(corpus_path, tmp_path, tiny_settings):
    phases = [{"steps": 1, "max_seq_length": 32}, {"steps": 1, "max_seq_length": 8}]
    pretrain(tiny_settings(phases=phases), corpus_path, tmp_path / "run")
    (warning,) = corpus_warnings(tmp_path / "run")
    assert warning["check"] == "label_balance"
    assert "at length 8" in warning["message"]
    assert warning["message"].endswith('or set phases.1.pairs = "none"')
    phases[1]["pairs"] = "none"  # as advised
    pretrain(tiny_settings(phases=phases), corpus_path, tmp_path / "advised")
    assert corpus_warnings(tmp_path / "advised") == []


def test_pairs_without_a_loss_are_not_checked(corpus_path, tmp_path, tiny_settings):
    phases = [{"steps": 1, "max_seq_length": 8}]
    settings = tiny_settings(phases=phases, warmup_steps=1, next_sentence_loss=False)
    pretrain(settings, corpus_path, tmp_path / "run")
    assert corpus_warnings(tmp_path / "run") == []


@pytest.mark.parametrize(("warmup_steps", "expected"), [(4, []), (5, ["warmup"])])
def test_warmup_longer_than_the_run_is_reported(
    corpus_path, tmp_path, tiny_settings, capsys, warmup_steps, expected
):
    settings = tiny_settings(phases=[{"steps": 4, "max_seq_length": 32}], warmup_steps=warmup_steps)
    plan_pretraining(settings, corpus_path, tmp_path / "run")
    planned = [line for line in capsys.readouterr().err.splitlines() if "the warm-up" in line]
    pretrain(settings, corpus_path, tmp_path / "run")
    warnings = corpus_warnings(tmp_path / "run")
    assert [warning["check"] for warning in warnings] == expected
    lines = [line for line in capsys.readouterr().err.splitlines() if "the warm-up" in line]
    assert lines == planned == [f"warning: {warning['message']}" for warning in warnings]
    for line in lines:
        assert "has 5 steps, more than the run's 4, so the learning rate only rises to 60% of" in line


def pretrain_and_check(corpus_path: Path, out: Path, settings) -> list[Finding]:
    """Return the failures that the metrics of a whole run show."""
    pretrain(settings, corpus_path, out)
    return find_failures(read_rows(out), settings.warmup_steps, settings.total_steps)


EXPLODING = {"optimizer": {"learning_rate": 10.0, "max_gradient_norm": 1e9}}


@pytest.mark.parametrize(("changes", "expected"), [(EXPLODING, ["exploding_gradient"]), ({}, [])])
def test_exploding_gradient_is_reported(corpus_path, tmp_path, tiny_settings, changes, expected):
    schedule = {"phases": [{"steps": 30, "max_seq_length": 32}], "warmup_steps": 10}
    schedule |= {"evaluate_every": 0, "save_every": 0}
    findings = pretrain_and_check(corpus_path, tmp_path / "run", tiny_settings(**schedule, **changes))
    assert names(findings) == expected


def test_run_that_learns_nothing_is_stuck(corpus_path, tmp_path, tiny_settings, monkeypatch):
    monkeypatch.setattr("bertie.training.health.PLATEAU_STEPS", 50)
    settings = tiny_settings(
        batch_size=1,
        model={"num_hidden_layers": 1},
        phases=[{"steps": 70, "max_seq_length": 16}],
        log_every=70,
        evaluate_every=60,
        save_every=0,
        optimizer={"learning_rate": 1e-7},
    )
    findings = pretrain_and_check(corpus_path, tmp_path / "run", settings)
    assert names(findings) == ["unigram_plateau"]
    assert "after 60 of 70 steps" in findings[0].message


def test_recorded_runs_are_healthy_or_stuck():
    assert find_failures(make_rows(*WIKIPEDIA), 500, 12_600) == []
    for rows in (FINE_TUNING, REGRESSION):
        assert find_failures([train_row(*row) for row in rows]) == []
    (finding,) = find_failures(make_rows(*STUCK))
    assert finding.check == "unigram_plateau"
    assert "after 1,000 of 2,000 steps the held-out loss is 6.35" in finding.message
    assert "the unigram baseline has 6.40" in finding.message


def test_no_run_is_stuck_right_after_warmup():
    rows = [evaluation_row(step, 7.2, 7.05) for step in (500, 1000, 1499)]
    assert find_failures(rows, warmup_steps=1000) == []
    assert names(find_failures([*rows, evaluation_row(1500, 7.2, 7.05)], warmup_steps=1000)) == [
        "unigram_plateau"
    ]


def test_loss_that_a_phase_adds_is_no_explosion():
    """A phase with pairs adds ln 2 to the loss; a network that has learnt little more rises by 1.1."""
    rows = [train_row(step, 0.4, 2.0) | {"masked_lm_loss": 0.4} for step in range(5)]
    pairs = {"masked_lm_loss": 0.8, "next_sentence_loss": 0.75}
    rows += [train_row(step, 1.55, 2.0) | pairs for step in range(5, 10)]
    assert find_failures(rows) == []
    rows += [train_row(step, 3.5, 2.0) | pairs for step in range(10, 15)]
    assert names(find_failures(rows)) == ["exploding_gradient"]


def test_lasting_norm_rise_is_reported_but_a_spike_is_not():
    calm = [train_row(step, 6.5, 2.0) for step in range(10)]
    spike = [train_row(10, 6.6, 900.0), *(train_row(step, 6.5, 2.0) for step in range(11, 15))]
    assert find_failures(calm + spike) == []
    (finding,) = find_failures(calm + [train_row(step, 6.6, 900.0) for step in range(10, 15)])
    assert finding.check == "exploding_gradient"
    assert "at step 11 the gradient norm is 900, usually it is 2 " in finding.message


@given(st.data())
def test_resumed_run_reports_what_an_undisturbed_one_does(data):
    values = st.tuples(st.floats(0, 1e4), st.floats(0, 1e6), st.booleans())
    rows = [
        train_row(step, loss, norm) if is_train else evaluation_row(step, loss, 7.0)
        for step, (loss, norm, is_train) in enumerate(data.draw(st.lists(values, max_size=20)), 600)
    ]
    cut = data.draw(st.integers(0, len(rows)))
    before = find_failures(rows[:cut])
    warnings = [{"kind": "warning", "step": 1, **finding._asdict()} for finding in before]
    resumed = RunHealth([*rows[:cut], *warnings], 100, 2000)
    undisturbed = find_failures(rows)
    assert before + [finding for row in rows[cut:] for finding in resumed.check(row)] == undisturbed
    assert len(set(names(undisturbed))) == len(undisturbed)
