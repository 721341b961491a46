"""Read tables in memory like files: rows, columns and data frames."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from bertie.base.errors import DataError
from bertie.base.files import given_url, local_path


@dataclass(frozen=True)
class MemoryTable:
    """Named columns of equal length.

    name     the table's name in messages
    columns  the values of each column: strings, numbers, lists and dicts; None for a missing value
    """

    name: str
    columns: Mapping[str, list[Any]]

    def __str__(self) -> str:
        return self.name

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))


Source = Path | MemoryTable


def as_source(data: Any, name: str) -> Source:
    """Return a path as it is, and a table of any kind as a MemoryTable.

    Missing values (None, NaN, NaT, NA) become None, arrays and tuples become lists, and members of an Enum
    become their values.

    Args:
        data: a path; a list of dicts; a dict of columns; a pandas or polars DataFrame; a `datasets.Dataset`,
            whose class labels become their names; or a pyarrow Table.
        name: the table's name in messages.

    Raises:
        DataError: `data` is something else, a URL or empty, its columns differ in length, or two columns
            have the same name.

    Example:
        >>> as_source([{"text": "good", "label": 1}, {"text": "bad", "label": 0}], "train").columns
        {'text': ['good', 'bad'], 'label': [1, 0]}
    """
    if isinstance(data, str | Path):
        path = local_path(data, name)
        if url := given_url(path):
            raise DataError(f"{url}: labelled data are read from local files; download this one first")
        return path
    columns = _read_columns(data, name)
    table = MemoryTable(name, {column: list(map(_plain, values)) for column, values in columns.items()})
    if len({len(values) for values in table.columns.values()}) > 1:
        raise DataError(f"{name}: the columns differ in length; give one value for each row")
    if not len(table):
        raise DataError(f"{name}: empty: no rows")
    return table


def _read_columns(data: Any, name: str) -> Mapping[str, Iterable[Any]]:
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and hasattr(data, "columns"):
        _reject_duplicates(map(str, data.columns), name)
        return {str(column): values.tolist() for column, values in data.items()}
    if library == "polars" and hasattr(data, "to_dict"):
        return dict(data.to_dict(as_series=False))
    if library == "pyarrow" and hasattr(data, "to_pydict"):
        _reject_duplicates(data.column_names, name)
        return dict(data.to_pydict())
    if library == "datasets" and hasattr(data, "with_format") and not isinstance(data, Mapping):
        return _read_dataset(data.with_format(None))  # other formats have values of other types
    if library == "datasets" and isinstance(data, Mapping):
        raise DataError(
            f"{name}: {type(data).__name__} is not a table; give one of its splits: {', '.join(data)}"
        )
    if isinstance(data, Mapping):
        for column, values in data.items():
            if not _is_column(values):
                raise DataError(f"{name}: the column {column!r} is a {type(values).__name__}; give a list")
        return {str(column): values for column, values in data.items()}
    problem = f"{type(data).__name__} is not a table"
    if isinstance(data, Iterable) and not isinstance(data, bytes) and getattr(data, "ndim", 1) > 0:
        rows = list(data)
        others = [i for i, row in enumerate(rows) if not isinstance(row, Mapping)]
        if not others:
            return _read_rows(rows)
        if isinstance(data, list | tuple):
            problem = f"row {others[0] + 1} is a {type(rows[others[0]]).__name__}, not a dict"
    advice = "a path, a list of dicts, a dict of columns, a pandas or polars DataFrame, or a datasets.Dataset"
    raise DataError(f"{name}: {problem}; give {advice}")


def _reject_duplicates(columns: Iterable[str], name: str) -> None:
    for column, count in Counter(columns).items():
        if count > 1:
            raise DataError(f"{name}: two columns are called {column!r}; rename one")


def _read_rows(rows: Sequence[Mapping[Any, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(column for row in rows for column in row)
    return {str(column): [row.get(column) for row in rows] for column in names}


def _read_dataset(data: Any) -> dict[str, list[Any]]:
    """Return the columns of a Dataset or IterableDataset.

    Class labels are replaced by their names.
    """
    if hasattr(data, "__len__"):
        columns = {column: list(data[column]) for column in data.column_names}
    else:
        columns = _read_rows(list(data))
    features = data.features or {}
    return {
        column: [_class_name(_plain(value), features.get(column)) for value in values]
        for column, values in columns.items()
    }


def _class_name(value: Any, feature: Any) -> Any:
    """Return the name of a class label, or the names of a list of them.

    Other values are returned unchanged. A negative number marks a missing label.
    """
    if hasattr(feature, "int2str"):
        return None if value is None or value < 0 else feature.int2str(value)
    inner = getattr(feature, "feature", None)
    return [_class_name(item, inner) for item in value] if inner and isinstance(value, list) else value


def _is_column(values: Any) -> bool:
    if isinstance(values, str | bytes) or getattr(values, "ndim", 1) == 0:  # also scalars of numpy
        return False
    # of numpy and pandas, polars, and pyarrow
    return isinstance(values, Sequence) or any(
        hasattr(values, name) for name in ("tolist", "to_list", "to_pylist")
    )


def _plain(value: Any) -> Any:
    """Return a value as JSON would have it.

    Arrays, tuples and sets become lists, and missing values None.
    """
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if hasattr(value, "tolist"):  # arrays and scalars of numpy and torch
        value = value.tolist()
    elif hasattr(value, "as_py"):  # scalars of pyarrow
        value = value.as_py()
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, Set):  # its order differs between processes
        return sorted(map(_plain, value), key=str)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if is_missing(value) else value


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or pandas.NA.

    All but None are unequal to themselves.
    """
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA has no truth value
        return True
