"""`bertie demo`: its text, its schedule, its report, and the commands that it proposes."""

import csv
import errno
import json
import math
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from tests.inference.small_models import save_small

import bertie
from bertie.base.errors import BertieError
from bertie.base.random import permutation
from bertie.base.settings import SETTINGS_FILE, resolve, write_settings
from bertie.commands import demo, documentation
from bertie.commands.demo import Collected
from bertie.commands.demo_report import Outcome, check, write_report
from bertie.commands.documentation import Passage, SourceFile, find_sources, join_wrapped_lines, read_files
from bertie.commands.main import main
from bertie.inference.results import MaskPrediction
from bertie.recipes import read_recipe
from bertie.reports.page import MaskedSentence
from bertie.training.pretraining_settings import PretrainingSettings

SOURCE = '''# Copyright notice
"""Say hello to the people of the world, which
is larger than most people think."""

def greet(name):
    """Greet a person."""
    # print(name)
    # Names are not checked here, because all of
    # them are welcome.
    if name:
        class Inner:
            """Document a class below a condition."""
    return "# not a comment"  # a remark beside code
'''


def sentence_of(package, masked, truth):
    """Return a chosen sentence with its word, as the package's documentation has it."""
    return masked.replace("[MASK]", truth.capitalize() if truth == "true" else truth)


# Text


def test_passages_are_docstrings_and_prose_comments_in_order(tmp_path):
    (tmp_path / "greeting.py").write_text(SOURCE)
    passages = read_files([SourceFile(tmp_path / "greeting.py", "greeting")])
    assert [(passage.text, passage.is_docstring) for passage in passages] == [
        ("Say hello to the people of the world, which\nis larger than most people think.", True),
        ("Greet a person.", True),
        (
            "print(name)\nNames are not checked here, because all of\nthem are welcome.",
            False,
        ),
        ("Document a class below a condition.", True),
    ]


@pytest.mark.parametrize("content", [b"def broken(:\n", b"\xff\xfe# not UTF-8", b"x = '\0'\n"])
def test_unparsable_sources_are_skipped(tmp_path, content):
    (tmp_path / "bad.py").write_bytes(content)
    assert read_files([SourceFile(tmp_path / "bad.py", "bad")]) == []


def test_find_sources_leaves_out_tests_and_names_modules(tmp_path):
    names = ("__init__.py", "core.py", "sub/__init__.py", "tests/a.py", "test_b.py", "conftest.py", "c-d.py")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.module for file in find_sources(tmp_path, ("pack",))] == [
        "pack",
        "pack.core",
        "pack.sub",
    ]


def test_join_wrapped_lines_keeps_paragraphs_lists_and_code():
    prose = "A long line that is wrapped near the right margin of\nthe page continues here.\n"
    code = "\n>>> a_call_with_a_long_name(of_arguments, that_is, too_long)\n>>> other()\n"
    items = "- an item of a list that is long enough to be wrapped\n- another one"
    assert join_wrapped_lines(prose + code + items) == prose.replace("\n", " ", 1) + code + items


def test_chosen_sentences_are_in_their_packages_and_masked_once():
    root = Path(sysconfig.get_path("stdlib"))
    for package, masked, truth in demo.CHOSEN:
        single = [root / f"{package}.py"] * (root / f"{package}.py").exists()
        files = [SourceFile(path, package) for path in [*single, *(root / package).rglob("*.py")]]
        text = "\n".join(passage.text for passage in read_files(files))
        assert sentence_of(package, masked, truth) in text
        assert masked.count("[MASK]") == 1


