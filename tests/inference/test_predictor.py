"""Predictions of saved models, equal to those of `transformers`."""

import copy
import doctest
import pickle
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from time import sleep
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.small_models import CONFIG, LABELS, MODELS, TAGS, TOKENIZER, save_small

import bertie
from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.base.texts import TextError
from bertie.inference.answers import rank_answers, unanswered_questions
from bertie.inference.capabilities import REQUIRED_HEADS, resolve_max_seq_length
from bertie.inference.predictor import Predictor
from bertie.inference.records import Record
from bertie.inference.results import Answer, Result
from bertie.inference.server.operations import Embed, EncodedText, compute
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.heads import ClassificationModel
from bertie.tasks.conll import read_conll
from bertie.tasks.custom.questions import CustomQuestionAnswering
from bertie.tasks.evaluation import compute_logits, load_for_task
from bertie.tasks.ner import NER

TEXTS = ["the cat sat on a mat .", "rings, cats and mats!", "", "a cat ." * 60, "Paris"]
PAIRS = ["on a mat", "cats", "the cat", "paris", "sitting? " * 70]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Load one of the small models; each is loaded only once."""
    directory, loaded = tmp_path_factory.mktemp("models"), {}

    def load(kind: str) -> Predictor:
        if kind not in loaded:
            loaded[kind] = bertie.load(save_small(directory, kind))
        return loaded[kind]

    return load


@pytest.mark.parametrize("method", [*REQUIRED_HEADS, "embed", "features"])
def test_annotations_allow_arrays_and_iterators_of_texts(method):
    """At run time they are allowed everywhere (test_texts.py)."""
    hints = get_type_hints(getattr(Predictor, method))
    names = {"texts", "pairs", "questions", "contexts"} & set(hints)
    assert names
    assert all({str, Iterable[str]} <= set(get_args(hints[name])) for name in names)


def pipeline(task: str, model: Predictor, **options):
    return transformers.pipeline(task, model=str(model.path), **options)


def encode(model: Predictor, text: str, pair: str | None = None) -> dict[str, torch.Tensor]:
    """Encode a text for `transformers`' models; other tests compare the tokenizers."""
    encoding = model.tokenizer.encode(text, pair, max_length=CONFIG.max_position_embeddings)
    return {
        name: torch.from_numpy(getattr(encoding, name).astype(np.int64))[None]
        for name in ("input_ids", "token_type_ids")
    }


def assert_close(actual, expected):
    assert actual == pytest.approx(expected, abs=1e-5)


def flatten(value):
    """Yield all values in nested results."""
    if isinstance(value, Result):
        yield from asdict(value).values()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flatten(item)
    else:
        yield value


def assert_same_results(actual, expected):
    """Compare results; numbers approximately, since the batch changes their last digits."""
    actual, expected = [*flatten(actual)], [*flatten(expected)]
    assert [value for value in actual if isinstance(value, str)] == [
        value for value in expected if isinstance(value, str)
    ]
    assert_close(
        [value for value in actual if not isinstance(value, str)],
        [value for value in expected if not isinstance(value, str)],
    )


# Calls of each method with a list of texts.
CALLS = {
    "fill_mask": lambda model, texts: model.fill_mask([f"{text} [MASK]" for text in texts]),
    "next_sentence": lambda model, texts: model.next_sentence(texts, texts),
    "classify": lambda model, texts: model.classify(texts),
    "regress": lambda model, texts: model.regress(texts),
    "tag": lambda model, texts: model.tag(texts),
    "answer": lambda model, texts: model.answer(texts, texts),
    "choose": lambda model, texts: model.choose(texts, [["a", "cat"]] * len(texts)),
}
# By method: the arguments for one text, and the kind of model.
SINGLE_CALLS = {
    "fill_mask": (("the [MASK] sat", 3), "masked LM"),
    "next_sentence": (("the cat", "sat"), "next sentence"),
    "embed": (("the cat",), "encoder"),
    "classify": (("the cat", "sat"), "classifier"),
    "regress": (("the cat", "sat"), "regression"),
    "tag": (("cats sat in Paris",), "tagger"),
    "tag_words": (("cats sat in Paris",), "tagger"),
    "answer": (("who?", "the cat sat", 3), "squad-v1"),
    "choose": (("the cat", ["sat", "on"]), "choices"),
}


