"""Pre-train a model on a prepared corpus."""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pydantic

from bertie.api.arguments import (
    PathLike,
    check_command,
    nest_settings,
    recall_arguments,
    record_arguments,
    recorded_arguments,
    require_arguments,
)
from bertie.api.results import Metrics, PretrainingResult
from bertie.base.arguments import checked
from bertie.base.errors import DataError, SettingsError
from bertie.base.outputs import check_not_input
from bertie.base.settings import SETTINGS_FILE, Tree, read_settings, resolve
from bertie.base.storage import as_path
from bertie.corpus.prepared import Corpus
from bertie.corpus.remote_corpora import fetch_corpus
from bertie.model.formats.directory import TRAINING_ONLY_KEYS, find_new_entries, read_metadata
from bertie.recipes import read_recipe
from bertie.reports.pretraining import write_report
from bertie.text.tokenizer import Tokenizer
from bertie.training import pretraining
from bertie.training.checkpoints import RunDirectory
from bertie.training.distributed import is_main_process
from bertie.training.metrics_file import read_metrics, run_facts
from bertie.training.planning import Plan
from bertie.training.planning import plan_pretraining as plan
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.resuming import check_changes, continues_job, lock_run

BLIMP_FILE = "blimp.json"  # in the directory of a run, written by `evaluate_blimp`
# The numbers that the report shows, by the kind of row.
REPORTED = {
    "train": ["tokens", "seconds"],
    "evaluation": ["perplexity", "unigram_loss", "unigram_accuracy"],
}


class _RunScores(pydantic.BaseModel):
    """The contents of a run's blimp.json: `BlimpScores` and the step of the model."""

    step: int
    accuracy: float
    pairs: int
    paradigms: dict[str, float]
    phenomena: dict[str, float]


@checked
def pretrain(
    recipe: PathLike | Mapping[str, Any] | None = None,
    *,
    corpus: PathLike | None = None,
    out: PathLike,
    init: PathLike | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    **more_settings: Any,
) -> PretrainingResult:
    """Pre-train a BERT on a prepared corpus, like `bertie pretrain`.

    Args:
        recipe: the name of a recipe that comes with bertie ("tiny-laptop", "base", …), the path of a .toml
            file, or a dict of settings.
        corpus: a directory that `prepare` wrote, or its URL; a corpus of a URL is copied to the cache.
        out: the run's directory; the model will be in `out`/model and the report in `out`/report.html.
        init: a model directory to start from; random weights if not given. The sizes of the network come
            from this model, not from the recipe.
        resume: continue the run in `out` from its newest checkpoint. The run has recorded its settings
            and its arguments, so nothing else is needed; settings that affect only the hardware and the
            files that are kept may change. torchrun's restarts resume without it.
        settings: changes to the recipe, such as `{"batch_size": 64, "optimizer.learning_rate": 1e-3}`.
            `PretrainingResult` has an example of a short trial.
        **more_settings: the same as keywords: `batch_size=64`, `optimizer={"learning_rate": 1e-3}`.

    Returns:
        The run, with its metrics as a table and `load()` for the model.

    Raises:
        SettingsError: a setting is unknown or does not fit the corpus, or `out` holds another run.
        DataError: the corpus is missing or damaged.
        ModelError: `init` does not fit the settings.
        Stopped: SIGINT, SIGTERM or SIGHUP came; the run is saved and can be resumed.

    Example:
        >>> run = bertie.pretrain("recipe.toml", corpus="corpus", out="run", batch_size=8)
        >>> run.metrics["step"][-1]
        6
        >>> model = run.load()
        >>> more = bertie.pretrain("recipe.toml", corpus="corpus", out="more", init="run/model")
    """
    output = Path(out)
    given = {"corpus": corpus, "init": init}
    is_main = is_main_process()
    with lock_run(output) if is_main else nullcontext():
        resume = resume or continues_job(output)
        start = _prepare_start(recipe, output, given, resume, nest_settings(settings, more_settings))
        pretraining.pretrain(
            start.settings,
            start.corpus,
            output,
            init=start.init,
            resume=resume,
            arguments=record_arguments(start.arguments),
        )
        if is_main:
            write_run_report(output)
    return PretrainingResult(output, Metrics(read_metrics(output / "metrics.jsonl")))


@checked
def plan_pretraining(
    recipe: PathLike | Mapping[str, Any] | None = None,
    *,
    corpus: PathLike | None = None,
    out: PathLike,
    init: PathLike | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    **more_settings: Any,
) -> Plan:
    """Estimate time and memory of `pretrain` with the same arguments; write nothing.

    Args:
        recipe, corpus, out, init, resume, settings, **more_settings: as in `pretrain`.

    Returns:
        The plan, whose text is what `bertie pretrain --dry-run` prints.

    Raises:
        SettingsError, DataError, ModelError: as in `pretrain`; the files of the corpus are not verified.
    """
    output = Path(out)
    given = {"corpus": corpus, "init": init}
    start = _prepare_start(recipe, output, given, resume, nest_settings(settings, more_settings))
    return plan(start.settings, start.corpus, output, init=start.init, resume=resume)


