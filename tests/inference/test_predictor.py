"""Answers of saved models, against `transformers` on the same directory."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.small_models import CONFIG, MODELS, TAGS, TOKENIZER, save_small

import bertie
from bertie.base.errors import ModelError
from bertie.inference.predictor import Predictor
from bertie.inference.results import RowError
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.ner import NER, read_conll

TEXTS = ["the cat sat on a mat .", "rings, cats and mats!", "", "a cat ." * 60, "Paris"]
PAIRS = ["on a mat", "cats", "the cat", "paris", "sitting? " * 70]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Loads one of the small models, each only once."""
    directory, loaded = tmp_path_factory.mktemp("models"), {}

    def load(kind: str) -> Predictor:
        if kind not in loaded:
            loaded[kind] = bertie.load(save_small(directory, kind))
        return loaded[kind]

    return load


def pipeline(task: str, model: Predictor, **options):
    return transformers.pipeline(task, model=str(model.path), **options)


def encode(model: Predictor, text: str, pair: str | None = None) -> dict[str, torch.Tensor]:
    """What `transformers`' models take; the tokenizers are compared elsewhere."""
    encoding = model.tokenizer.encode(text, pair, max_length=CONFIG.max_position_embeddings)
    return {
        name: torch.from_numpy(getattr(encoding, name).astype(np.int64))[None]
        for name in ("input_ids", "token_type_ids")
    }


def close(actual, expected):
    assert actual == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["pre-training", "masked LM"])
def test_guesses_for_masks(load, kind):
    model = load(kind)
    theirs = pipeline("fill-mask", model, top_k=7)
    texts = ["the [MASK] sat on a mat.", "[MASK] cats", "a mat [MASK] and [MASK] cats [MASK]", "sat [MASK]"]
    for text, groups in zip(texts, model.fill_masks(texts, 7), strict=True):
        expected = theirs(text)
        expected = expected if isinstance(expected[0], list) else [expected]
        for guesses, their_guesses in zip(groups, expected, strict=True):
            assert [guess.token for guess in guesses] == [guess["token"] for guess in their_guesses]
            assert [guess.token_str for guess in guesses] == [guess["token_str"] for guess in their_guesses]
            close([guess.score for guess in guesses], [guess["score"] for guess in their_guesses])
        alone = model.fill_mask(text, 7)
        assert [[guess.sequence for guess in group] for group in alone] == [
            [guess.sequence for guess in group] for group in groups
        ]


def test_a_continuation_joins_the_word_before(load):
    (guesses,) = load("masked LM").fill_mask("the cat [MASK] sat", top_k=10_000)
    assert len(guesses) == CONFIG.vocab_size
    by_piece = {guess.token_str: guess.sequence for guess in guesses}
    assert by_piece["##s"] == "the cats sat"
    assert by_piece["mat"] == "the cat mat sat"


def test_no_mask_and_too_long_a_text_are_refused(load):
    model = load("masked LM")
    with pytest.raises(RowError, match=r"text 1: no \[MASK\] in it: 'the cat sat'"):
        model.fill_mask("the cat sat")
    with pytest.raises(
        RowError, match="text 2: the text has 132 word pieces, the model at most 128"
    ) as error:
        model.fill_masks(["[MASK]", "[MASK]" + " cat" * 129])
    assert error.value.row == 1


@pytest.mark.parametrize("pairs", [None, PAIRS])
@pytest.mark.parametrize("kind", ["classifier", "several labels"])
def test_labels(load, kind, pairs):
    model = load(kind)
    assert model.is_multilabel == (kind == "several labels")
    theirs = pipeline("text-classification", model, top_k=None)
    for i, ranked in enumerate(model.classify(TEXTS, pairs)):
        inputs = {"text": TEXTS[i], "text_pair": pairs[i] if pairs else None}
        expected = theirs(inputs, truncation="longest_first", max_length=128)
        assert [label.label for label in ranked] == [label["label"] for label in expected]
        close([label.score for label in ranked], [label["score"] for label in expected])


@pytest.mark.parametrize("kind", ["pre-training", "next sentence"])
def test_next_sentences(load, kind):
    model = load(kind)
    theirs = transformers.AutoModelForNextSentencePrediction.from_pretrained(model.path).eval()
    for i, score in enumerate(model.next_sentence(TEXTS, PAIRS)):
        expected = theirs(**encode(model, TEXTS[i], PAIRS[i])).logits.softmax(-1)
        close(score, expected[0, 0].item())


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_numbers(load, pairs):
    model = load("regression")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(model.path).eval()
    for i, number in enumerate(model.rate(TEXTS, pairs)):
        expected = theirs(**encode(model, TEXTS[i], pairs and pairs[i]))
        close(number, expected.logits.item())


