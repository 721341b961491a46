"""`bertie submission`: make the zip file for the GLUE server."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from bertie.commands.options import Force, local_path_argument, local_path_option


def submission(
    runs: Annotated[list[Path], local_path_argument("Runs of `bertie finetune` or `search`.", "RUN")],
    out: Annotated[Path, local_path_option("The .zip file to write.")],
    wnli: Annotated[
        Literal["majority", "model"],
        typer.Option(
            help="WNLI: the majority class for every example, as in the paper, or the answers of a run."
        ),
    ] = "majority",
    force: Force = False,
) -> None:
    """Collect predictions in a zip file for the GLUE server.

    For WNLI, the paper submits the majority class (Appendix B.1), and so does this command.

    The output appears whole or not at all, even if the command is killed.
    """
    from bertie.base.errors import DataError
    from bertie.base.outputs import lock_output
    from bertie.tasks.glue import SUBMISSION_FILES, WNLI_FILE, write_submission

    if out.suffix.lower() != ".zip":
        raise DataError(f"{out}: the output is a zip file; name it .zip")
    files: dict[str, Path] = {}
    for run in runs:
        if not run.is_dir():
            raise DataError(f"{run}: no such folder; give the folder of a run")
        found = [file for name in SUBMISSION_FILES if (file := run / "submission" / name).exists()]
        if not found:
            raise DataError(
                f"{run}: no predictions for the GLUE server; fine-tune on a GLUE task with its test file "
                f"in the data folder"
            )
        for file in found:
            if file.name in files:
                raise DataError(
                    f"{file.name} is in both {files[file.name].parents[1]} and {run}; give only one of them"
                )
            files[file.name] = file
    with lock_output(out, force=force, inputs=files.values()):
        write_submission(files, out, wnli_majority=wnli == "majority")
    if wnli == "majority":
        ignored = f" ({files[WNLI_FILE].parents[1]} is used with --wnli model)" if WNLI_FILE in files else ""
        print(f"WNLI: the majority class, as in the paper (Appendix B.1){ignored}", file=sys.stderr)
    print(out)