@pytest.mark.parametrize("method", SINGLE_CALLS)
def test_one_text_has_the_same_result_as_in_a_list(load, method):
    (*texts, last), kind = SINGLE_CALLS[method]
    call = getattr(load(kind), method)
    options = [last] if isinstance(last, int) else []
    texts = texts if options else [*texts, last]
    (expected,) = call(*([text] for text in texts), *options)
    result = call(*texts, *options)
    assert type(result) is type(expected)
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("name", [f"Predictor.{name}" for name in [*SINGLE_CALLS, "features"]])
def test_docstring_examples_are_correct(load, name):
    method = name.removeprefix("Predictor.")
    model = load(SINGLE_CALLS[method][1] if method in SINGLE_CALLS else "encoder")
    documented = getattr(Predictor, method)
    (test,) = doctest.DocTestFinder(recurse=False).find(documented, name, globs={"model": model})
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize(
    ("kind", "method"),
    [("next sentence", "next_sentence"), ("classifier", "classify"), ("regression", "regress")],
)
def test_texts_and_pairs_that_do_not_match_are_rejected(load, kind, method):
    for texts, pairs in (("the cat", ["sat"]), (["the cat"], "sat"), (["the", "cat"], ["sat"])):
        with pytest.raises(DataError, match="texts and pairs: got"):
            getattr(load(kind), method)(texts, pairs)


def test_questions_and_endings_that_do_not_match_are_rejected(load):
    with pytest.raises(DataError, match="questions and contexts: got lists of 2 and 1 items"):
        load("squad-v1").answer(["who?", "where?"], ["the cat sat"])
    with pytest.raises(DataError, match="endings: expected a list of strings, got a string"):
        load("choices").choose("the cat", "sat")
    with pytest.raises(DataError, match=r"texts\[1\]: expected a string, got float"):
        load("encoder").embed(["the cat", float("nan")])
    with pytest.raises(DataError, match="document_bounds: must begin with 0, ascend, and end with 2"):
        load("tagger").tag_words([["the"], ["cat"]], [0, 1])


def test_top_k_limits_labels_and_endings(load):
    model = load("classifier")
    assert model.classify("the cat", top_k=2) == model.classify("the cat")[:2]
    model, endings = load("choices"), ["sat", "on", "mat"]
    assert model.choose("the cat", endings, 1) == model.choose("the cat", endings)[:1]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint64])
def test_top_k_may_be_an_unsigned_integer(load, kind):
    assert len(load("masked LM").fill_mask("the [MASK]", top_k=kind(2))[0]) == 2


@pytest.mark.parametrize("top_k", [None, True])
def test_masks_and_answers_need_a_number_of_results(load, top_k):
    with pytest.raises(SettingsError, match=f"top_k={top_k}: expected an integer of at least 1$"):
        load("masked LM").fill_mask("the [MASK]", top_k=top_k)
    with pytest.raises(SettingsError, match=f"top_k={top_k}: expected an integer of at least 1$"):
        load("squad-v1").answer("who?", "the cat", top_k=top_k)


@pytest.mark.parametrize(
    "call",
    [
        lambda load: load("masked LM").fill_mask("the [MASK]", top_k=0),
        lambda load: load("classifier").classify("cat", top_k=0),
        lambda load: load("squad-v1").answer("who?", "the cat", top_k=0),
        lambda load: load("choices").choose("the cat", ["sat", "mat"], top_k=0),
    ],
)
def test_no_results_cannot_be_asked_for(load, call):
    with pytest.raises(SettingsError, match="top_k=0: expected an integer of at least 1"):
        call(load)


