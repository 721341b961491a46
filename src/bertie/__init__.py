"""bertie: the whole of BERT, from raw text to a served model.

    import bertie

    bertie.learn_vocabulary("text/", out="tokenizer", size=8192)
    bertie.prepare("text/", tokenizer="tokenizer", out="corpus")
    run = bertie.pretrain("tiny-laptop", corpus="corpus", out="run")
    run.load().fill_mask("The capital of France is [MASK].")

docs/paper.md names the file that implements each section and table of the paper.

Importing bertie imports neither torch nor numba; each name below is loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bertie.base.environment import set_torch_environment

if TYPE_CHECKING:
    from bertie.api.blimp import evaluate_blimp
    from bertie.api.conversion import convert, export
    from bertie.api.corpus import join_parts, prepare, prepare_part
    from bertie.api.evaluation import evaluate
    from bertie.api.finetuning import finetune
    from bertie.api.pretraining import pretrain
    from bertie.api.search import search
    from bertie.api.vocabulary import extend_tokenizer, learn_vocabulary
    from bertie.base.errors import BertieError, DataError, ModelError, SettingsError
    from bertie.corpus.prepared import Corpus
    from bertie.inference.predictor import Predictor, load
    from bertie.model.config import BertConfig
    from bertie.reproduction.checkpoint_runner import reproduce
    from bertie.text.tokenizer import Tokenizer
    from bertie.training.signals import Stopped

__version__ = "0.1.0"

set_torch_environment()  # at once, because scripts import torch after bertie

# The module that defines each public name.
_MODULES = {
    "Tokenizer": "text.tokenizer",
    "learn_vocabulary": "api.vocabulary",
    "extend_tokenizer": "api.vocabulary",
    "prepare": "api.corpus",
    "prepare_part": "api.corpus",
    "join_parts": "api.corpus",
    "Corpus": "corpus.prepared",
    "pretrain": "api.pretraining",
    "finetune": "api.finetuning",
    "search": "api.search",
    "evaluate": "api.evaluation",
    "reproduce": "reproduction.checkpoint_runner",
    "evaluate_blimp": "api.blimp",
    "convert": "api.conversion",
    "export": "api.conversion",
    "load": "inference.predictor",
    "Predictor": "inference.predictor",
    "BertConfig": "model.config",
    "BertieError": "base.errors",
    "SettingsError": "base.errors",
    "DataError": "base.errors",
    "ModelError": "base.errors",
    "Stopped": "training.signals",
}

__all__ = [
    "BertConfig",
    "BertieError",
    "Corpus",
    "DataError",
    "ModelError",
    "Predictor",
    "SettingsError",
    "Stopped",
    "Tokenizer",
    "convert",
    "evaluate",
    "evaluate_blimp",
    "export",
    "extend_tokenizer",
    "finetune",
    "join_parts",
    "learn_vocabulary",
    "load",
    "prepare",
    "prepare_part",
    "pretrain",
    "reproduce",
    "search",
]


if not TYPE_CHECKING:  # for a type checker, every name would exist

    def __getattr__(name: str) -> Any:
        """Import a public name on first use (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module 'bertie' has no attribute {name!r}")
        value = getattr(import_module(f"bertie.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
