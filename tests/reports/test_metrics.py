import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError
from bertie.reports.metrics import read_metrics

ROWS = [{"kind": "train", "step": step, "masked_lm_loss": 5.0 - step, "note": "é}"} for step in range(3)]
TEXT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


@given(st.integers(0, len(TEXT)))
def test_a_run_killed_at_any_byte_keeps_its_whole_rows(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "metrics.jsonl"
    path.write_bytes(TEXT[:length])
    rows = read_metrics(path)
    assert rows == ROWS[: len(rows)]
    assert len(rows) - TEXT[:length].count(b"\n") in (0, 1)  # 1 where only the line's end is lost


@pytest.mark.parametrize("line", [b'{"kind": "tr', b"[1]", b"7", b"", b'{"a": "\xff"}'])
def test_another_broken_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: not a JSON object"):
        read_metrics(path)


def test_a_loss_that_is_not_finite_is_read(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"loss": NaN}\n{"loss": Infinity}\n')
    nan, infinite = read_metrics(tmp_path / "m")
    assert nan["loss"] != nan["loss"]
    assert infinite["loss"] == float("inf")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl: no such file"):
        read_metrics(tmp_path / "metrics.jsonl")