def test_load_takes_only_a_path():
    with pytest.raises(SettingsError, match="path: expected a path, got NoneType"):
        bertie.load(None)
    message = "s3://data/model: models are loaded from local directories; download this one first"
    with pytest.raises(ModelError, match=message):
        bertie.load("s3://data/model")


def test_repr_names_the_directory_and_the_architecture(load):
    model = load("classifier")
    assert repr(model) == f"Predictor('{model.path}', BertForSequenceClassification)"


def test_pickles_load_the_directory_again(tmp_path, monkeypatch):
    path = save_small(tmp_path, "encoder")
    with (path / "config.json").open("a") as file:
        file.write("\n")  # which differs from SHA256SUMS, so that the pickle is to skip verification, too
    monkeypatch.chdir(tmp_path)
    model = bertie.load("encoder", "cpu", verify=False)
    model.max_seq_length = 10
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.max_seq_length == 10
    assert np.array_equal(loaded.embed(TEXTS), model.embed(TEXTS))


@pytest.mark.parametrize("copy_model", [copy.copy, copy.deepcopy])
def test_copies_share_the_weights_and_need_no_directory(tmp_path, copy_model):
    model = bertie.load(save_small(tmp_path, "encoder"), "cpu")
    shutil.rmtree(model.path)
    copied = copy_model(model)
    copied.max_seq_length = 4
    assert copied.engine is model.engine
    assert model.max_seq_length > 4
    assert np.array_equal(copied.embed("the"), model.embed("the"))


@pytest.mark.parametrize("kind", ["pre-training", "masked LM"])
def test_fill_mask_agrees_with_transformers(load, kind):
    model = load(kind)
    reference = pipeline("fill-mask", model, top_k=7)
    texts = ["the [MASK] sat on a mat.", "[MASK] cats", "a mat [MASK] and [MASK] cats [MASK]", "sat [MASK]"]
    for text, masks in zip(texts, model.fill_mask(texts, 7), strict=True):
        expected = reference(text)
        expected = expected if isinstance(expected[0], list) else [expected]
        for predictions, expected_predictions in zip(masks, expected, strict=True):
            for field in ("token", "token_str"):
                assert [getattr(prediction, field) for prediction in predictions] == [
                    prediction[field] for prediction in expected_predictions
                ]
            assert_close(
                [prediction.score for prediction in predictions],
                [prediction["score"] for prediction in expected_predictions],
            )
        assert [[prediction.sequence for prediction in mask] for mask in model.fill_mask(text, 7)] == [
            [prediction.sequence for prediction in mask] for mask in masks
        ]


def test_a_continuation_joins_the_word_before(load):
    (predictions,) = load("masked LM").fill_mask("the cat [MASK] sat", top_k=10_000)
    assert len(predictions) == CONFIG.vocab_size
    sequences = {prediction.token_str: prediction.sequence for prediction in predictions}
    assert sequences["##s"] == "the cats sat"
    assert sequences["mat"] == "the cat mat sat"


def test_fill_mask_rejects_texts_without_mask_or_too_long(load):
    model = load("masked LM")
    with pytest.raises(TextError, match=r"^texts\[0\]: no \[MASK\] in 'the cat sat'; put one"):
        model.fill_mask("the cat sat")
    with pytest.raises(
        TextError,
        match=r"^texts\[1\]: 132 tokens in '\[MASK\] cat .*', but the model reads at most 128; shorten",
    ) as error:
        model.fill_mask(["[MASK]", "[MASK]" + " cat" * 129])
    assert error.value.index == 1


@pytest.mark.parametrize("pairs", [None, PAIRS])
@pytest.mark.parametrize("kind", ["classifier", "multi-label"])
def test_classify_agrees_with_transformers(load, kind, pairs):
    model = load(kind)
    assert model.is_multilabel == (kind == "multi-label")
    reference = pipeline("text-classification", model, top_k=None)
    for i, labels in enumerate(model.classify(TEXTS, pairs)):
        inputs = {"text": TEXTS[i], "text_pair": pairs[i] if pairs else None}
        expected = reference(inputs, truncation="longest_first", max_length=128)
        assert [label.label for label in labels] == [label["label"] for label in expected]
        assert_close([label.score for label in labels], [label["score"] for label in expected])


