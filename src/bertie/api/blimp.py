"""Score a pre-trained model on BLiMP's minimal pairs.

This needs no labels and no fine-tuning.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from bertie.api.arguments import PathLike
from bertie.api.pretraining import BLIMP_FILE, REPORTED, write_run_report
from bertie.base.arguments import checked
from bertie.base.errors import ModelError, SettingsError
from bertie.base.files import write_json
from bertie.base.progress import Progress
from bertie.base.settings import SETTINGS_FILE
from bertie.inference.likelihood import (
    CAUSAL_ARCHITECTURE,
    MASKED_LM_ARCHITECTURES,
    count_scored_tokens,
    encode_sentences,
    log_likelihoods,
)
from bertie.model.engines.loading import load_engine
from bertie.tasks.blimp import BlimpScores, read_blimp, score
from bertie.training.metrics_file import read_metrics
from bertie.training.resuming import lock_run


@checked
def evaluate_blimp(
    model: PathLike,
    data: PathLike,
    *,
    add_to_report: bool = False,
    device: str = "auto",
    precision: Literal["float32", "bfloat16", "int8"] = "float32",
) -> BlimpScores:
    """Score a pre-trained model on BLiMP, like `bertie evaluate --task blimp`.

    A pair of sentences is right if the acceptable one has the higher log-likelihood. For a masked
    LM this is the pseudo-log-likelihood of Salazar et al. (arXiv:1910.14659), with one token masked
    at a time; a left-to-right model has the log-likelihood itself.

    Args:
        model: a model directory with a masked-LM head, or of a left-to-right model.
        data: the folder of BLiMP's .jsonl files, or one of them; they may be compressed.
        add_to_report: write the scores to the run that trained the model, as blimp.json, and show
            them in its report.html. `model` must be RUN/model.
        device, precision: where the model computes, and the precision of its matrix products.

    Returns:
        The accuracy in percent: over all pairs, by paradigm and by phenomenon. Files that the
        folder lacks do not count.

    Raises:
        DataError: `data` has no such files, a line is malformed, or a sentence is too long.
        ModelError: the model has no head that predicts tokens, or cannot be loaded.
        SettingsError: with `add_to_report`, `model` is not the model of a run.

    Example:
        >>> scores = bertie.evaluate_blimp("run/model", "blimp")
        >>> 0 <= scores.accuracy <= 100
        True
    """
    path = Path(model)
    run = _find_run(path) if add_to_report else None
    paradigms = read_blimp(Path(data))
    engine, metadata = load_engine(path, device, precision)
    if engine.architecture not in (*MASKED_LM_ARCHITECTURES, CAUSAL_ARCHITECTURE):
        raise ModelError(
            f"{path}: the model is a {engine.architecture}, which predicts no tokens; BLiMP needs a model "
            f"with its masked-LM head, as pre-training writes it to RUN/model"
        )
    sentences = [sentence for paradigm in paradigms for sentence in paradigm.good + paradigm.bad]
    sequences = encode_sentences(sentences, metadata.tokenizer, metadata.config.max_position_embeddings)
    with lock_run(run) if run else nullcontext():
        total = int(count_scored_tokens(sequences).sum())
        with Progress("BLiMP", total, "tokens") as progress:
            mask_id = metadata.tokenizer.vocabulary.mask_id
            values = log_likelihoods(engine, sequences, mask_id, progress)
        scores = score(paradigms, values)
        if run:
            step = next(row["step"] for row in reversed(read_metrics(run / "metrics.jsonl")))
            write_json(run / BLIMP_FILE, {"step": step, **scores._asdict()})
            write_run_report(run)
    return scores


def _find_run(model: Path) -> Path:
    """Return the directory of the run that wrote a model.

    Raises:
        SettingsError: the model is not in the directory of a run.
        DataError: the run lacks rows of metrics that its report shows.
    """
    run = model.parent
    if not (run / SETTINGS_FILE).exists() or not (run / "metrics.jsonl").exists():
        raise SettingsError(
            f"{model}: not the model of a run, so there is no report to add to; "
            f"pass RUN/model, or omit --add-to-report (add_to_report=False)"
        )
    read_metrics(run / "metrics.jsonl", REPORTED)  # before the sentences are scored
    return run
