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
    from bertie.tasks.glue import SUBMISSION_FILES, write_submission

    with tempfile.TemporaryDirectory() as folder:
        given_by: dict[str, Path] = {}
        for run in runs:
            files = [file for name in SUBMISSION_FILES if (file := run / "submission" / name).exists()]
            if not files:
                raise DataError(
                    f"{run}: no predictions for GLUE's server; this run is of another task, or the task's "
                    f"test file was not there in training"
                )
            for file in files:
                if file.name in given_by:
                    raise DataError(f"{run}: {file.name} is in {given_by[file.name]} too; name one of them")
                given_by[file.name] = run
                shutil.copy(file, folder)
        write_submission(Path(folder), out)
    print(out)