SENTENCES = [
    "Paris cats sat, on the mats in 1990!",
    "Don't [sit] on Zürich's mat-cat: paris",
    "the   cat\tsat",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z paris the paris 1 2 3 4 the cat (sat) cats?",
]


def test_entities(load):
    model = load("tagger")
    theirs = pipeline("token-classification", model, aggregation_strategy="first")
    found = model.tag(SENTENCES)
    assert {mention.label for mentions in found for mention in mentions} == {"LOC", "PER"}
    assert any(word.tag == "O" for words in model.tag_words(SENTENCES) for word in words)
    for text, mentions in zip(SENTENCES, found, strict=True):
        expected = theirs(text)
        assert [(m.label, m.start, m.end) for m in mentions] == [
            (entity["entity_group"], entity["start"], entity["end"]) for entity in expected
        ]
        close([m.score for m in mentions], [float(entity["score"]) for entity in expected])
        assert [m.text for m in mentions] == [text[m.start : m.end] for m in mentions]


@given(st.lists(st.text(st.sampled_from("abé .,\t-’日\u0301\x00中"), max_size=40), max_size=4))
def test_every_word_of_a_text_is_tagged(load, texts):
    for text, words in zip(texts, load("tagger").tag_words(texts), strict=True):
        ids = TOKENIZER.encode(text).word_ids
        assert len(words) == ids.max() + 1
        assert all(word.tag in TAGS and 0 < word.score <= 1 for word in words)
        at = 0
        for word in words:  # they are slices of the text, in order
            at = text.index(word.word, at) + len(word.word)


def test_words_of_ones_own_and_their_documents(load, tmp_path):
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
    alone = [model.tag_words([words])[0] for words in sentences]
    for words, same in zip(model.tag_words(sentences), alone, strict=True):
        close([word.score for word in words], [word.score for word in same])
    assert together[1][0].score != pytest.approx(alone[1][0].score, abs=1e-3)


def test_no_text_is_too_long_to_be_tagged(load):
    model = load("tagger")
    text = " ".join(["the cat sat in Paris."] * 400)
    (words,) = model.tag_words([text])
    assert len(words) == 6 * 400
    (mentions,) = model.tag([text])
    assert mentions[-1].end > len(text) - 30


QUESTION = "who sat?"
CONTEXT = "Paris cats sat on  the MATS in 90!"


@pytest.mark.parametrize("kind", ["squad-v1", "squad-v2"])
def test_answers_are_the_likeliest_spans(load, kind):
    """All spans of a context so short that none falls out of the n-best of starts and ends."""
    model = load(kind)
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(model.path).eval()
    output = theirs(**encode(model, QUESTION, CONTEXT))
    starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
    encoding = model.tokenizer.encode(QUESTION, CONTEXT)
    places = [i for i in range(len(starts)) if encoding.token_type_ids[i] == 1 and encoding.offsets[i, 1] > 0]
    spans = sorted(
        ((starts[i] + ends[j], i, j) for i in places for j in places if i <= j < i + 30), reverse=True
    )
    expected = [(int(encoding.offsets[i, 0]), int(encoding.offsets[j, 1])) for _, i, j in spans[:5]]
    (answers,) = model.answer([QUESTION], [CONTEXT], 5)
    if kind == "squad-v2" and starts[0] + ends[0] - spans[0][0] > 0.5:
        assert answers.pop(0)[:3] == ("", 0, 0)
        expected.pop()
    assert [(answer.start, answer.end) for answer in answers] == expected
    assert [answer.text for answer in answers] == [CONTEXT[start:end] for start, end in expected]
    ratio = np.exp(spans[1][0] - spans[0][0])
    close(answers[1].score / answers[0].score, ratio)


def test_a_text_is_cut_where_it_was_in_fine_tuning(tmp_path):
    model = bertie.load(save_small(tmp_path, "classifier", max_seq_length=8))
    long, cut = model.classify([f"{QUESTION} {CONTEXT}", f"{QUESTION} {CONTEXT} {CONTEXT}"])
    assert [label.score for label in long] == [label.score for label in cut]


