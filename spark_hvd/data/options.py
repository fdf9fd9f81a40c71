"""Every choice that preparing a DataFrame has, in one value.

Owns the names, defaults and limits of these choices. What they do: ``spark_types.py`` (types), ``expressions.py``
(nulls, NaN, padding), ``prepare.py`` (split, files), ``prepared_cache.py`` (caching).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_hvd.errors import ConfigError

ROW_GROUP_BYTES = 4 << 20
"""Small row groups let a reader's shuffle buffer mix many of them; larger ones hardly read faster."""

Scalar = bool | int | float | str | bytes


@dataclass(frozen=True)
class PrepareOptions:
    """How a DataFrame becomes Parquet.

    Attributes
    ----------
    validation
        None or 0: all rows are for training. A fraction below 1: each row is drawn for validation with this
        probability. A column name: rows where it is true, or above 0, are for validation.
    stratify_by
        Column whose values keep their shares: of each value's rows the fraction ``validation`` is drawn, rounded, but
        at least one row and never all where the value has two rows or more. Costs a shuffle of all rows, and so their
        order.
    seed
        Of the drawing. The split is the same for the same seed as long as Spark gives the same rows in the same order
        in the same partitions; a plan with an unordered shuffle may not.
    null_policy
        ``"error"``; ``"drop"`` leaves out every row with a null in a written column; ``"fill"`` puts ``fill_value`` in
        the place of nulls, also of those inside arrays. An absent array can be filled when it is padded only.
    fill_value
        A value for all columns or a dict of column -> value; None: zero of the column's type (False, 0, "").
    nan_policy
        ``"allow"``, ``"error"``, or ``"drop"``: leave out every row with a NaN.
    pad_to, pad_value
        Length to which shorter arrays of one dimension are filled up with ``pad_value`` (None: zero): one for all, or
        a dict by column. Longer ones are an error, never cut.
    decimal, date, timestamp
        ``"float64"``, ``"days"``, ``"microseconds"`` (both int64, since 1970-01-01): what such a column becomes; None:
        an error.
    strings, binary
        Whether such columns may be written: for frameworks that take text, and for a ``transformation_fn``.
    sample_weight_col
        Column among those written that weighs rows: numbers of 0 or more.
    files
        Spread the rows evenly over so many files (a shuffle); None: a file for each partition of the plan. Readers
        take shards by rows, so training does not need it.
    row_group_bytes
        Size of a row group.
    cache
        Write once and use again for the same plan, columns and options in this process.
    """

    validation: float | str | None = None
    stratify_by: str | None = None
    seed: int = 0
    null_policy: str = "error"
    fill_value: Scalar | Mapping[str, Scalar] | None = None
    nan_policy: str = "allow"
    pad_to: int | Mapping[str, int] | None = None
    pad_value: Scalar | Mapping[str, Scalar] | None = None
    decimal: str | None = None
    date: str | None = None
    timestamp: str | None = None
    strings: bool = False
    binary: bool = False
    sample_weight_col: str | None = None
    files: int | None = None
    row_group_bytes: int = ROW_GROUP_BYTES
    cache: bool = False

    def __post_init__(self) -> None:
        validation = self.validation
        if isinstance(validation, bool) or (isinstance(validation, float | int) and not 0 <= validation < 1):
            raise ConfigError(
                f"validation={validation!r}: expected a fraction from 0 to below 1, or the name of a column."
            )
        for name, known in (
            ("null_policy", ("error", "drop", "fill")),
            ("nan_policy", ("allow", "error", "drop")),
            ("decimal", (None, "float64")),
            ("date", (None, "days")),
            ("timestamp", (None, "microseconds")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected one of {known}.")
        if self.stratify_by is not None and (isinstance(validation, str) or not validation):
            raise ConfigError(
                f"stratify_by={self.stratify_by!r}: expected validation to be a fraction, found {validation!r}."
            )
        lengths = self.pad_to.values() if isinstance(self.pad_to, Mapping) else [self.pad_to]
        if any(length is not None and (isinstance(length, bool) or length < 1) for length in lengths):
            raise ConfigError(f"pad_to={self.pad_to!r}: expected a length of at least 1, or a dict of such.")
        if (self.files is not None and self.files < 1) or self.row_group_bytes < 1:
            raise ConfigError(f"files={self.files}, row_group_bytes={self.row_group_bytes}: expected at least 1.")

    def pad_of(self, column: str) -> int | None:
        """Length to which the arrays of ``column`` are padded, if they are."""
        return self.pad_to.get(column) if isinstance(self.pad_to, Mapping) else self.pad_to

    def pad_value_of(self, column: str) -> Scalar | None:
        """What they are padded with; None: zero of the type."""
        return self.pad_value.get(column) if isinstance(self.pad_value, Mapping) else self.pad_value

    def fill_of(self, column: str) -> Scalar | None:
        """What stands for a null of ``column``; None: zero of the type."""
        return self.fill_value.get(column) if isinstance(self.fill_value, Mapping) else self.fill_value
