"""Types of the arguments of public functions."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch

import bertie
from bertie.api.results import Metrics, PretrainingResult
from bertie.base.arguments import check_flag, checked
from bertie.base.errors import DataError, SettingsError
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


@checked
def function(
    path: str | Path,
    *,
    size: int = 5,
    fraction: float | None = None,
    force: bool = False,
    on_error: Literal["stop", "skip"] = "stop",
    column: str | None = None,
    columns: Mapping[str, Any] | None = None,
    rest: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the arguments."""
    return {"path": path, "size": size, "fraction": fraction, "force": force, "rest": rest, **more}


def test_device_may_be_an_object_of_torch_and_no_number():
    @checked
    def place(device: str = "auto") -> str:
        return device

    assert place(device=torch.device("cuda:1")) == "cuda:1"
    with pytest.raises(SettingsError, match=r"^device: expected a string, got int; write 'cuda:1'$"):
        place(device=1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"size": np.int64(7)}, {"size": 7}),
        ({"size": "200"}, {"size": 200}),
        ({"fraction": "0.1"}, {"fraction": 0.1}),
        ({"force": "no"}, {"force": False}),
        ({"rest": {1: 2}, "other": [3]}, {"rest": {1: 2}, "other": [3]}),
    ],
)
def test_numbers_and_flags_are_converted(arguments, expected):
    assert function("a", **arguments).items() >= expected.items()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": None}, "path: expected a path, got NoneType"),
        ({"path": b"a"}, "path: expected a path, got bytes"),
        ({"path": ""}, "path: expected a path, got an empty string"),
        ({"path": True}, "path: expected a path, got bool"),
        ({"path": "a\0b"}, "path: expected a path, got a string with a null character"),
        ({"path": Path("a\0b")}, "path: expected a path, got a string with a null character"),
        ({"column": 0}, "column: expected a string, got int; write '0'"),
        ({"column": np.int64(0)}, "column: expected a string, got int64; write '0'"),
        ({"size": 2.5}, "size = 2.5: expected an integer, got a number with a fractional part"),
        ({"size": True}, "size = True: expected a number, not a flag"),
        ({"size": None}, "size = None: expected an integer"),
        ({"force": "perhaps"}, "force = 'perhaps': expected true or false"),
        ({"columns": ["text"]}, "columns: expected a dict, got list"),
        ({"on_error": "Stop"}, "on_error = 'Stop': expected 'stop' or 'skip'"),
    ],
)
def test_other_values_are_one_line(arguments, message):
    with pytest.raises(SettingsError) as error:
        function(**{"path": "a", **arguments})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (PretrainingResult(Path("run"), Metrics([])), "its model_directory"),
        (SimpleNamespace(path=Path("model")), "its path"),
        (Tokenizer(Vocabulary(SPECIAL_TOKENS)), "the directory that it is saved in"),
    ],
)
def test_a_result_in_place_of_its_path_gets_advice(value, advice):
    with pytest.raises(SettingsError, match=rf"path: expected a path, got \w+; pass {advice}$"):
        function(value)


def test_a_long_value_is_shortened_to_one_line():
    with pytest.raises(SettingsError) as error:
        function("a", size="a\n" * 3000)
    assert len(str(error.value)) < 200
    with pytest.raises(SettingsError) as error:
        function("a", size=np.zeros((50, 50)))
    assert "\n" not in str(error.value)


def test_any_object_with_a_path_is_a_path(tmp_path):
    (tmp_path / "a.txt").touch()
    (entry,) = os.scandir(tmp_path)
    assert function(entry)["path"] == str(tmp_path / "a.txt")