@pytest.fixture
def passages(monkeypatch):
    """Passages of 20 packages, some in several, and of the packages that the demo leaves out."""
    made = [
        Passage(
            f"package{p:02}.module{m}",
            f"Package {p:02} has function {m:03} for purpose {m * p}. {'x' * 80}\n\nMore of {p}, {m}.",
        )
        for p in range(20)
        for m in range(130 - p)
    ]
    shared = [
        Passage(f"package{p:02}", f"This is in several packages.{'y' * 80}\n\nNews {p}") for p in range(20)
    ]
    chosen = [Passage(f"{package}.part", sentence_of(package, *rest)) for package, *rest in demo.CHOSEN]
    copies = [Passage("packages.copy", f"First. {chosen[0].text}", is_docstring=False)]
    monkeypatch.setattr(documentation, "passages", lambda workers: made + shared + chosen + copies)
    monkeypatch.setattr(documentation, "topics", lambda: {"lists": "A topic about lists."})
    return made + shared + chosen + copies


def test_collect_keeps_tests_out_of_pretraining(passages):
    collected = demo.collect()
    text = "\n\n".join(collected.documents)
    assert collected.classes == tuple(f"package{p:02}" for p in range(demo.CLASSES))
    assert len(collected.training) == demo.CLASSES * demo.LABELLED
    assert len(collected.unseen) == demo.CLASSES * demo.UNSEEN
    assert not any(docstring in text for docstring, _ in collected.unseen)
    assert not {docstring for docstring, _ in collected.training} & {d for d, _ in collected.unseen}
    assert not any(sentence_of(*chosen) in text for chosen in demo.CHOSEN)
    assert all(sentence_of(*chosen) in "\n".join(collected.aside) for chosen in demo.CHOSEN)
    assert "A topic about lists." in collected.documents
    endings = {passage.module: passage.text.rpartition("\n")[2] for passage in passages}
    modules_aside = sorted(endings)[:: demo.ASIDE_EVERY]
    assert all(endings[module] in "\n".join(collected.aside) for module in modules_aside)
    assert len(collected.aside) == len(modules_aside) + len({package for package, *_ in demo.CHOSEN})


def test_long_docstrings_of_one_public_package_are_labelled():
    long = "x" * demo.MIN_CHARACTERS
    classes, training, unseen = demo._label_docstrings(
        [
            Passage("torch.b", long + "torch"),
            Passage("numpy.a", long),
            Passage("numpy.b", long),
            Passage("numpy.b", long + "comment", is_docstring=False),
            Passage("numpy.b", long[1:]),
            Passage("_private.a", long + "private"),
            Passage("numpy.b", long + "shared"),
            Passage("torch.b", long + "shared"),
        ]
    )
    assert (classes, training, unseen) == (("numpy", "torch"), [], [(long, 0), (long + "torch", 1)])


def test_a_document_has_the_new_paragraphs_of_a_module():
    passages = [Passage("a", "1\n\n2"), Passage("b", "2\n\n3"), Passage("a", "3\n\n4"), Passage("c", "1")]
    seen = {"4"}
    assert demo._make_documents([*passages, Passage("a", "5")], seen) == ["1\n\n2\n\n5", "3"]
    assert seen == set("12345")


def test_a_resumed_demo_keeps_its_text(tmp_path):
    """A prepare that was killed resumes only if its input is the same file."""
    collected = Collected(["a", "b"], [], ("numpy", "torch"), [("two\nlines", 1)], [('"', 0)])
    demo._write_documents(tmp_path, collected)
    assert (tmp_path / "text.jsonl").read_text() == '{"text": "a"}\n{"text": "b"}\n'
    for name, row in (("train", ["two\nlines", "torch"]), ("unseen", ['"', "numpy"])):
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            assert list(csv.reader(file)) == [["text", "label"], row]
    before = (tmp_path / "text.jsonl").stat()
    demo._write_documents(tmp_path, collected)
    assert (tmp_path / "text.jsonl").stat() == before


def test_collect_has_each_paragraph_once(passages):
    collected = demo.collect()
    paragraphs = "\n\n".join(collected.documents + collected.aside).split("\n\n")
    assert len(paragraphs) == len(set(paragraphs))


