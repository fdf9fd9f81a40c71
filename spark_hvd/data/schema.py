"""What the schema of a DataFrame shows before any job runs: which columns may be written, and why others may not.

Owns: the checks of names, types and of the columns that options name. The rule of each type is in ``spark_types.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_hvd.data import spark_types
from spark_hvd.data.options import PrepareOptions
from spark_hvd.data.spark_types import Rule
from spark_hvd.errors import DataError
from spark_hvd.specs import ColumnSpec

_MARKS = ("boolean", "byte", "short", "integer", "long")


def checked(df: Any, columns: Sequence[str], options: PrepareOptions) -> list[tuple[ColumnSpec, Rule]]:
    """Each of ``columns`` with its rule; the length of an array is not known yet, -1 stands for it.

    Raises
    ------
    DataError
        One line for each column that is missing, there twice, or of a type that does not fit its use.
    """
    existing = list(df.columns)
    fields = {field.name: field.dataType for field in df.schema.fields}
    found, problems = [], []
    for name in columns:
        problem = _presence(name, existing)
        rule = None if problem else spark_types.rule(fields[name], options)
        if problem or rule is None:
            problems.append(problem or spark_types.refusal(name, fields[name]))
        else:
            found.append((ColumnSpec(name, rule.dtype, (-1,) * rule.dimensions, fields[name].simpleString()), rule))
    if not _case_matters(df):
        problems += _twins(columns)
    problems += _marks(existing, fields, options)
    problems += _weight(columns, {spec.name: (spec, rule) for spec, rule in found}, options)
    if problems:
        raise DataError("\n".join(problems))
    return found


def _presence(name: str, existing: list[str]) -> str:
    found = existing.count(name)
    if found == 0:
        return spark_types.absence(name, existing)
    return (
        "" if found == 1 else f"column {name!r}: expected once, found {found} columns of that name. To do: rename them."
    )


def _case_matters(df: Any) -> bool:
    return str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"


def _twins(columns: Sequence[str]) -> list[str]:
    first: dict[str, str] = {}
    problems = []
    for name in dict.fromkeys(columns):
        twin = first.setdefault(name.casefold(), name)
        if twin != name:
            problems.append(
                f"column {name!r}: expected names that differ by more than case, found {twin!r}, too. "
                "To do: rename one, or set spark.sql.caseSensitive to true."
            )
    return problems


def _marks(existing: list[str], fields: Mapping[str, Any], options: PrepareOptions) -> list[str]:
    problems = []
    for field, name in (("validation", options.validation), ("stratify_by", options.stratify_by)):
        if not isinstance(name, str):
            continue
        problem = _presence(name, existing)
        if not problem and field == "validation" and fields[name].typeName() not in _MARKS:
            kind = fields[name].simpleString()
            problem = f"column {name!r} (validation): expected boolean or an integer, found {kind}."
        if problem:
            problems.append(problem)
    return problems


def _weight(columns: Sequence[str], found: Mapping[str, tuple[ColumnSpec, Rule]], options: PrepareOptions) -> list[str]:
    name = options.sample_weight_col
    if name is None:
        return []
    if name not in columns:
        return [f"column {name!r} (sample_weight_col): expected among the written columns {list(columns)}."]
    if name in found and (found[name][1].dimensions or found[name][1].dtype in ("bool", "object")):
        kind = found[name][0].source
        return [f"column {name!r} (sample_weight_col): expected one number in each row, found {kind}."]
    return []
