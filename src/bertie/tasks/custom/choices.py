"""Custom contexts with several endings."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertie.base.errors import DataError
from bertie.base.memory import Source
from bertie.base.rows import Rows
from bertie.base.texts import count_noun, is_blank
from bertie.tasks.custom.tables import CustomFiles, check_strings, check_text
from bertie.tasks.label_types import label_name, unify_labels
from bertie.tasks.swag import Choices, MultipleChoice


@dataclass(frozen=True)
class CustomMultipleChoice(CustomFiles, MultipleChoice):
    """Contexts with several endings, of which one is right.

    context  column of the contexts
    endings  columns of the endings, or a single column with a list of them in each row
    label    column of the right ending's index, from 0
    """

    name: str = "choices"
    labels: tuple[str, ...] = ()
    main_metric: str = "accuracy"
    defaults: dict[str, Any] = field(default_factory=dict)
    context: str = "context"
    endings: tuple[str, ...] = ("endings",)
    label: str = "label"

    @property
    def input_columns(self) -> dict[str, str]:
        return {"context": self.context, "endings": ",".join(self.endings)}

    @property
    def label_columns(self) -> dict[str, str]:
        return {"label": self.label}

    def read(self, path: Source, labelled: bool) -> Choices:
        """Read a table of contexts, endings and labels.

        Raises:
            SettingsError: a column is missing.
            DataError: the file cannot be read, a text is empty, a row has fewer than two endings or
                not as many as the first row, or its label is not the index of an ending.
        """

        counts: list[int] = []  # of endings, in rows that are not skipped

        def check(rows: Rows, i: int) -> None:
            check_text(rows, i, self.context)
            endings = self._endings(rows, i)
            if len(endings) < 2 or (counts and len(endings) != counts[0]):
                raise DataError(
                    f"{rows.location(i)}: {count_noun(len(endings), 'ending')}; every row needs the same "
                    f"number, at least two"
                )
            if not all(isinstance(ending, str) and not is_blank(ending) for ending in endings):
                raise DataError(f"{rows.location(i)}: an ending is not text; add it or delete the row")
            if labelled:
                self._index(rows, i)
            counts.append(len(endings))

        columns = {self.context: "--column context=NAME"}
        columns |= dict.fromkeys(self.endings, "--column endings=NAME")
        rows = self._read_rows(path, columns | ({self.label: "--label NAME"} if labelled else {}), check)
        endings = [self._endings(rows, i) for i in range(len(rows))]
        labels = None
        if labelled:
            labels = np.array([self._index(rows, i) for i in range(len(rows))], dtype=np.int64)
        ids = [str(index) for index in range(len(rows))]
        return Choices(rows.columns[self.context], [""] * len(rows), endings, labels, ids)

    def _index(self, rows: Rows, i: int) -> int:
        """Return the index of the right ending."""
        name = label_name(rows.columns[self.label][i])
        indices = [str(index) for index in range(len(self._endings(rows, i)))]
        if (index := unify_labels([name], indices)[name]) not in indices:
            raise DataError(f"{rows.location(i)}: label {name!r}; use one of {', '.join(indices)}")
        return int(index)

    def _endings(self, rows: Rows, i: int) -> list[str]:
        if len(self.endings) == 1:
            return check_strings(rows, i, self.endings[0], "endings")
        return [rows.columns[column][i] for column in self.endings]