def test_a_tilde_is_the_home_folder_in_strings_only(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert function("~/run")["path"] == "/home/me/run"
    assert function("s3://~/run")["path"] == "s3://~/run"
    assert function(Path("~/run"))["path"] == Path("~/run")
    assert function("a", rest="~/run")["rest"] == "~/run"


@pytest.mark.parametrize("value", [np.array([True, False]), [True], "yes", None, 2, torch.tensor(True)])
def test_a_flag_that_is_none_is_one_line(value):
    with pytest.raises(SettingsError, match=r"^normalize=.*: expected True or False$"):
        check_flag("normalize", value)
    tokenizer = Tokenizer(Vocabulary(SPECIAL_TOKENS))
    calls = [
        lambda: Tokenizer(Vocabulary(SPECIAL_TOKENS), tokenize_chinese_chars=value),
        lambda: tokenizer.encode_batch("a", add_special_tokens=value),
        lambda: tokenizer.decode([0], skip_special_tokens=value),
    ]
    for call in calls:
        with pytest.raises(SettingsError, match=r"^\w+=.*: expected True or False$"):
            call()


@pytest.mark.parametrize("value", [True, False, 0, 1, np.True_])
def test_flags_of_numpy_are_flags(value):
    tokenizer = Tokenizer(Vocabulary(SPECIAL_TOKENS))
    assert tokenizer.decode([2], skip_special_tokens=value) == ("" if value else "[CLS]")


@pytest.mark.parametrize("ids", [None, 3, "abc", [1.5], [[1, 2]]])
def test_token_ids_are_a_list_of_integers(ids):
    tokenizer = Tokenizer(Vocabulary(SPECIAL_TOKENS))
    with pytest.raises(DataError, match=r"^ids: expected a list of integers"):
        tokenizer.decode(ids)
    assert tokenizer.decode(torch.tensor([2, 4]), skip_special_tokens=False) == "[CLS] [MASK]"


def test_a_string_in_place_of_a_list_is_one_word():
    tokenizer = Tokenizer(Vocabulary([*SPECIAL_TOKENS, "[E1]"]), never_split="he's", added_tokens="[E1]")
    assert tokenizer.never_split == ("he's",)
    assert [token.content for token in tokenizer.added_tokens] == ["[E1]"]


def test_a_tokenizer_needs_a_vocabulary_with_its_added_tokens():
    with pytest.raises(SettingsError, match=r"^vocabulary: .*, got str; load it with Tokenizer\.load$"):
        Tokenizer("tokenizer")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"^vocabulary: expected a Vocabulary, got list; write Voc"):
        Tokenizer(list(SPECIAL_TOKENS))
    with pytest.raises(
        SettingsError, match=r"^added_tokens: add these to the vocabulary first: \[E1\], \[E2\]$"
    ):
        Tokenizer(Vocabulary(SPECIAL_TOKENS), added_tokens=["[E1]", "[E2]"])


@pytest.mark.parametrize("path", [None, 3, b"tokenizer"])
def test_a_tokenizer_is_loaded_from_a_path(path):
    with pytest.raises(SettingsError, match=r"^path: expected a path, got"):
        Tokenizer.load(path)


def test_a_wrong_call_is_a_type_error_that_names_the_function():
    with pytest.raises(TypeError, match=r"^function\(\) missing 1 required positional argument: 'path'"):
        function()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": "a.csv", "eval_dataset": "b.csv", "out": "run"}, "'eval_dataset'; did you mean 'dev'?"),
        ({"train": "a.csv", "dev": "b.csv", "output_dir": "run"}, "'output_dir'; did you mean 'out'?"),
    ],
)
def test_an_argument_named_as_in_another_library_gets_advice(arguments, message):
    with pytest.raises(SettingsError, match=re.escape(f"unknown argument {message}")):
        bertie.finetune("model", **arguments)


def test_the_public_functions_are_checked(tmp_path):
    tokenizer = bertie.Tokenizer(
        bertie.text.vocabulary.Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    )
    file, saved = tmp_path / "a.txt", tmp_path / "tokenizer"
    file.write_text("one two\n")
    tokenizer.save(saved)
    calls = [
        ("on_error", lambda: bertie.learn_vocabulary(file, on_error="Stop")),
        ("workers", lambda: bertie.learn_vocabulary(file, workers=0)),
        ("workers", lambda: bertie.prepare_part(file, 1, 1, tokenizer=saved, out=tmp_path / "c", workers=-1)),
        ("merges", lambda: bertie.learn_vocabulary(file, merges="bpe")),
        ("format", lambda: bertie.learn_vocabulary(file, format="text")),
        ("tokenizer", lambda: bertie.prepare(file, tokenizer=tokenizer, out=tmp_path / "corpus")),
        ("out", lambda: bertie.prepare(file, tokenizer=tmp_path, out=None)),
        ("out", lambda: bertie.pretrain("tiny", corpus=tmp_path, out=None)),
        ("model", lambda: bertie.finetune(tokenizer, train=[{"text": "a", "label": "b"}])),
        ("precision", lambda: bertie.evaluate(tmp_path, [], precision="float16")),
        ("device", lambda: bertie.load(tmp_path, device=0)),
        ("device", lambda: bertie.evaluate_blimp(tmp_path, tmp_path, device=0)),
        ("restarts", lambda: bertie.reproduce("table1", model="m", data="d", out="o", restarts="many")),
    ]
    for name, call in calls:
        with pytest.raises(SettingsError, match=rf"^{name}(:| =) .*expected") as error:
            call()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "corpus").exists()
