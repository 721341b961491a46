"""A place that cannot be written: one line that names it, and exit 2."""

import subprocess
from pathlib import Path

import pytest
from tests.faults.runs import BERTIE, refusal

COMMANDS = {
    "vocab": ["vocab", "{}/text.txt", "--size", "150", "--workers", "1"],
    "prepare": ["prepare", "{}/text.txt", "--tokenizer", "{}/tokenizer", "--workers", "1"],
    "pretrain": ["pretrain", "{}/recipe.toml", "--corpus", "{}/corpus"],
}


def command(verb: str, folder: Path, out: object) -> list[str]:
    return [*(argument.format(folder) for argument in COMMANDS[verb]), "--out", str(out)]


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_file_where_a_folder_is_needed(
    verb: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file/inner"):
        line = refusal(capsys, *command(verb, folder, out))
        assert line.startswith((f"bertie: {out}: ", f"bertie: {tmp_path / 'file'}: "))
        assert "a file" in line
    assert (tmp_path / "file").read_text() == "mine"


# Namespaces give root, whom permissions do not bind, less than root's rights, and others the right to mount.
UNABLE = {
    "no permission": (["unshare", "--user"], "chmod 500 locked"),
    "this file system is read-only": (
        ["unshare", "--user", "--map-root-user", "--mount"],
        "mount -t tmpfs -o ro tmpfs locked",
    ),
}


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("vocab", "no permission"),
        ("prepare", "this file system is read-only"),
        ("pretrain", "this file system is read-only"),
        pytest.param("pretrain", "no permission", marks=pytest.mark.slow),
    ],
)
def test_a_place_that_cannot_be_written(verb: str, folder: Path, tmp_path: Path, message: str) -> None:
    namespace, lock = UNABLE[message]
    (tmp_path / "locked").mkdir()
    if subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("this system gives no namespaces")
    script = [*namespace, "sh", "-c", f'{lock} && exec "$@"', "sh"]
    arguments = [*script, *BERTIE, *command(verb, folder, "locked/out")]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"bertie: locked/out: {message}; name another place")
