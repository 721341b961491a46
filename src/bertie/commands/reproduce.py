"""`bertie reproduce`"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertie.commands.options import CPUS, Device, Workers

if TYPE_CHECKING:
    from bertie.reproduction.runner import TaskExamples
    from bertie.reproduction.tables import Scale


def reproduce(
    table: Annotated[str, typer.Argument(help="table5, table6, …: a recipe of bertie's, or a .toml file.")],
    data: Annotated[
        Path,
        typer.Option(help="Where the official files are: DIR/glue, DIR/squad, DIR/ner as the scale says."),
    ],
    out: Annotated[Path, typer.Option(help="Where all is written. Tables share what they have in common.")],
    scale: Annotated[str, typer.Option(help="paper or laptop, or a .toml file.")] = "laptop",
    text: Annotated[
        list[Path] | None, typer.Option(help="Text to pre-train on: files or folders; may be repeated.")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="Or what `bertie prepare` wrote.")] = None,
    workers: Workers = CPUS,
    device: Device = "auto",
) -> None:
    """Run a table of the paper: pre-train, fine-tune, compare with the paper's numbers.

    The same command given again goes on where it was stopped, and tries again what failed. Given twice at
    once, with one --out, the two share the work, as two tables share their pre-trainings.
    """
    from bertie.base.errors import SettingsError
    from bertie.reproduction.runner import Runner
    from bertie.reproduction.tables import read_scale, read_table
    from bertie.reproduction.writing import write_table
    from bertie.training.signals import Stopped

    if bool(text) == (corpus is not None):
        raise SettingsError("give either --text FOLDER or --corpus CORPUS")
    size = read_scale(scale)
    found = read_table(table, size)
    tasks = {name: _read_task(name, data, size) for name in found.tasks()}
    name = Path(table).stem
    ner = data / size.folders.get("ner", "ner")
    prepared = corpus if corpus is not None else _prepare(text or [], out, size, found.cased, workers)
    runner = Runner(name, found, size, prepared, tasks, ner, out, device)
    try:
        for cells in runner.run():
            verdicts = write_table(out / f"{name}.md", found, size, cells, runner.commonest)
    except Stopped as stopped:
        print(f"bertie: stopped and saved in {out}; the same command goes on", file=sys.stderr)
        sys.exit(128 + stopped.number)
    for verdict in verdicts:
        print(f"{verdict.word:<10}  {verdict.column.name}: {verdict.better.name} > {verdict.worse.name}")
    print(out / f"{name}.md")
    failed = sum(cell.outcomes is None for cell in cells)
    if failed:
        print(f"bertie: {failed} of {len(cells)} cells failed; {name}.md names them", file=sys.stderr)
        sys.exit(1)


def _read_task(name: str, data: Path, scale: "Scale") -> "TaskExamples":
    from bertie.base.files import sha256
    from bertie.commands.task_options import read_data
    from bertie.reproduction.runner import TaskExamples, digest
    from bertie.tasks.custom import CustomClassification

    folder = data / scale.folders.get(name, "glue")
    found = read_data(name, folder, None, None, CustomClassification())
    files = [found.task.file(folder, part) for part in ("train", *found.dev)]
    return TaskExamples(found.task, found.training, found.dev, digest(*map(sha256, files)))


def _prepare(text: list[Path], out: Path, scale: "Scale", cased: bool, workers: int) -> Path:
    """The corpus of these texts in `out`, which may be there already."""
    from bertie.base.files import sha256
    from bertie.commands.prepare import prepare
    from bertie.commands.vocab import vocab
    from bertie.corpus.readers import list_inputs
    from bertie.reproduction.locks import taken
    from bertie.reproduction.runner import digest

    inputs = [sha256(file) for file in list_inputs(text)]
    name = digest(*inputs, str(scale.vocabulary_size), str(scale.held_out), str(cased))
    tokenizer, corpus = out / "tokenizer" / name, out / "corpus" / name
    with taken(corpus, wait=True):
        if not tokenizer.exists():
            vocab(text, tokenizer, size=scale.vocabulary_size, cased=cased, workers=workers)
        if not (corpus / "manifest.json").exists():
            prepare(text, tokenizer, corpus, workers=workers, held_out=scale.held_out)
    return corpus