@pytest.mark.parametrize("kind", ["pre-training", "next sentence"])
def test_next_sentence_agrees_with_transformers(load, kind):
    model = load(kind)
    reference = transformers.AutoModelForNextSentencePrediction.from_pretrained(model.path).eval()
    for i, score in enumerate(model.next_sentence(TEXTS, PAIRS)):
        expected = reference(**encode(model, TEXTS[i], PAIRS[i])).logits.softmax(-1)
        assert_close(score, expected[0, 0].item())


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_regress_agrees_with_transformers(load, pairs):
    model = load("regression")
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(model.path).eval()
    for i, value in enumerate(model.regress(TEXTS, pairs)):
        expected = reference(**encode(model, TEXTS[i], pairs and pairs[i]))
        assert_close(value, expected.logits.item())


SENTENCES = [
    "Paris cats sat, on the mats in 1990!",
    "Don't [sit] on Zürich's mat-cat: paris",
    "the   cat\tsat",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z paris the paris 1 2 3 4 the cat (sat) cats?",
]


def test_tag_agrees_with_transformers(load):
    model = load("tagger")
    reference = pipeline("token-classification", model, aggregation_strategy="first")
    results = model.tag(SENTENCES)
    assert {entity.label for entities in results for entity in entities} == {"LOC", "PER"}
    assert any(word.tag == "O" for words in model.tag_words(SENTENCES) for word in words)
    for text, entities in zip(SENTENCES, results, strict=True):
        expected = reference(text)
        assert [(entity.label, entity.start, entity.end) for entity in entities] == [
            (entity["entity_group"], entity["start"], entity["end"]) for entity in expected
        ]
        assert_close([entity.score for entity in entities], [float(entity["score"]) for entity in expected])
        assert [entity.text for entity in entities] == [
            text[entity.start : entity.end] for entity in entities
        ]


@given(st.lists(st.text(st.sampled_from("abé .,\t-’日\u0301\x00中"), max_size=40), max_size=4))
def test_every_word_of_a_text_is_tagged(load, texts):
    for text, words in zip(texts, load("tagger").tag_words(texts), strict=True):
        word_ids = TOKENIZER.encode(text).word_ids
        assert len(words) == word_ids.max() + 1
        assert all(word.tag in TAGS and 0 < word.score <= 1 for word in words)
        end = 0
        for word in words:  # they are slices of the text, in order
            end = text.index(word.word, end) + len(word.word)


def test_words_are_tagged_in_their_documents(load, tmp_path):
    model = load("tagger")
    sentences = [["U.S.", "cats"], ["sat"], ["on", "Paris"]]
    rows = [["", *(f"{word} O" for word in words)] for words in sentences]
    (tmp_path / "gold.conll").write_text("\n".join("\n".join(row) for row in rows) + "\n")
    examples = read_conll(tmp_path / "gold.conll")
    assert [list(words) for words in examples.words] == sentences
    task = NER.with_labels(TAGS)
    inputs = task.encode(examples, TOKENIZER, CONFIG.max_position_embeddings)
    expected = task.decode(examples, inputs, compute_logits(model.engine, inputs))
    together = model.tag_words(sentences, [0, 3])
    assert [[word.tag for word in words] for words in together] == [list(tags) for tags in expected]
    assert [[word.word for word in words] for words in together] == sentences
    separate = [model.tag_words([words])[0] for words in sentences]
    for words, same in zip(model.tag_words(sentences), separate, strict=True):
        assert_close([word.score for word in words], [word.score for word in same])
    assert together[1][0].score != pytest.approx(separate[1][0].score, abs=1e-3)


