"""`bertie submission`"""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer


def submission(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs of `bertie finetune` or `search`.")
    ],
    out: Annotated[Path, typer.Option(help="The .zip file to write.")],
) -> None:
    """Gather the predictions of runs on GLUE's tasks into the zip file that its server takes."""
    from bertie.base.errors import DataError
    from bertie.tasks.glue import write_submission

    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            files = sorted((run / "submission").glob("*.tsv"))
            if not files:
                raise DataError(
                    f"{run}: has no submission/*.tsv; the task's test file was not there in training"
                )
            for file in files:
                shutil.copy(file, folder)
        write_submission(Path(folder), out)
    print(out)