def test_drawn_sentences_mask_one_known_word_and_are_reproducible(monkeypatch):
    lines = [f"The reader number {i} opens the file, and closes it at the end." for i in range(9)]
    others = ["Nothing here has a known word.", "x = code(1)"]
    tokens = frozenset({"file", "reader", "opens"})
    drawn = demo.draw_masked_sentences(["\n".join(lines), "\n".join(others)], tokens)
    assert drawn == demo.draw_masked_sentences(["\n".join([*lines, *others][::-1])], tokens)
    assert {word for _, word in drawn} == tokens
    sentences = sorted([others[0], *lines])
    in_order = [sentences[i] for i in permutation(len(sentences), 0)]  # not in the order of a set
    in_order.remove(others[0])
    assert [sentence.replace("[MASK]", word) for sentence, word in drawn] == in_order
    monkeypatch.setattr(demo, "DRAWN", 4)
    assert demo.draw_masked_sentences([*lines, *others], tokens) == drawn[:4]


def test_drawn_sentences_have_6_to_25_words():
    sentences = {count: f"The {'word ' * (count - 2)}ends." for count in (5, 6, 25, 26)}
    drawn = demo.draw_masked_sentences(["\n\n".join(sentences.values())], frozenset({"word"}))
    assert {sentence.replace("[MASK]", word) for sentence, word in drawn} == {sentences[6], sentences[25]}


def test_resumed_demo_removes_what_a_killed_prepare_left(tmp_path):
    for name in ("tokenizer", "corpus/parts", "corpus/.parts.bertie-tmp"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "corpus/manifest.json").touch()
    demo._prepare(tmp_path)
    assert [path.name for path in (tmp_path / "corpus").iterdir()] == ["manifest.json"]


# Pre-training