def test_texts_and_lists_of_words_mix(load):
    text, words = load("tagger").tag_words(["the cat sat", ["the cat", "sat"]])
    assert [word.word for word in text] == ["the", "cat", "sat"]
    assert [word.word for word in words] == ["the cat", "sat"]


def test_a_long_text_is_tagged_to_its_end(load):
    model = load("tagger")
    text = " ".join(["the cat sat in Paris."] * 400)
    assert len(model.tag_words(text)) == 6 * 400
    assert model.tag(text)[-1].end > len(text) - 30


QUESTION = "who sat?"
CONTEXT = "Paris cats sat on  the MATS in 90!"


@pytest.mark.parametrize("kind", ["squad-v1", "squad-v2"])
def test_answers_are_the_most_likely_spans(load, kind):
    """The context is so short that every span is among the n best starts and ends."""
    model = load(kind)
    reference = transformers.AutoModelForQuestionAnswering.from_pretrained(model.path).eval()
    output = reference(**encode(model, QUESTION, CONTEXT))
    starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
    encoding = model.tokenizer.encode(QUESTION, CONTEXT)
    positions = [
        i for i in range(len(starts)) if encoding.token_type_ids[i] == 1 and encoding.offsets[i, 1] > 0
    ]
    spans = sorted(
        ((starts[i] + ends[j], i, j) for i in positions for j in positions if i <= j < i + 30), reverse=True
    )
    words = [match.span() for match in re.finditer(r"\w+|[^\w\s]", CONTEXT)]
    tokens = [(int(encoding.offsets[i, 0]), int(encoding.offsets[j, 1])) for _, i, j in spans]
    whole = [
        (max(begin for begin, _ in words if begin <= start), min(stop for _, stop in words if stop >= end))
        for start, end in tokens
    ]
    assert whole[:5] != tokens[:5]
    expected = [*dict.fromkeys(whole[:20])][:5]  # n best of run_squad.py, of which some become equal
    answers = [*model.answer(QUESTION, CONTEXT, 5)]
    if kind == "squad-v2" and starts[0] + ends[0] - spans[0][0] > 0.5:
        empty = answers.pop(0)
        assert (empty.text, empty.start, empty.end) == ("", 0, 0)
        expected.pop()
    assert [(answer.start, answer.end) for answer in answers] == expected
    assert [answer.text for answer in answers] == [CONTEXT[start:end] for start, end in expected]
    first, second = (spans[whole.index(span)][0] for span in expected[:2])
    assert_close(answers[1].score / answers[0].score, np.exp(second - first))


def test_texts_are_truncated_as_in_fine_tuning(tmp_path):
    model = bertie.load(save_small(tmp_path, "classifier", max_seq_length=8))
    long, longer = model.classify([f"{QUESTION} {CONTEXT}", f"{QUESTION} {CONTEXT} {CONTEXT}"])
    assert [label.score for label in long] == pytest.approx([label.score for label in longer])


def test_truncated_pairs_of_next_sentences_are_counted(load):
    model = load("next sentence")
    before = model.num_truncated
    model.next_sentence(["a " * 200, "the cat", "the"], ["cat", "sat", "b " * 200])
    assert model.num_truncated == before + 2


def test_contexts_have_the_windows_of_fine_tuning(tmp_path):
    path = save_small(tmp_path, "squad-v1", max_seq_length=20)
    model, contexts = bertie.load(path, "cpu"), [CONTEXT * 5]
    task = load_for_task(CustomQuestionAnswering(), path, "cpu")
    predictions = task.predict(unanswered_questions([QUESTION], contexts))
    expected = rank_answers(contexts, predictions, model.tokenizer)
    assert model.answer([QUESTION], contexts, 5) == [tuple(answers[:5]) for answers in expected]


