"""`bertie reproduce`: run a table of the paper."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertie.commands.options import (
    Device,
    NoVerify,
    Workers,
    exit_when_stopped,
    local_path_option,
    path_option,
    resumed_by_same_command,
)

if TYPE_CHECKING:
    from bertie.reproduction.sources import TaskExamples
    from bertie.reproduction.tables import Scale


def reproduce(
    table: Annotated[str, typer.Argument(help="table1 to table8, figure5, … or the path of a .toml file.")],
    data: Annotated[
        Path,
        local_path_option("The folder of the official files: DIR/glue, DIR/squad, DIR/swag, DIR/ner."),
    ],
    out: Annotated[Path, path_option("The directory to write; several tables can share it.")],
    model: Annotated[
        Path | None,
        local_path_option("table1 to table4 and table7: the model to fine-tune, instead of --text."),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            min=0,
            help="With --model: cap the training examples to take at most this number of minutes. 0: no cap.",
        ),
    ] = 0,
    restarts: Annotated[
        int | None,
        typer.Option(min=1, help="With --model: runs of each setting; by default 1, and 5 in table7."),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(help="paper, laptop (the default without --model), or the path of a .toml file."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        local_path_option("Text to pre-train on: files or folders; may be repeated."),
    ] = None,
    corpus: Annotated[
        Path | None, local_path_option("Instead of --text: a corpus that `bertie prepare` wrote.")
    ] = None,
    workers: Workers = None,
    device: Device = "auto",
    no_verify: NoVerify = False,
) -> None:
    """Run a table of the paper and compare the numbers.

    With --model, fine-tune this model on every task of the table that is in --data.
    The same command resumes a run that was stopped or killed, and retries failed cells.
    Two processes with the same --out share the work; two tables share their pre-training runs.
    """
    from bertie.base.errors import SettingsError
    from bertie.reproduction.checkpoint_tables import is_checkpoint_table
    from bertie.training.distributed import require_one_process

    require_one_process("reproduce")
    if model is None and is_checkpoint_table(table):
        raise SettingsError(f"{table} fine-tunes a given model; name it with --model DIR")
    if model is not None:
        if text or corpus:
            raise SettingsError("--model is fine-tuned as it is; leave out --text and --corpus")
        _run_from_model(table, model, data, out, budget, restarts, scale or "paper", device)
        return
    if budget or restarts:
        raise SettingsError("--budget and --restarts are for --model; a scale sets the seeds")
    if bool(text) == (corpus is not None):
        raise SettingsError("give either --text FOLDER or --corpus CORPUS")
    _run(table, data, out, scale or "laptop", text or [], corpus, workers, device)


def _run_from_model(
    table: str,
    model: Path,
    data: Path,
    out: Path,
    budget: float,
    restarts: int | None,
    scale: str,
    device: str,
) -> None:
    """Run a table from a given model."""
    from bertie.reproduction.checkpoint_runner import reproduce as reproduce_from_model

    with exit_when_stopped(lambda: resumed_by_same_command(out)):
        scores = reproduce_from_model(
            table,
            model=model,
            data=data,
            out=out,
            budget=budget,
            restarts=restarts,
            scale=scale,
            device=device,
        )
    for name, score in scores.items():
        print(f"{name:<24} {score:.2f}")
    print(out / f"{Path(table).stem}.md")


def _run(
    table: str,
    data: Path,
    out: Path,
    scale: str,
    text: list[Path],
    corpus: Path | None,
    workers: int | None,
    device: str,
) -> None:
    """Run a table that pre-trains its models."""
    from bertie.base.files import check_creatable
    from bertie.base.outputs import check_not_input
    from bertie.reproduction.report import write_report
    from bertie.reproduction.runner import Runner
    from bertie.reproduction.sources import Sources
    from bertie.reproduction.tables import BLIMP, UNCASED_NOTE, read_scale, read_table

    check_creatable(out / "cells", out)
    check_not_input(out, [data, corpus, *text])
    sizes = read_scale(scale)
    rows = read_table(table, sizes)
    tasks = {name: _read_task(name, data, sizes) for name in rows.task_names()}
    name = Path(table).stem
    folders = {source: data / sizes.folders.get(source, source) for source in ("ner", BLIMP)}
    with exit_when_stopped(lambda: resumed_by_same_command(out)):
        prepared = corpus if corpus is not None else _corpus_directory(text, out, sizes, rows.cased)
        sources = Sources(sizes, prepared, tasks, folders)
        runner = Runner(name, rows, sizes, sources, out, device)
        if corpus is None:
            _prepare(text, prepared, out, sizes, rows.cased, workers)
        notes = [UNCASED_NOTE] if rows.cased and sources.tokenizer.lowercase else []
        for note in notes:
            print(f"warning: {prepared}: {note}", file=sys.stderr)
        report = out / f"{name}.md"
        for cells in runner.run():
            verdicts = write_report(report, rows, sizes, cells, runner.majority_baseline, notes)
    for verdict in verdicts:
        print(f"{verdict.decision:<10}  {verdict.column.name}: {verdict.better.name} > {verdict.worse.name}")
    print(report)
    if failed := sum(cell.outcomes is None for cell in cells):
        typer.echo(f"bertie: {failed} of {len(cells)} cells failed; see {report.name}", err=True)
        raise typer.Exit(1)


def _read_task(name: str, data: Path, scale: "Scale") -> "TaskExamples":
    from bertie.api.task_data import custom_task, read_task_data
    from bertie.base.files import sha256
    from bertie.reproduction.cells import digest
    from bertie.reproduction.sources import HELD_OUT_PART, TaskExamples
    from bertie.tasks.dev_split import draw_dev_examples

    folder = data / scale.folders.get(name, "glue")
    task, training, dev, *_ = read_task_data(name, folder, None, None, custom_task())
    files = [task.file(folder, part) for part in ("train", *dev)]
    hashes = [*map(sha256, files)]
    if fraction := scale.training_held_out.get(name):
        held_out = draw_dev_examples(task, training, fraction, files[0])
        kept = sorted({*range(len(training))} - {*held_out})
        dev = {**dev, HELD_OUT_PART: task.select(training, held_out)}
        training = task.select(training, kept)
        hashes.append(str(fraction))
    return TaskExamples(task, training, dev, digest(*hashes))


def _corpus_directory(text: list[Path], out: Path, scale: "Scale", cased: bool) -> Path:
    """Return the directory of the corpus of these texts in `out`."""
    from bertie.base.files import sha256
    from bertie.corpus.readers import list_inputs
    from bertie.reproduction.cells import digest

    inputs = [sha256(file) for file in list_inputs(text)]
    return out / "corpus" / digest(*inputs, str(scale.vocabulary_size), str(scale.held_out), str(cased))


def _prepare(
    text: list[Path], corpus: Path, out: Path, scale: "Scale", cased: bool, workers: int | None
) -> None:
    """Prepare the corpus of these texts, unless it exists."""
    import bertie
    from bertie.base.locks import lock_file, remove_stale_locks
    from bertie.corpus.preparation_plan import remove_leftovers

    tokenizer = out / "tokenizer" / corpus.name
    with lock_file(corpus, wait=True):
        if not tokenizer.exists():
            size = scale.vocabulary_size
            bertie.learn_vocabulary(text, tokenizer, size=size, cased=cased, workers=workers)
        if (corpus / "manifest.json").exists():
            remove_leftovers(corpus)
        else:
            held_out = scale.held_out
            bertie.prepare(text, tokenizer=tokenizer, out=corpus, held_out=held_out, workers=workers)
    for path in (tokenizer, corpus):
        remove_stale_locks(path)
