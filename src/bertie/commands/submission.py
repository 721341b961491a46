"""`bertie submission`: make the zip file for the GLUE server."""

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
    """Collect the test predictions of GLUE runs into a zip file for its server."""
    from bertie.base.errors import DataError
    from bertie.tasks.glue import SUBMISSION_FILES, write_submission

    with tempfile.TemporaryDirectory() as folder:
        run_of: dict[str, Path] = {}
        for run in runs:
            files = [file for name in SUBMISSION_FILES if (file := run / "submission" / name).exists()]
            if not files:
                raise DataError(
                    f"{run}: no predictions for the GLUE server; fine-tune on a GLUE task with its test file "
                    f"in the data folder"
                )
            for file in files:
                if file.name in run_of:
                    raise DataError(
                        f"{file.name} is in both {run_of[file.name]} and {run}; give only one of them"
                    )
                run_of[file.name] = run
                shutil.copy(file, folder)
        write_submission(Path(folder), out)
    print(out)