def test_threads_count_every_truncated_text(load, monkeypatch):
    model = load("encoder")
    before = model.num_truncated

    def get(model):
        number = vars(model)["num_truncated"]
        sleep(0.001)  # another thread counts meanwhile
        return number

    counter = property(get, lambda model, number: vars(model).update(num_truncated=number))
    monkeypatch.setattr(Predictor, "num_truncated", counter, raising=False)
    encoded = EncodedText(np.array([2, 3], np.int32), np.zeros(2, np.int32), is_truncated=True)

    def count(_):
        model.embed("a " * 200)
        compute(model, Embed("mean"), [Record("inputs", {}, (encoded,))])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(20)))
    assert model.num_truncated == before + 40


def test_threshold_and_temperature_decide_which_class_comes_first(tmp_path, monkeypatch):
    two_classes = (lambda: ClassificationModel(CONFIG, 2), ("bad", "good"), {})
    monkeypatch.setitem(MODELS, "two classes", two_classes)
    plain = bertie.load(save_small(tmp_path / "plain", "two classes"))
    assert plain.decision_thresholds == {"good": 0.5}
    scores = [{label.label: label.score for label in labels} for labels in plain.classify(TEXTS)]
    limit = float(np.median([score["good"] for score in scores])) + 1e-6
    tuned = bertie.load(save_small(tmp_path / "tuned", "two classes", decision_thresholds=(limit,)))
    assert tuned.decision_thresholds == {"good": limit}
    results = tuned.classify(TEXTS)
    assert [{label.label: label.score for label in labels} for labels in results] == scores
    assert [labels[0].label == "good" for labels in results] == [score["good"] > limit for score in scores]
    assert [labels[0] for labels in results] == [labels[0] for labels in tuned.classify(TEXTS, top_k=1)]
    assert [labels[0] for labels in results] != [labels[0] for labels in plain.classify(TEXTS)]
    config = transformers.AutoConfig.from_pretrained(tuned.path)
    assert config.decision_thresholds == [limit]
    cooled = bertie.load(save_small(tmp_path / "cooled", "two classes", temperature=2.0))
    for labels, score in zip(cooled.classify(TEXTS), scores, strict=True):
        odds = {label.label: label.score for label in labels}
        assert odds["good"] / odds["bad"] == pytest.approx((score["good"] / score["bad"]) ** 0.5, rel=1e-5)


def test_thresholds_that_do_not_fit_the_labels_are_refused(tmp_path, load):
    assert load("multi-label").decision_thresholds == dict.fromkeys(LABELS, 0.5)
    assert load("classifier").decision_thresholds == load("tagger").decision_thresholds == {}
    for kind, takes in (("classifier", 0), ("multi-label", 3)):
        path = save_small(tmp_path, kind, decision_thresholds=(0.25, 0.75))
        with pytest.raises(ModelError, match=f"has 2 numbers, but this model takes {takes}; correct"):
            bertie.load(path)


@pytest.mark.parametrize(("threshold", "is_empty"), [(None, False), (1e9, False), (-1e9, True)])
def test_null_threshold_decides_on_an_empty_answer(tmp_path, threshold, is_empty):
    model = bertie.load(save_small(tmp_path, "squad-v2", null_threshold=threshold))
    contexts = [CONTEXT, CONTEXT * 20, "cats"]
    results = model.answer([QUESTION] * 3, contexts, 4)
    for answers in results:
        assert [answer.text == "" for answer in answers] == [
            is_empty and rank == 0 for rank in range(len(answers))
        ]
    assert [answers[0] for answers in results] == [
        answers[0] for answers in model.answer([QUESTION] * 3, contexts)
    ]
    config = transformers.AutoConfig.from_pretrained(model.path)
    assert getattr(config, "null_threshold", None) == threshold


def test_a_context_without_words_has_no_answer(load):
    for kind in ("squad-v1", "squad-v2"):
        assert load(kind).answer(QUESTION, " ", 3) == (Answer("", 0, 0, 1.0),)