@pytest.fixture
def runs(monkeypatch):
    """Replace pre-training by one that takes 0.1 s a step; return the phases of each run."""
    phases = []

    def pretrain(settings, corpus, output, resume=False, silent=False):
        phases.append([(phase.steps, phase.max_seq_length) for phase in settings.phases])
        steps = range(settings.log_every, settings.total_steps + 1, settings.log_every)
        rows = [{"kind": "train", "step": step, "seconds": 5 + 0.1 * step} for step in steps]
        rows.append({"kind": "evaluation", "step": settings.total_steps})
        output.mkdir(parents=True, exist_ok=resume)
        (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr("bertie.training.pretraining.pretrain", pretrain)
    return phases


def test_phases_are_scaled_to_the_time(tmp_path, runs, capsys):
    recipe = [(phase["steps"], phase["max_seq_length"]) for phase in read_recipe("demo")["phases"]]
    seconds = 0.1 * sum(steps for steps, _ in recipe)
    demo._pretrain(tmp_path, round(2 * seconds))
    assert runs[:-1] == [[(demo.CALIBRATION_STEPS, length)] for _, length in recipe]
    assert runs[-1] == [(pytest.approx(2 * steps, abs=2), length) for steps, length in recipe]
    assert "slow or busy" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pretraining"]


def test_slow_machine_takes_longer_and_is_told(tmp_path, runs, capsys):
    demo._pretrain(tmp_path, 10)
    recipe = read_recipe("demo")["phases"]
    assert [steps for steps, _ in runs[-1]] == [round(demo.MIN_SCALE * phase["steps"]) for phase in recipe]
    minutes = demo.MIN_SCALE * 0.1 * sum(phase["steps"] for phase in recipe) / 60
    assert f"slow or busy: it will take about {minutes:.0f} minutes" in capsys.readouterr().err


def test_killed_pretraining_resumes_with_its_settings(tmp_path, runs):
    """The speed may be another one now."""
    settings = resolve(
        PretrainingSettings, read_recipe("demo"), {"phases": [{"steps": 7, "max_seq_length": 16}]}
    )
    write_settings(tmp_path / "pretraining" / SETTINGS_FILE, settings)
    demo._pretrain(tmp_path, 10)
    assert runs == [[(7, 16)]]


# Report


def make_outcome(pretrained, random, accuracy=0.3):
    evaluation = {
        "kind": "evaluation",
        "step": 40,
        "perplexity": 80.0,
        "masked_lm_loss": math.log(80),
        "masked_lm_accuracy": accuracy,
        "masked_lm_targets": 5000,
        "unigram_accuracy": 0.05,
        "unigram_loss": 6.2,
        "next_sentence_accuracy": 0.6,
        "majority_accuracy": 0.55,
    }
    train = {"kind": "train", "step": 40, "phase": 0, "loss": 5.0, "tokens": 1000, "seconds": 2.0}
    first = train | {"step": 20, "tokens": 400, "seconds": 1.0}
    rows = [first, train, evaluation, {"kind": "warning", "step": 40, "message": "slow"}]
    return Outcome(rows, {"pre-trained": pretrained, "random weights": random}, [[3, 1], [0, 4]])


def test_improvements_are_in_standard_errors():
    outcome = make_outcome([0.6, 0.62, 0.7], [0.4, 0.41])
    assert outcome.masked_token_z() == pytest.approx((0.3 - 0.05) / math.sqrt(0.3 * 0.7 / 5000))
    welch = scipy.stats.ttest_ind(*outcome.accuracies.values(), equal_var=False)
    assert outcome.classifier_z() == pytest.approx(welch.statistic)


def test_check_needs_two_standard_errors():
    outcome = SimpleNamespace(masked_token_z=lambda: 2.0, classifier_z=lambda: 1.99)
    with pytest.raises(BertieError, match="pre-training improved the classifier by less than two"):
        check(outcome, lambda line: None)


def test_check_passes_if_pretraining_won():
    lines = []
    check(make_outcome([0.6, 0.62, 0.61], [0.4, 0.41, 0.39]), lines.append)
    assert [line.partition(":")[0] for line in lines] == ["masked tokens", "the classifier"]


@pytest.mark.parametrize(
    ("outcome", "lost"),
    [
        (make_outcome([0.41, 0.42, 0.40], [0.4, 0.43, 0.39]), "the classifier"),
        (make_outcome([0.6, 0.62, 0.61], [0.4, 0.41, 0.39], accuracy=0.05), "masked tokens"),
    ],
)
def test_check_fails_if_pretraining_did_not_win(outcome, lost):
    with pytest.raises(BertieError, match=f"improved {lost} by less than two standard errors;"):
        check(outcome, lambda line: None)


def test_seeds_with_equal_accuracies_divide_by_nothing():
    assert make_outcome([0.6, 0.6], [0.4, 0.4]).classifier_z() == math.inf
    assert make_outcome([0.4, 0.4], [0.4, 0.4], accuracy=0.0).classifier_z() == 0
    assert make_outcome([0.4, 0.4], [0.4, 0.4], accuracy=0.0).masked_token_z() == -math.inf


def test_report_shows_right_and_wrong_guesses(tmp_path):
    collected = demo.Collected(["a"], ["b"], ("numpy", "torch"), [("t", 0), ("u", 1)], [("v", 0)])
    right = MaskedSentence("Close the [MASK].", "file", [("file", 0.9), ("door", 0.1)])
    wrong = MaskedSentence("Open the [MASK].", "box", [("door", 0.6), ("file", 0.4)])
    filled = demo.FilledMasks([right], [wrong], 300, 0.55)
    outcome = make_outcome([0.6, 0.62], [0.4, 0.41])
    write_report(tmp_path / "report.html", collected, outcome, filled, "[[phases]]\nsteps = 40\n")
    page = (tmp_path / "report.html").read_text()
    for text in (
        *("30.0%", "unigram baseline: 5.0%", "61.0%", "random weights: 40.5%", "55% of 300"),
        "Which of 2 libraries does a docstring come from? The classifiers learn from 1 labelled docstrings",
        "tested on 1 docstrings that pre-training has not seen",
        "1,000 tokens in 40 steps and 2 seconds (500 tokens per second)",
        "Accuracies of the classifiers by their initial weights",
        "Confusion matrix of the libraries",
        "Loss and accuracy over the steps of pre-training",
        "steps = 40",
    ):
        assert text in page
    assert page.count('title="the correct token"') == 1
    assert page.index("Close the") < page.index("Open the") < page.index("Settings")


def test_accuracy_of_drawn_words_is_of_all_of_them(tmp_path, monkeypatch):
    """The model always guesses "the"; only some of the sentences are shown."""
    guesses = [MaskPrediction(0.5, 7, "the", ""), MaskPrediction(0.25, 8, "a", "")]
    tokens = ["the", "that", "this"]
    model = SimpleNamespace(
        tokenizer=SimpleNamespace(vocabulary=SimpleNamespace(tokens=tokens)),
        fill_mask=lambda sentences, top_k: [[guesses] for _ in sentences],
    )
    monkeypatch.setattr(bertie, "load", {tmp_path / "pretraining" / "model": model}.__getitem__)
    lines = [f"Open {word} file number {i} of many others." for i in range(6) for word in tokens]
    filled = demo._fill_masks(tmp_path, ["\n".join(lines)])
    assert [row.sentence for row in filled.chosen] == [sentence for _, sentence, _ in demo.CHOSEN]
    assert [row.truth for row in filled.chosen] == [truth for *_, truth in demo.CHOSEN]
    assert filled.chosen[0].predictions == [("the", 0.5), ("a", 0.25)]
    assert (len(filled.drawn), filled.total, filled.accuracy) == (demo.SHOWN, 18, 1 / 3)


def test_classifiers_differ_only_in_their_initial_weights(tmp_path, monkeypatch):
    model = save_small(tmp_path / "pretraining", "pre-training").rename(tmp_path / "pretraining" / "model")
    (tmp_path / "pretraining" / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    killed = tmp_path / "classifiers" / "random-weights-1"
    killed.mkdir(parents=True)
    (killed / SETTINGS_FILE).touch()
    runs = []

    def finetune(task, start, training, dev, settings, run, resume, silent):
        runs.append((run.name, start.weights, settings.seed, resume))
        (run / "model").mkdir(parents=True, exist_ok=True)
        (run / "model" / "name").write_text(f"{run.name}, run {len(runs)}")

    def evaluate(task, engine, examples):
        (name, encoded), guess = next(iter(examples.items())), len(runs) % 2
        return SimpleNamespace(predictions={name: np.full(len(encoded.examples), guess)})

    monkeypatch.setattr("bertie.training.finetuning.finetune", finetune)
    monkeypatch.setattr("bertie.tasks.evaluation.evaluate", evaluate)
    monkeypatch.setattr("bertie.model.engines.loading.load_engine", lambda path: SimpleNamespace(engine=None))
    pairs = [("cat", 1), ("mat", 0), ("the cat", 1)]
    outcome = demo._finetune(tmp_path, Collected([], [], ("numpy", "torch"), pairs, pairs))
    assert runs == [
        *((f"pre-trained-{seed}", model, seed, False) for seed in range(demo.SEEDS)),
        *((f"random-weights-{seed}", None, seed, seed == 1) for seed in range(demo.SEEDS)),
    ]
    assert outcome.metrics == [{"kind": "train", "step": 1}]
    assert outcome.accuracies == {
        "pre-trained": pytest.approx([2 / 3, 1 / 3, 2 / 3]),
        "random weights": pytest.approx([1 / 3, 2 / 3, 1 / 3]),
    }
    assert outcome.confusion.tolist() == [[0, 1], [0, 2]]
    demo._finetune(tmp_path, Collected([], [], ("numpy", "torch"), pairs, pairs))
    assert (tmp_path / "classifier" / "name").read_text() == "pre-trained-0, run 1"  # it is written once


# The commands to go on with


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """The proposed commands, for a demo with a model of random weights."""
    out = tmp_path_factory.mktemp("a folder") / "demo"
    save_small(out / "pretraining", "pre-training").rename(out / "pretraining" / "model")
    save_small(out, "classifier")
    labelled = [("the cat sat", 0), ("on the mat", 1)]
    demo._write_documents(out, demo.Collected(["a"], ["b"], ("numpy", "torch"), labelled * 8, labelled))
    return demo.next_commands(out)


def run_pasted(command, monkeypatch, capsys, *options):
    """Run a command as pasted into a shell, but by this Python; return its stdout and stderr."""
    pasted = shlex.split(command)
    start = 3 if pasted[1] == "-m" else 1
    monkeypatch.setattr(sys, "argv", ["bertie", *pasted[start:], *options])
    with pytest.raises(SystemExit) as exit_status:
        main()
    out, err = capsys.readouterr()
    assert not exit_status.value.code, err
    return out, err


def test_proposed_predict_and_finetune_work_when_pasted(commands, monkeypatch, capsys):
    predict, _, finetune = commands
    assert run_pasted(predict, monkeypatch, capsys)[0].count("\n") > 1
    assert "accuracy" in run_pasted(finetune, monkeypatch, capsys)[0]


def test_proposed_serve_works_when_pasted(commands, monkeypatch, capsys):
    """test_serve.py has servers that answer."""
    monkeypatch.setattr("bertie.inference.server.running.Server.run", lambda server, sockets: None)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)  # keep this process's handlers
    _, err = run_pasted(commands[1], monkeypatch, capsys, "--port", "0")
    assert re.search(r"http://[\d.:]+ serves model \(fill mask\), classifier \(classify\);", err)


def test_proposed_commands_start_with_a_program_that_exists(tmp_path):
    commands = demo.next_commands(tmp_path)
    assert commands
    for command in commands:
        program = shlex.split(command)[0]
        assert subprocess.run(["sh", "-c", f"command -v {shlex.quote(program)}"], check=False).returncode == 0


def test_proposed_program_is_found_from_the_current_folder(tmp_path, monkeypatch):
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    def program():
        words = shlex.split(demo.next_commands(tmp_path)[0])
        return words[: words.index("predict")]

    assert program() == [str(folder / "python"), "-m", "bertie"]
    (folder / "bertie").touch(0o755)
    assert program() == ["a folder/bertie"]
    monkeypatch.setenv("PATH", str(folder))
    assert program() == ["bertie"]


def run_demo(monkeypatch, capsys, out, *options):
    """Run `bertie demo`, which fails, and return its last line on stderr."""
    monkeypatch.setattr("sys.argv", ["bertie", "demo", "--out", str(out), *options])
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr().err.splitlines()[-1]


def test_a_demo_resumes_with_the_same_command_only(tmp_path, monkeypatch, capsys):
    """The advice on a full disk is to run the command again."""

    def fill_disk(out, collected):
        (out / "text.jsonl").write_text("{}")
        raise OSError(errno.ENOSPC, "No space left on device", str(out / "text.jsonl"))

    monkeypatch.setattr(demo, "collect", lambda: Collected([], [], (), [], []))
    monkeypatch.setattr(demo, "_write_documents", fill_disk)
    out = tmp_path / "demo"
    for _ in range(2):
        last = run_demo(monkeypatch, capsys, out)
        assert last.endswith("text.jsonl: the disk is full; free some space and run the command again")
    last = run_demo(monkeypatch, capsys, out, "--seconds", "60")
    assert last.startswith(f"bertie: {out}/demo.json: this demo was started with " + '{"seconds": 220}; give')
    (out / "demo.json").write_text("[]")  # another program's
    assert "demo.json: this demo was started with []; give" in run_demo(monkeypatch, capsys, out)
    (out / "demo.json").unlink()
    assert run_demo(monkeypatch, capsys, out).startswith(f"bertie: {out}: exists already; choose another")
    assert (out / "text.jsonl").read_text() == "{}"
    (out / "demo.json").write_text('{"seconds": 220}')
    (out / "report.html").touch()
    assert run_demo(monkeypatch, capsys, out).startswith(f"bertie: {out}: exists already; choose another")