@pytest.mark.parametrize(("threshold", "answers_nothing"), [(None, False), (1e9, False), (-1e9, True)])
def test_no_answer_where_the_null_threshold_says_so(tmp_path, threshold, answers_nothing):
    model = bertie.load(save_small(tmp_path, "squad-v2", null_threshold=threshold))
    answers = model.answer([QUESTION] * 3, [CONTEXT, CONTEXT * 20, "cats"], 4)
    for ranked in answers:
        assert [answer.text == "" for answer in ranked] == [
            answers_nothing and number == 0 for number in range(len(ranked))
        ]
    assert [ranked[0] for ranked in answers] == [
        ranked[0] for ranked in model.answer([QUESTION] * 3, [CONTEXT, CONTEXT * 20, "cats"])
    ]
    config = transformers.AutoConfig.from_pretrained(model.path)
    assert getattr(config, "null_threshold", None) == threshold


def test_a_context_without_words_has_no_answer(load):
    for kind in ("squad-v1", "squad-v2"):
        assert load(kind).answer([QUESTION], [" "], 3) == [[("", 0, 0, 1.0)]]


def test_an_answer_far_back_in_a_long_context_is_found(load):
    model = load("squad-v1")
    (short,) = model.answer([QUESTION], [CONTEXT])
    begin = "a " * 700
    contexts = [begin + CONTEXT, CONTEXT]
    long, alone = model.answer([QUESTION] * 2, contexts, 100)
    assert [answer.text for answer in alone][:1] == [short[0].text]
    assert all(contexts[0][answer.start : answer.end] == answer.text for answer in long)
    assert max(answer.end for answer in long) > len(begin)


def test_choices(load):
    model = load("choices")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(model.path).eval()
    endings = [["on the mat", "in Paris"], ["cats", "a", "1990!"], [], ["sat", "sitting, " * 90]]
    contexts = ["the cat", "who?", "nobody", "the cats"]
    for context, choices, ranked in zip(contexts, endings, model.choose(contexts, endings), strict=True):
        assert [choice.ending for choice in ranked] == [choices[choice.number] for choice in ranked]
        if not choices:
            assert ranked == []
            continue
        logits = [
            theirs(**{k: v[None] for k, v in encode(model, context, e).items()}).logits for e in choices
        ]
        expected = torch.cat(logits, 1).softmax(1)[0]
        scores = [choice.score for choice in ranked]
        assert scores == sorted(scores, reverse=True)
        close(scores, [expected[choice.number].item() for choice in ranked])


CALLS = {
    "fill_mask": lambda model, texts: model.fill_masks([f"{text} [MASK]" for text in texts]),
    "next_sentence": lambda model, texts: model.next_sentence(texts, texts),
    "classify": lambda model, texts: model.classify(texts),
    "rate": lambda model, texts: model.rate(texts),
    "tag": lambda model, texts: model.tag(texts),
    "answer": lambda model, texts: model.answer(texts, texts),
    "choose": lambda model, texts: model.choose(texts, [["a", "cat"]] * len(texts)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_method_the_head_cannot_serve_says_which_is_needed(load, kind):
    model = load(kind)
    for method, call in CALLS.items():
        if method == model.method or (method, kind) == ("next_sentence", "pre-training"):
            assert call(model, []) == []
            assert len(call(model, ["the cat", ""])) == 2
            continue
        found = f"{method} needs a .*; this model is a {model.engine.architecture}"
        with pytest.raises(
            ModelError, match=found + (f", which can {model.method}" if model.method else "$")
        ):
            call(model, ["the cat"])


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "encoder"])
def test_batches_are_bounded_and_change_no_answer(load, kind, monkeypatch):
    model, call = load(kind), CALLS[load(kind).method]
    texts = [" ".join(["cat", "sat", "on"][: number % 3 + 1] * (number % 4 + 1)) for number in range(20)]
    whole = call(model, texts)
    sizes = []
    monkeypatch.setattr(model.engine, "max_tokens", 40)
    with model.engine.model.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].num_tokens)):
        flat, same = ([*numbers_and_names(value)] for value in (whole, call(model, texts)))
    assert max(sizes) <= 40
    assert len(sizes) > 3
    assert [value for value in flat if isinstance(value, str)] == [v for v in same if isinstance(v, str)]
    close([value for value in flat if isinstance(value, float)], [v for v in same if isinstance(v, float)])


def numbers_and_names(value):
    """All that is in nested answers."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from numbers_and_names(item)
    else:
        yield value


def test_a_tagger_of_anything_but_entities_tags_words_alone(tmp_path):
    model = bertie.load(save_small(tmp_path, "tagger", labels=("NOUN", "VERB", "ADJ", "ADV", "DET")))
    with pytest.raises(ModelError, match="'NOUN' is no tag of an entity"):
        model.tag(["the cat"])
    (words,) = model.tag_words(["the cat"])
    assert [word.word for word in words] == ["the", "cat"]
    assert {word.tag for word in words} <= set(model.labels)
