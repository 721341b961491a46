"""The cases of two reference test suites, and the suites themselves through thin adapters.

The cases are those of tokenization_test.py (google-research/bert, commit eedf5716, Apache-2.0) and of
tests/models/bert/test_tokenization_bert.py (huggingface/transformers 4.34, Apache-2.0, from the copy
lucas-morin/transformers, commit 34ee3e46). The suites are read from `../shared/suites` if it exists.

Left out, and why:
- modeling_test.py of google-research/bert tests only shapes of outputs and that every operation of a
  TensorFlow graph is reachable; tests/parity/test_transformers_model.py compares all outputs and gradients.
- tests/test_tokenization_common.py of transformers tests the methods that all its tokenizers inherit, such as
  saving, padding and batches of pairs, which bertie's tokenizer does not have under these names;
  tests/text/test_tokenizer.py compares with `transformers` itself.
- `test_sequence_builders` needs the network.
"""

import importlib.util
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bertie.text.tokenizer import Tokenizer
from bertie.text.unicode import is_control, is_punctuation, is_whitespace, unicode_tables
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece import make_never_split, split_words

SUITES = Path(__file__).parents[3] / "shared" / "suites"
WORDS = ["want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]
SENTENCE = " \tHeLLo!how  \n Are yoU?  "


def split(
    text: str,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    never_split: Sequence[str] = (),
) -> list[str]:
    strip_accents = lowercase if strip_accents is None else strip_accents
    tables = unicode_tables(lowercase, strip_accents, tokenize_chinese_chars)
    codes, bounds, _ = split_words([text], tables, make_never_split(never_split, {}, 1))
    characters = codes.tobytes().decode("utf-32-le")
    return [characters[i:j] for i, j in pairwise(bounds)]


def tokenize(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer.encode_batch([text], add_special_tokens=False).input_ids)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("ah\u535a\u63a8zz", {}, ["ah", "\u535a", "\u63a8", "zz"]),
        ("ah\u535a\u63a8zz", {"tokenize_chinese_chars": False}, ["ah\u535a\u63a8zz"]),
        (SENTENCE, {}, ["hello", "!", "how", "are", "you", "?"]),
        (SENTENCE, {"lowercase": False}, ["HeLLo", "!", "how", "Are", "yoU", "?"]),
        ("HÄLLo", {}, ["hallo"]),
        ("HÄLLo", {"strip_accents": True}, ["hallo"]),
        ("HÄLLo", {"strip_accents": False}, ["hällo"]),
        ("HÄLLo", {"lowercase": False}, ["HÄLLo"]),
        ("HÄLLo", {"lowercase": False, "strip_accents": False}, ["HÄLLo"]),
        ("HÄLLo", {"lowercase": False, "strip_accents": True}, ["HALLo"]),
        ("yoU? [UNK]", {"lowercase": False, "never_split": ["[UNK]"]}, ["yoU", "?", "[UNK]"]),
        ("yoU? [UNK]", {"lowercase": False}, ["yoU", "?", "[", "UNK", "]"]),
        ("[UNK]x c++ C++ d", {"never_split": ["c++"]}, ["[", "unk", "]", "x", "c++", "c++", "d"]),
        (
            "a\n'll !!to?'d of, can't.",
            {},
            ["a", "'", "ll", "!", "!", "to", "?", "'", "d", "of", ",", "can", "'", "t", "."],
        ),
        ("\xad", {}, []),
    ],
)
def test_words_are_those_of_the_reference_suites(
    text: str, options: dict[str, Any], words: list[str]
) -> None:
    assert split(text, **options) == words


def test_tokens_are_those_of_the_reference_suites() -> None:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *WORDS])
    tokenizer = Tokenizer(vocabulary)
    tokens = ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert tokenize(tokenizer, "UNwant\u00e9d,running") == tokens
    assert tokenizer.encode("UNwant\u00e9d,running").input_ids[1:-1].tolist() == [9, 6, 7, 12, 10, 11]
    cased = Tokenizer(vocabulary, lowercase=False)
    assert tokenize(cased, "") == []
    assert tokenize(cased, "unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert tokenize(cased, "unwantedX running") == ["[UNK]", "runn", "##ing"]
    assert [tokenize(tokenizer, text) for text in ("Test", "\xad", "test")] == [["[UNK]"], [], ["[UNK]"]]


def test_chinese_characters_are_one_word_only_if_asked() -> None:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *"的人有", *(f"##{c}" for c in "的人有")])
    assert tokenize(Tokenizer(vocabulary), "的人有") == ["的", "人", "有"]
    joined = Tokenizer(vocabulary, tokenize_chinese_chars=False)
    assert tokenize(joined, "的人有") == ["的", "##人", "##有"]


@pytest.mark.parametrize(
    ("predicate", "yes", "no"),
    [
        (is_whitespace, " \t\r\n\u00a0", "A-"),
        (is_control, "\x05\u200d", "A \t\r\ufffd\U0001f4a9"),
        (is_punctuation, "-$`.\u3002", "A "),
    ],
)
def test_characters_have_the_properties_of_the_reference(
    predicate: Callable[[str], bool], yes: str, no: str
) -> None:
    assert all(map(predicate, yes))
    assert not any(map(predicate, no))


class BasicAdapter:
    """The interface of BasicTokenizer."""

    def __init__(self, do_lower_case: bool = True, never_split: Sequence[str] = (), **options: Any) -> None:
        self.options = {"lowercase": do_lower_case, "never_split": never_split, **options}

    def tokenize(self, text: str) -> list[str]:
        return split(text, **self.options)


