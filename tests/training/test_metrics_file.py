"""metrics.jsonl is readable after a crash, and can be cut to an earlier size."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError
from bertie.training.metrics_file import MetricsFile, read_metrics

ROWS = [{"kind": "train", "step": step, "masked_lm_loss": 5.0 - step, "note": "é}"} for step in range(3)]
ROW = b'{"kind": "train", "step": 1}\n'
CONTENT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def row(step: int) -> dict[str, Any]:
    return {"kind": "train", "step": step}


@given(st.integers(0, len(CONTENT)))
def test_complete_rows_survive_a_cut_at_any_byte(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "metrics.jsonl"
    path.write_bytes(CONTENT[:length])
    rows = read_metrics(path)
    assert rows == ROWS[: len(rows)]
    assert len(rows) - CONTENT[:length].count(b"\n") in (0, 1)  # 1 where only the final newline is missing


DAMAGED = [b'{"kind": "tr', b"[1]", b"7", b"", b'{"a": "\xff"}', b'{"step": 1}', ROW[:-1] * 2, b"[" * 100_000]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_broken_line_before_the_last_is_an_error(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(ROW + line + b"\n" + ROW)
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: not a row of metrics; .* delete this line"):
        read_metrics(path)


def test_losses_that_are_not_finite_are_read(tmp_path: Path) -> None:
    (tmp_path / "m").write_text(
        '{"kind": "train", "step": 1, "loss": NaN}\n{"kind": "train", "step": 2, "loss": Infinity}\n'
    )
    nan, infinite = read_metrics(tmp_path / "m")
    assert nan["loss"] != nan["loss"]
    assert infinite["loss"] == float("inf")


def test_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a file; restore the file"):
        read_metrics(tmp_path)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl: no such file"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_row_of_a_needed_kind_is_required(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(ROW[:-1])
    assert len(read_metrics(tmp_path / "metrics.jsonl", {"train": []})) == 1
    with pytest.raises(DataError, match=r"metrics\.jsonl: no row of the kind 'evaluation'; restore the file"):
        read_metrics(tmp_path / "metrics.jsonl", {"train": [], "evaluation": []})


@pytest.mark.parametrize("value", [{}, {"seconds": "1"}])
def test_number_of_the_last_row_of_a_kind_is_required(tmp_path: Path, value: dict[str, Any]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(ROW + json.dumps({**row(2), **value}).encode() + b'\n{"kind": "warning", "step": 2}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: 'seconds' is missing or not a number"):
        read_metrics(path, {"train": ["seconds"]})


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.append({**row(1), "loss": math.nan, "perplexity": math.inf, "unigram_loss": 6.5})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        **row(1),
        "loss": None,
        "perplexity": None,
        "unigram_loss": 6.5,
    }
    (read,) = read_metrics(path)
    assert [math.isnan(read[name]) for name in ("loss", "perplexity", "unigram_loss")] == [True, True, False]


@pytest.mark.parametrize("torn", ["", '{"kind": "tr'])
def test_truncate_keeps_the_rows_before_a_size(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.append(row(1))
        size = metrics.sync()
        metrics.append(row(2))
    with path.open("a") as file:
        file.write(torn)
    with MetricsFile(path) as metrics:
        assert metrics.truncate(size, step=1)
        metrics.append(row(3))
    assert read_metrics(path) == [row(1), row(3)]


@pytest.mark.parametrize("lines", [[], [0], [0, 1], [1], [1, 2], [0, 2]], ids=str)
def test_truncate_keeps_the_rows_of_an_edited_file(tmp_path: Path, lines: list[int]) -> None:
    """Of the rows 0 to 2, somebody removes some; row 2 was logged after the checkpoint of step 1."""
    written = [json.dumps({**row(step), "note": "x" * step}) + "\n" for step in range(3)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(written[line] for line in lines))
    with MetricsFile(path) as metrics:
        assert metrics.truncate(len(written[0] + written[1]), step=1) == (lines == [0, 1])
        metrics.append(row(2))
    assert [row["step"] for row in read_metrics(path)] == [*(line for line in lines if line < 2), 2]
