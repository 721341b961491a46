"""Model directories in sentence-transformers' layout: how a text is embedded.

They are model directories with more files: `modules.json` lists the steps (transformer, pooling,
perhaps normalization), `1_Pooling/config.json` names the pooling, and `sentence_bert_config.json`
and `config_sentence_transformers.json` hold settings.
"""

from pathlib import Path
from typing import Literal, NamedTuple, get_args

import pydantic

from bertie.base.arguments import check_flag
from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import read_json, read_json_object, write_json
from bertie.base.schemas import Foreign, check_foreign, read_foreign, shorten
from bertie.text.tokenizer_files import CONFIG_FILE
from bertie.text.tokenizer_schemas import read_tokenizer_files

Pooling = Literal["mean", "cls", "max"]
POOLINGS = ", ".join(get_args(Pooling))

MODULES_FILE = "modules.json"
TRANSFORMER_CONFIG_FILE = "sentence_bert_config.json"
SENTENCE_TRANSFORMERS_CONFIG_FILE = "config_sentence_transformers.json"
# Keys of the pooling module until sentence-transformers 5, which could concatenate several poolings.
LEGACY_POOLING_KEYS: dict[Pooling, str] = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}


class EmbeddingConfig(NamedTuple):
    """How a model embeds texts.

    Attributes:
        pooling: how the vectors of a text's tokens are combined into one
        normalize: whether vectors are scaled to length 1
        max_seq_length: maximum number of tokens of a text, with [CLS] and [SEP]; longer texts are
            truncated. None for the model's number of positions
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_seq_length: int | None = None

    def override(self, pooling: Pooling | None, normalize: bool | None) -> "EmbeddingConfig":
        """Return a copy with `pooling` and `normalize` replaced, unless they are None.

        Raises:
            SettingsError: `pooling` is unknown, or `normalize` is not a flag.
        """
        if not isinstance(pooling, str | None) or pooling not in (None, *get_args(Pooling)):
            raise SettingsError(f"pooling={shorten(pooling)}: unknown pooling; use one of {POOLINGS}")
        normalize = self.normalize if normalize is None else normalize
        check_flag("normalize", normalize)
        return self._replace(pooling=pooling or self.pooling, normalize=normalize)


class Module(Foreign):
    """An entry of modules.json."""

    type: str
    path: str

    @pydantic.field_validator("path")
    @classmethod
    def _stay_inside(cls, path: str) -> str:
        if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
            raise ValueError("not a folder inside the model's directory")
        return path


class TransformerSettings(Foreign):
    """The content of sentence_bert_config.json."""

    do_lower_case: bool | None = None
    max_seq_length: float | None = pydantic.Field(None, allow_inf_nan=False)


class SentenceTransformersSettings(Foreign):
    """The content of config_sentence_transformers.json."""

    default_prompt_name: str | None = None


def find_transformer_folder(directory: Path) -> Path:
    """Return the folder with the files of the transformer.

    This is the folder that `modules.json` names first, or `directory` if there is no such file.

    Raises:
        DataError: `modules.json` is not JSON.
        ModelError: `modules.json` is not a list of modules, or a path in it leaves the directory.
    """
    modules = _read_modules(directory)
    return directory / modules[0].path if modules else directory


def read_embedding_config(directory: Path, max_position_embeddings: int) -> EmbeddingConfig | None:
    """Read how a directory in sentence-transformers' layout embeds texts.

    Return None for a directory in another layout.

    Args:
        directory: a model directory.
        max_position_embeddings: the number of positions of the model, an upper limit of
            `max_seq_length`.

    Raises:
        DataError: a file is not JSON.
        ModelError: the directory has a module, a pooling or a setting that bertie does not support.
    """
    modules = _read_modules(directory)
    if not modules:
        return None
    file = directory / MODULES_FILE
    kinds = [module.type.split(".")[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{file}: unsupported modules {' → '.join(kinds)}; bertie supports Transformer → Pooling, "
            f"optionally followed by Normalize"
        )
    folder = find_transformer_folder(directory)
    settings = read_foreign(TransformerSettings, folder / TRANSFORMER_CONFIG_FILE)
    tokenizer, _ = read_tokenizer_files(folder)
    if settings.do_lower_case and tokenizer.do_lower_case is False:
        raise ModelError(
            f"{folder / TRANSFORMER_CONFIG_FILE}: do_lower_case is true, but in tokenizer_config.json it is "
            f"false; make the two agree"
        )
    others = read_foreign(SentenceTransformersSettings, directory / SENTENCE_TRANSFORMERS_CONFIG_FILE)
    prompt = others.default_prompt_name
    if prompt is not None:
        raise ModelError(
            f"{directory / SENTENCE_TRANSFORMERS_CONFIG_FILE}: default_prompt_name is {prompt!r}, but bertie "
            f"puts no prompt before texts by default; use sentence-transformers for this model"
        )
    # sentence-transformers 6 writes the limit only to the tokenizer's file, where "no limit" is 10^30.
    length = max_position_embeddings
    for name, key, limit in (
        (CONFIG_FILE, "model_max_length", tokenizer.model_max_length),
        (TRANSFORMER_CONFIG_FILE, "max_seq_length", settings.max_seq_length),
    ):
        if limit and limit < 2:  # [CLS] and [SEP]
            raise ModelError(f"{folder / name}: {key} is {limit:g}, not a number of tokens of at least 2")
        length = int(limit or length)
    return EmbeddingConfig(
        _read_pooling(directory / modules[1].path / "config.json"),
        normalize=len(kinds) == 3,
        max_seq_length=min(length, max_position_embeddings),
    )


def write_embedding_config(directory: Path, config: EmbeddingConfig, hidden_size: int) -> None:
    """Write the files that any version of sentence-transformers needs to embed texts."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if config.normalize:
        modules.append(("2_Normalize", "Normalize"))
    write_json(
        directory / MODULES_FILE,
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
    )
    modes = {key: pooling == config.pooling for pooling, key in LEGACY_POOLING_KEYS.items()}
    write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size, **modes})
    settings = {"max_seq_length": config.max_seq_length, "do_lower_case": False}
    write_json(directory / TRANSFORMER_CONFIG_FILE, settings)


def _read_pooling(path: Path) -> Pooling:
    values = read_json_object(path)
    if not values:
        raise ModelError(f"{path}: missing or empty; download the model again")
    modes = values.get("pooling_mode") or [
        key for key, enabled in values.items() if key.startswith("pool") and enabled
    ]
    for pooling in get_args(Pooling):
        if modes in (pooling, [pooling], [LEGACY_POOLING_KEYS[pooling]]):
            return pooling  # type: ignore[no-any-return]
    raise ModelError(f"{path}: unsupported pooling {shorten(modes)}; bertie supports {POOLINGS}")


def _read_modules(directory: Path) -> tuple[Module, ...]:
    """Return the entries of `modules.json`, or none if there is no such file."""
    file = directory / MODULES_FILE
    if not file.exists():
        return ()
    modules: tuple[Module, ...] = check_foreign(tuple[Module, ...], read_json(file), file)
    return modules