def write_run_report(run: Path) -> None:
    """Write RUN/report.html from the files of a pre-training run."""
    settings_text = (run / SETTINGS_FILE).read_text(encoding="utf-8")
    metrics = read_metrics(run / "metrics.jsonl", REPORTED)
    facts = _describe(recorded_arguments(run)) | run_facts(run, metrics)
    write_report(run / "report.html", metrics, settings_text, facts, _read_blimp_scores(run))


def _read_blimp_scores(run: Path) -> dict[str, Any] | None:
    """Return the contents of a run's blimp.json; None if there is no such file.

    Raises:
        DataError: the file is damaged.
    """
    file = run / BLIMP_FILE
    if not file.exists():
        return None
    try:
        return _RunScores.model_validate_json(file.read_bytes()).model_dump()
    except pydantic.ValidationError:
        raise DataError(
            f"{file}: damaged; delete the file, and run bertie evaluate --task blimp --add-to-report again"
        ) from None


def _describe(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about a run's arguments for the head of its report."""
    facts = {"recipe": arguments["recipe"]} if "recipe" in arguments else {}
    if "corpus" in arguments:
        facts["corpus"] = arguments["corpus"]
        with suppress(DataError):  # the corpus may be gone
            counts = Corpus.open(fetch_corpus(as_path(arguments["corpus"]))).manifest.train
            facts["corpus"] += f", {counts.documents:,} documents, {counts.tokens:,} tokens"
    if "init" in arguments:
        facts["initial model"] = arguments["init"]
    return facts


class _Start(NamedTuple):
    """What a run starts from.

    Attributes:
        settings: the resolved settings
        corpus: the corpus directory
        init: the directory with the initial weights; None for random ones, and if a checkpoint has weights
        arguments: the arguments to record
    """

    settings: PretrainingSettings
    corpus: Path
    init: Path | None
    arguments: Tree


def _prepare_start(
    recipe: PathLike | Mapping[str, Any] | None,
    output: Path,
    given: Mapping[str, Any],
    resume: bool,
    changes: Tree,
) -> _Start:
    """Resolve the settings and arguments of a new or resumed run in `output`."""
    check_command(output, "pretrain")
    check_changes(PretrainingSettings, changes)
    arguments = recall_arguments(output, given, {}) if resume else dict(given)
    require_arguments(output, arguments, resume, corpus="the corpus directory")
    corpus = fetch_corpus(as_path(arguments["corpus"]))
    check_not_input(output, [corpus, *([Path(arguments["init"])] if arguments["init"] else [])])
    has_weights = resume and bool(RunDirectory(output).checkpoints())
    init = None if has_weights or arguments["init"] is None else Path(arguments["init"])
    if recipe is None and resume:
        file = output / SETTINGS_FILE
        settings = resolve(PretrainingSettings, read_settings(file), changes, source=str(file))
    elif recipe is None:
        raise SettingsError(
            "no recipe; name one, such as tiny-laptop, or the path of a .toml file (in Python, also a dict)"
        )
    elif recipe == "continue" and arguments["init"] is None:
        raise SettingsError("recipe continue: no model to continue; name its directory (--init, init=…)")
    else:
        initial = None if arguments["init"] is None else Path(arguments["init"])
        settings = resolve_recipe(recipe, changes, initial, corpus)
    if isinstance(recipe, str | Path):
        arguments["recipe"] = str(recipe)
    elif resume:  # only for the report: the settings are in settings.toml
        arguments["recipe"] = recorded_arguments(output).get("recipe")
    return _Start(settings, corpus, init, arguments)


def resolve_recipe(
    recipe: PathLike | Mapping[str, Any], changes: Mapping[str, Any], init: Path | None, corpus: Path
) -> PretrainingSettings:
    """Return the settings of a recipe with changes.

    With `init`, they are for the network of that model. The vocabulary of that network grows if the tokenizer
    of the corpus extends the model's.

    Raises:
        SettingsError: a setting is unknown or impossible, the recipe names a corpus, or a phase is longer
            than the model in `init`.
        DataError: the corpus is missing or damaged.
        ModelError: there is no model in `init`, or the tokenizer of the corpus does not extend its.
    """
    if isinstance(recipe, Mapping):
        layer, source = nest_settings(recipe), "recipe"
    else:
        layer, source = read_recipe(str(recipe)), str(recipe)
    if "corpus" in layer:  # the former name of `corpus_fingerprint`, which the run fills in
        raise SettingsError(f"{source}: a recipe names no corpus; leave it out, and pass --corpus (corpus=…)")
    if init is None:
        return resolve(PretrainingSettings, layer, changes, source=source)
    network = read_metadata(init).config.model_dump(exclude_none=True)
    tokenizer = Tokenizer.load(Corpus.open(corpus).tokenizer_directory)
    if find_new_entries(init, tokenizer):
        network["vocab_size"] = max(network["vocab_size"], len(tokenizer.vocabulary))
    kept = {key: value for key, value in layer.get("model", {}).items() if key in TRAINING_ONLY_KEYS}
    model = {"model": network | kept}
    settings = resolve(PretrainingSettings, layer, model, changes, source=source)
    positions = network["max_position_embeddings"]
    for index, phase in enumerate(settings.phases):
        if phase.max_seq_length > positions:
            key = f"phases.{index}.max_seq_length"
            raise SettingsError(
                f"{init}: the model has {positions} positions, but {key} is {phase.max_seq_length}; "
                f"pass --set {key}={positions} (settings={{{key!r}: {positions}}})"
            )
    return settings
