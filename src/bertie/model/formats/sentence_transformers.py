"""What sentence-transformers adds to a model directory: how its tokens become one vector."""

from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import read_json, read_json_object, write_json

Pooling = Literal["mean", "cls", "max"]

MODULES_FILE, SETTINGS_FILE = "modules.json", "sentence_bert_config.json"
USE_FILE = "config_sentence_transformers.json"
# The names of `Pooling` until sentence-transformers 5, which could add vectors of several kinds.
OLD_NAMES: dict[Pooling, str] = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}


class Embedding(NamedTuple):
    """How texts are embedded.

    pooling         what becomes of the vectors of a text's tokens
    normalize       whether the result has length 1
    max_seq_length  where a text is cut; None at the model's last position
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_seq_length: int | None = None

    def but(self, pooling: Pooling | None, normalize: bool | None) -> "Embedding":
        """With what is given in place of its own.

        Raises:
            SettingsError: there is no such pooling.
        """
        if pooling not in (None, *get_args(Pooling)):
            raise SettingsError(f"pooling={pooling!r}: it is one of {', '.join(get_args(Pooling))}")
        normalize = self.normalize if normalize is None else normalize
        return self._replace(pooling=pooling or self.pooling, normalize=normalize)


def transformer_folder(directory: Path) -> Path:
    """Where the model itself stands: the directory, or the folder in it that `modules.json` names.

    Raises:
        DataError: `modules.json` is not JSON.
        ModelError: it does not name the modules.
    """
    modules = _modules(directory)
    return directory / modules[0]["path"] if modules else directory


def read_embedding(directory: Path, longest: int) -> Embedding | None:
    """Read how a directory of sentence-transformers embeds; None where it is not one.

    `longest` is how many positions the model has.

    Raises:
        DataError: a file is not JSON.
        ModelError: it asks for what bertie cannot do.
    """
    modules = _modules(directory)
    if not modules:
        return None
    where = directory / MODULES_FILE
    kinds = [module["type"].split(".")[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(f"{where}: {' → '.join(kinds)}; bertie knows Transformer → Pooling (→ Normalize)")
    folder = transformer_folder(directory)
    settings = read_json_object(folder / SETTINGS_FILE)
    tokenizer = read_json_object(folder / "tokenizer_config.json")
    if settings.get("do_lower_case") and tokenizer.get("do_lower_case") is False:
        raise ModelError(f"{folder / SETTINGS_FILE}: do_lower_case, but the tokenizer is a cased one")
    prompt = read_json_object(directory / USE_FILE).get("default_prompt_name")
    if prompt is not None:
        raise ModelError(f"{directory}: puts the prompt {prompt!r} before each text, which bertie does not")
    # Since version 6 the tokenizer alone says where a text is cut, and may say 10^30.
    length = settings.get("max_seq_length") or tokenizer.get("model_max_length") or longest
    pooling = _pooling(directory / modules[1]["path"] / "config.json")
    return Embedding(pooling, normalize=len(kinds) == 3, max_seq_length=min(length, longest))


def write_embedding(directory: Path, embedding: Embedding, hidden_size: int) -> None:
    """Write what makes a model directory one of sentence-transformers, any version of which reads it."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if embedding.normalize:
        modules.append(("2_Normalize", "Normalize"))
    write_json(
        directory / MODULES_FILE,
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
    )
    modes = {name: pooling == embedding.pooling for pooling, name in OLD_NAMES.items()}
    write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size, **modes})
    settings = {"max_seq_length": embedding.max_seq_length, "do_lower_case": False}
    write_json(directory / SETTINGS_FILE, settings)


def _pooling(path: Path) -> Pooling:
    values = read_json(path)
    modes = values.get("pooling_mode") or [
        name for name, on in values.items() if name.startswith("pool") and on
    ]
    for pooling in get_args(Pooling):
        if modes in (pooling, [pooling], [OLD_NAMES[pooling]]):
            return pooling  # type: ignore[no-any-return]
    raise ModelError(f"{path}: pooling by {modes}; bertie knows {', '.join(get_args(Pooling))}")


def _modules(directory: Path) -> list[dict[str, Any]]:
    file = directory / MODULES_FILE
    modules = read_json(file) if file.exists() else []
    known = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    if not known or not all({"path", "type"} <= module.keys() for module in modules):
        raise ModelError(f"{file}: not a list of modules, each with a path and a type; fetch it once more")
    return modules
