"""Write tables of custom examples."""

import csv
import json

import pyarrow
import pyarrow.parquet


def write(path, table):
    rows = list(zip(*table.values(), strict=True))
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(table), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(table, row, strict=True))) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([table, *rows])
    return path