class TokenizerAdapter:
    """The interface of FullTokenizer, and of BertTokenizer and BertTokenizerFast."""

    cls_token, sep_token, mask_token = "[CLS]", "[SEP]", "[MASK]"

    def __init__(self, vocab_file: str, do_lower_case: bool = True, **options: Any) -> None:
        tokens = Path(vocab_file).read_text(encoding="utf-8").splitlines()
        self.do_lower_case = do_lower_case
        self.inner = make_tokenizer(tokens, lowercase=do_lower_case, added_tokens=("[MASK]",), **options)
        self.convert_ids_to_tokens = self.inner.convert_ids_to_tokens

    from_pretrained = classmethod(lambda cls, name, **options: cls(name, **options))

    def tokenize(self, text: str) -> list[str]:
        return tokenize(self.inner, text)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        return [self.inner.vocabulary.ids[token] for token in tokens]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.inner.encode_batch([text], add_special_tokens=add_special_tokens).input_ids.tolist()

    def encode_plus(self, text: str, **_: Any) -> dict[str, Any]:
        encoding = self.inner.encode(text)
        return {
            "input_ids": encoding.input_ids.tolist(),
            "offset_mapping": [tuple(offset) for offset in encoding.offsets.tolist()],
        }


class WordpieceAdapter:
    """The interface of WordpieceTokenizer."""

    def __init__(self, vocab: Mapping[str, int], **_: Any) -> None:
        self.inner = make_tokenizer(list(vocab), lowercase=False)

    def tokenize(self, text: str) -> list[str]:
        return tokenize(self.inner, text)


def make_tokenizer(tokens: list[str], **options: Any) -> Tokenizer:
    """Make a tokenizer of a vocabulary that may lack special tokens; they get new ids at the end."""
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    return Tokenizer(Vocabulary([*tokens, *missing]), **options)


def module(name: str, **attributes: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(attributes)
    return made


def run_suite(path: Path, name: str, modules: Iterable[ModuleType]) -> unittest.TestResult:
    """Import a test file with substituted modules, and run its tests."""
    if not path.exists():
        pytest.skip("reference suites not found: ../shared/suites")
    with pytest.MonkeyPatch.context() as patch:
        for substitute in modules:
            patch.setitem(sys.modules, substitute.__name__, substitute)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        suite = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(suite)
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromModule(suite).run(result)
    return result


PREDICATES = {"_is_whitespace": is_whitespace, "_is_control": is_control, "_is_punctuation": is_punctuation}


def test_google_suite_passes() -> None:
    class TestCase(unittest.TestCase):
        def assertAllEqual(self, first: Sequence[Any], second: Sequence[Any]) -> None:  # noqa: N802
            assert list(first) == list(second)

    tokenization = module(
        "tokenization",
        BasicTokenizer=BasicAdapter,
        FullTokenizer=TokenizerAdapter,
        WordpieceTokenizer=WordpieceAdapter,
        convert_tokens_to_ids=lambda vocab, tokens: [vocab[token] for token in tokens],
        **PREDICATES,
    )
    tensorflow = module("tensorflow", test=module("tensorflow.test", TestCase=TestCase))
    substitutes = (tokenization, tensorflow, module("six", PY2=False))
    result = run_suite(SUITES / "google-bert" / "tokenization_test.py", "google_suite", substitutes)
    assert (result.testsRun, result.errors, result.failures) == (9, [], [])


def test_transformers_suite_passes(tmp_path: Path) -> None:
    pretrained = [
        *SPECIAL_TOKENS,
        "a",
        "A",
        ",",
        "na",
        "##ï",
        "##ve",
        "naive",
        "allen",
        "Allen",
        "##nl",
        "##NL",
    ]
    pretrained += ["##p", "##P", "sentence", ".", *"的人有", *(f"##{c}" for c in "的人有")]
    (tmp_path / "pretrained.txt").write_text("\n".join(pretrained), encoding="utf-8")

    class Mixin:
        vocab_file: str
        tokenizers_list = tuple(
            (TokenizerAdapter, str(tmp_path / "pretrained.txt"), {"do_lower_case": lowercase})
            for lowercase in (True, False)
        )

        def setUp(self) -> None:
            self.tmpdirname = tempfile.mkdtemp(dir=tmp_path)

        def get_tokenizer(self, **options: Any) -> TokenizerAdapter:
            return TokenizerAdapter(self.vocab_file, **options)

        get_rust_tokenizer = get_tokenizer

    tokenization_bert = module(
        "transformers.models.bert.tokenization_bert",
        VOCAB_FILES_NAMES={"vocab_file": "vocab.txt"},
        BasicTokenizer=BasicAdapter,
        BertTokenizer=TokenizerAdapter,
        WordpieceTokenizer=WordpieceAdapter,
        **PREDICATES,
    )
    substitutes = (
        module("transformers", BertTokenizerFast=TokenizerAdapter),
        tokenization_bert,
        module(
            "transformers.testing_utils",
            require_tokenizers=lambda suite: suite,
            slow=unittest.skip("needs the network"),
        ),
        module("suite", __path__=[]),
        module("suite.models", __path__=[]),
        module("suite.models.bert", __path__=[]),
        module("suite.test_tokenization_common", TokenizerTesterMixin=Mixin, filter_non_english=None),
    )
    path = SUITES / "transformers" / "tests_models_bert_test_tokenization_bert.py"
    result = run_suite(path, "suite.models.bert.test_tokenization_bert", substitutes)
    skipped = [test.id().rpartition(".")[2] for test, _ in result.skipped]
    assert (result.errors, result.failures, skipped) == ([], [], ["test_sequence_builders"])
    assert result.testsRun in (19, 20)  # some versions of Python do not count the skipped one
