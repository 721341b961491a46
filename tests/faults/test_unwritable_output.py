"""An output path that cannot be written is reported in one line."""

import subprocess
from pathlib import Path

import pytest
from tests.faults.runs import BERTIE, error_line

COMMANDS = {
    "vocab": ["vocab", "{}/text.txt", "--size", "150", "--workers", "1"],
    "prepare": ["prepare", "{}/text.txt", "--tokenizer", "{}/tokenizer", "--workers", "1"],
    "pretrain": ["pretrain", "{}/recipe.toml", "--corpus", "{}/corpus"],
}


def command(verb: str, folder: Path, out: object) -> list[str]:
    return [*(argument.format(folder) for argument in COMMANDS[verb]), "--out", str(out)]


@pytest.mark.parametrize("verb", COMMANDS)
def test_output_path_that_is_a_file_is_reported(
    verb: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file/inner"):
        line = error_line(capsys, *command(verb, folder, out))
        assert line in (
            f"bertie: {out}: cannot be created (not a directory); choose another path",
            f"bertie: {out}: exists already; choose another name, or replace it with --force (force=True)",
        )
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "verb", [verb if verb == "vocab" else pytest.param(verb, marks=pytest.mark.slow) for verb in COMMANDS]
)
def test_unwritable_output_folder_is_reported(verb: str, folder: Path, tmp_path: Path) -> None:
    """In a namespace, root is bound by permissions."""
    (tmp_path / "locked").mkdir()
    if subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode:
        pytest.skip("this system does not allow user namespaces")
    shell = ["unshare", "--user", "sh", "-c", 'chmod 500 locked && exec "$@"', "sh"]
    arguments = [*shell, *BERTIE, *command(verb, folder, "locked/out")]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        ": cannot be created (permission denied); choose another path"
    )
