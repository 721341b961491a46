"""`pretrain --init` takes a model into an extended tokenizer: old rows stay, new ones are means."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertie.base.errors import ModelError
from bertie.corpus.preparation import PreparationOptions, prepare
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.vocabulary_extension import extend_vocabulary
from bertie.training.distributed import Ranks
from bertie.training.planning import plan_pretraining
from bertie.training.pretraining_setup import PretrainingSetup

EMBEDDINGS, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
LETTERS = [*"abcdeghilnorstuw."]
OLD = Tokenizer(
    Vocabulary(["[PAD]", "[unused0]", *SPECIAL_TOKENS[1:], *LETTERS, *(f"##{x}" for x in LETTERS)])
)
IDS = OLD.vocabulary.ids


@pytest.fixture
def initial(tmp_path: Path, tiny_settings) -> Path:
    """A model with random weights, also of the decoder's bias, and three rows without tokens."""
    shape = tiny_settings().model.model_dump(exclude_none=True)
    config = BertConfig(**{**shape, "vocab_size": len(OLD.vocabulary) + 3})
    torch.manual_seed(0)
    metadata = ModelMetadata(config, PreTrainingModel.architecture, (), OLD)
    save_model(tmp_path / "model", PreTrainingModel(config), metadata, "card")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights[BIAS] = torch.randn(len(weights[BIAS]))
    weights["cls.predictions.decoder.weight"] = weights[EMBEDDINGS].clone()  # old files have the tied copy
    save_file(weights, tmp_path / "model" / "model.safetensors")
    return tmp_path / "model"


def make_corpus(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    (tmp_path / "text.txt").write_text("\n\n".join(f"the ocean {n}.\nthe bird was {n}." for n in range(40)))
    tokenizer.save(tmp_path / "tokenizer")
    prepare(
        [tmp_path / "text.txt"],
        tmp_path / "tokenizer",
        tmp_path / "corpus",
        1,
        PreparationOptions(held_out=0.1),
    )
    return tmp_path / "corpus"


def load_setup(corpus: Path, initial: Path, tiny_settings, size: int) -> PretrainingSetup:
    settings = tiny_settings(model={"vocab_size": size}, phases=[{"steps": 1, "max_seq_length": 16}])
    return PretrainingSetup.load(settings, corpus, init=initial)


def initial_weights(setup: PretrainingSetup, initial: Path) -> dict[str, Tensor]:
    model = setup.build_model(initial, Ranks())
    return {EMBEDDINGS: model.bert.embeddings.word_embeddings.weight.data, BIAS: model.masked_lm.bias.data}


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("more", [2, 5])
@pytest.mark.usefixtures("unverified")
def test_old_rows_stay_and_new_ones_are_means(tmp_path, initial, tiny_settings, capsys, fills, more):
    words = ["ocean", "##ird", "the", "was", "bird"][:more]
    slots = [IDS["[unused0]"]] if fills else []
    tokenizer = OLD.replace(vocabulary=extend_vocabulary(OLD.vocabulary, words, slots))
    size = max(len(OLD.vocabulary) + 3, len(tokenizer.vocabulary))
    setup = load_setup(make_corpus(tmp_path, tokenizer), initial, tiny_settings, size)
    before = load_file(initial / "model.safetensors")
    new = [tokenizer.vocabulary.ids[word] for word in words]
    for name, after in initial_weights(setup, initial).items():
        assert len(after) == size
        for row in {*range(len(before[name]))} - {*new}:
            assert torch.equal(after[row], before[name][row]), row
        for row, pieces in ((new[0], "o ##c ##e ##a ##n"), (new[1], "##i ##r ##d")):
            mean = before[name][[IDS[piece] for piece in pieces.split()]].mean(dim=0)
            torch.testing.assert_close(after[row], mean)
    expected = f"{initial}: {more} of {size} rows of the embeddings are new; each starts as the mean of"
    assert expected in capsys.readouterr().err


@pytest.mark.usefixtures("unverified")
def test_equal_tokenizers_have_no_new_rows(tmp_path, initial, tiny_settings, capsys):
    setup = load_setup(make_corpus(tmp_path, OLD), initial, tiny_settings, len(OLD.vocabulary) + 3)
    before = load_file(initial / "model.safetensors")
    for name, after in initial_weights(setup, initial).items():
        assert torch.equal(after, before[name])
    assert "rows of the embeddings" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "other",
    [
        Vocabulary([*OLD.vocabulary.tokens[:-1], "was"]),
        Vocabulary([*SPECIAL_TOKENS, *OLD.vocabulary.tokens[6:], "[unused0]", "was"]),
    ],
)
def test_other_tokenizer_is_refused(tmp_path, initial, tiny_settings, other):
    initial = initial.rename(tmp_path / "a model")
    with pytest.raises(ModelError) as refused:
        load_setup(make_corpus(tmp_path, OLD.replace(vocabulary=other)), initial, tiny_settings, 64)
    assert str(refused.value) == (
        f"{initial}: the corpus was prepared with a different tokenizer, which does not extend the model's; "
        f"prepare it again with the model's: bertie prepare … --tokenizer '{initial}'"
    )


@pytest.mark.usefixtures("unverified")
def test_entry_without_a_row_is_new(tmp_path, initial, tiny_settings):
    """The tokenizer of the model ends in an entry that its texts cannot contain and that has no row."""
    whole = OLD.replace(vocabulary=Vocabulary([*OLD.vocabulary.tokens, "x", "y", "z", "Ä"]))
    whole.save(initial)
    tokenizer = whole.replace(vocabulary=extend_vocabulary(whole.vocabulary, ["was"]))
    setup = load_setup(make_corpus(tmp_path, tokenizer), initial, tiny_settings, len(tokenizer.vocabulary))
    assert [tokenizer.vocabulary.tokens[row] for row in setup.new_entries] == ["Ä", "was"]
    assert setup.new_entries[len(whole.vocabulary)] == [IDS["w"], IDS["##a"], IDS["##s"]]


@pytest.mark.usefixtures("unverified")
def test_too_few_stored_rows_are_damage(tmp_path, initial, tiny_settings):
    tokenizer = OLD.replace(vocabulary=extend_vocabulary(OLD.vocabulary, ["was", "the", "ocean", "bird"]))
    weights = load_file(initial / "model.safetensors")
    save_file(weights | {BIAS: weights[BIAS][:9].clone()}, initial / "model.safetensors")
    setup = load_setup(make_corpus(tmp_path, tokenizer), initial, tiny_settings, len(tokenizer.vocabulary))
    with pytest.raises(ModelError, match=r"cls\.predictions\.bias has shape \(9,\)"):
        setup.build_model(initial, Ranks())


def test_a_smaller_vocabulary_size_is_refused(tmp_path, initial, tiny_settings):
    tokenizer = OLD.replace(vocabulary=extend_vocabulary(OLD.vocabulary, ["was", "the", "ocean", "bird"]))
    settings = tiny_settings(model={"vocab_size": len(tokenizer.vocabulary) - 1})
    with pytest.raises(ModelError, match=r"model\.vocab_size: the tokenizer has 44 entries"):
        plan_pretraining(settings, make_corpus(tmp_path, tokenizer), tmp_path / "run", init=initial)