def test_answers_are_read_in_windows_of_max_seq_length(tmp_path):
    model = bertie.load(save_small(tmp_path, "squad-v1"))
    recorded = bertie.load(save_small(tmp_path / "recorded", "squad-v1", max_seq_length=20))
    assert model.max_seq_length == model.config.max_position_embeddings
    metadata = ModelMetadata(BertConfig(), model.engine.architecture, (), model.tokenizer)
    assert resolve_max_seq_length(metadata) == 384  # of 512 positions
    context = "the cat sat on the mat. " * 10
    whole = model.answer(QUESTION, context, 3)
    model.max_seq_length = 20
    assert model.answer(QUESTION, context, 3) == recorded.answer(QUESTION, context, 3) != whole


def test_an_answer_at_the_end_of_a_long_context_is_found(load):
    model = load("squad-v1")
    (short,) = model.answer(QUESTION, CONTEXT)
    begin = "a " * 700
    contexts = [begin + CONTEXT, CONTEXT]
    long, separate = model.answer([QUESTION] * 2, contexts, 100)
    assert separate[0].text == short.text
    assert all(contexts[0][answer.start : answer.end] == answer.text for answer in long)
    assert max(answer.end for answer in long) > len(begin)


@pytest.mark.parametrize("kind", ["classifier", "regression"])
def test_no_texts_have_logits_with_as_many_columns_as_texts(load, kind):
    assert load(kind).classifier_logits([]).shape == (0, load(kind).classifier_logits(["cat"]).shape[1])


def test_choose_agrees_with_transformers(load):
    model = load("choices")
    reference = transformers.AutoModelForMultipleChoice.from_pretrained(model.path).eval()
    endings = [["on the mat", "in Paris"], ["cats", "a", "1990!"], [], ["sat", "sitting, " * 90]]
    contexts = ["the cat", "who?", "nobody", "the cats"]
    results = model.choose(contexts, endings)
    for context, row, choices in zip(contexts, endings, results, strict=True):
        assert [choice.ending for choice in choices] == [row[choice.number] for choice in choices]
        if not row:
            assert choices == ()
            continue
        logits = [
            reference(**{name: ids[None] for name, ids in encode(model, context, ending).items()}).logits
            for ending in row
        ]
        expected = torch.cat(logits, 1).softmax(1)[0]
        scores = [choice.score for choice in choices]
        assert scores == sorted(scores, reverse=True)
        assert_close(scores, [expected[choice.number].item() for choice in choices])


@pytest.mark.parametrize("kind", MODELS)
def test_a_method_without_its_head_reports_the_needed_one(load, kind):
    model = load(kind)
    for method, call in CALLS.items():
        if method == model.method or (method, kind) == ("next_sentence", "pre-training"):
            assert call(model, []) == []
            assert len(call(model, ["the cat", ""])) == 2
            continue
        instead = f"; call {model.method} instead$" if model.method else "$"
        with pytest.raises(
            ModelError, match=f"{method} needs a .*; this model is a {model.engine.architecture}{instead}"
        ):
            call(model, ["the cat"])


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "encoder"])
def test_batches_are_limited_and_change_no_result(load, kind, monkeypatch):
    model, call = load(kind), CALLS[load(kind).method]
    texts = [" ".join(["cat", "sat", "on"][: number % 3 + 1] * (number % 4 + 1)) for number in range(20)]
    expected = call(model, texts)
    sizes = []
    monkeypatch.setattr(model.engine, "max_batch_tokens", 40)
    with model.engine.model.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].num_tokens)):
        assert_same_results(call(model, texts), expected)
    assert max(sizes) <= 40
    assert len(sizes) > 3


def test_a_tagger_with_plain_tags_only_tags_words(tmp_path):
    model = bertie.load(save_small(tmp_path, "tagger", labels=("NOUN", "VERB", "ADJ", "ADV", "DET")))
    with pytest.raises(ModelError, match="label 'NOUN' is not the tag of an entity; use tag_words"):
        model.tag(["the cat"])
    words = model.tag_words("the cat")
    assert [word.word for word in words] == ["the", "cat"]
    assert {word.tag for word in words} <= set(model.labels)
