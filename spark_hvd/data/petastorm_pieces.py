"""Parquet datasets made of pieces, as pyarrow had them before version 15 and as Petastorm knows them.

Owns: files, row groups, partition columns, filters on these and side files, over any fsspec filesystem. Only
``petastorm_repair.py`` hands them to Petastorm.
"""

from __future__ import annotations

import operator
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd.errors import ConfigError

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "in": lambda value, known: value in known, "not in": lambda value, known: value not in known,
}  # fmt: skip


@dataclass
class Level:
    """One partition column: its name and the texts of its values, in the order in which they were met."""

    name: str
    keys: list[str] = field(default_factory=list)

    @property
    def dictionary(self) -> pa.Array:
        """The values: int64 when all are integers, else strings."""
        try:
            return pa.array([int(key) for key in self.keys], pa.int64())
        except ValueError:
            return pa.array(self.keys, pa.string())

    def number(self, key: str) -> int:
        """Place of ``key`` among the values; a new one is added."""
        if key not in self.keys:
            self.keys.append(key)
        return self.keys.index(key)


class Partitions:
    """The partition columns of a dataset."""

    def __init__(self) -> None:
        self.levels: list[Level] = []

    def __len__(self) -> int:
        return len(self.levels)

    def __iter__(self) -> Iterator[Level]:
        return iter(self.levels)

    def __getitem__(self, place: int) -> Level:
        return self.levels[place]

    @property
    def partition_names(self) -> set[str]:
        """Names of the partition columns."""
        return {level.name for level in self.levels}

    def keys_of(self, folders: Iterable[str]) -> list[tuple[str, int]]:
        """(name, number of the value) of each folder such as ``day=3``."""
        keys = []
        for folder in folders:
            name, _, key = (unquote(word) for word in folder.partition("="))
            level = next((level for level in self.levels if level.name == name), None)
            if level is None:
                level = Level(name)
                self.levels.append(level)
            keys.append((name, level.number(key)))
        return keys

    def value(self, name: str, number: int) -> Any:
        """A value of the column ``name``."""
        return next(level.dictionary[number].as_py() for level in self.levels if level.name == name)


class Piece:
    """One file, or one row group of it."""

    def __init__(
        self,
        path: str,
        open_file_func: Callable[[str], Any],
        row_group: int | None = None,
        partition_keys: Iterable[tuple[str, int]] | None = None,
    ) -> None:
        self.path = path
        self.row_group = row_group
        self.partition_keys = list(partition_keys or [])
        self._open = open_file_func

    def get_metadata(self) -> Any:
        """The footer of the file."""
        with self._open(self.path) as file:
            return pq.read_metadata(file)

    def read(
        self, columns: Iterable[str] | None = None, use_threads: bool = True, partitions: Partitions | None = None
    ) -> pa.Table:
        """The rows, of ``columns`` only if given, and the partition columns as dictionaries."""
        names = None if columns is None else sorted(columns)
        with self._open(self.path) as file:
            parquet = pq.ParquetFile(file, pre_buffer=True)
            if self.row_group is None:
                table = parquet.read(columns=names, use_threads=use_threads)
            else:
                table = parquet.read_row_group(self.row_group, columns=names, use_threads=use_threads)
        for name, number in self.partition_keys:
            if partitions is None:
                raise ConfigError(f"{self.path}: expected the dataset's partitions to be given, found None.")
            level = next(level for level in partitions if level.name == name)
            codes = pa.array(np.full(table.num_rows, number, np.int32))
            table = table.append_column(name, pa.DictionaryArray.from_arrays(codes, level.dictionary))
        return table


class KnownFiles(list[str]):
    """Paths of files whose footers were read already.

    Parameters
    ----------
    row_groups
        Path -> number of row groups.
    schema
        Of the first file.
    """

    def __init__(self, row_groups: Mapping[str, int], schema: pa.Schema) -> None:
        super().__init__(row_groups)
        self.row_groups = dict(row_groups)
        self.arrow_schema = schema


@dataclass(frozen=True)
class _Known:
    """As much of a footer as Petastorm asks for."""

    num_row_groups: int
    schema: Any

    def to_arrow_schema(self) -> pa.Schema:
        return self.schema


class _KnownPiece(Piece):
    def __init__(self, path: str, open_file_func: Callable[[str], Any], footer: _Known) -> None:
        super().__init__(path, open_file_func)
        self._footer = footer

    def get_metadata(self) -> Any:
        return self._footer


class PieceDataset:
    """The files of a folder, or a list of files.

    ``filters`` are conditions (column, operator, value) on partition columns, a list that all must hold, or a list of
    such lists of which one must hold; conditions on other columns are passed over, as pyarrow once did.
    """

    def __init__(
        self,
        path_or_paths: str | list[str],
        filesystem: Any = None,
        validate_schema: bool = False,
        metadata_nthreads: int = 1,
        filters: Any = None,
    ) -> None:
        self.fs = filesystem
        self.paths = path_or_paths
        self.partitions = Partitions()
        self.schema = None
        self.metadata, self.metadata_path = self._side_file("_metadata")
        self.common_metadata, _ = self._side_file("_common_metadata")
        if isinstance(path_or_paths, KnownFiles):
            schema = _Known(0, path_or_paths.arrow_schema)
            groups = path_or_paths.row_groups
            self.pieces: list[Piece] = [
                _KnownPiece(path, filesystem.open, _Known(groups[path], schema)) for path in path_or_paths
            ]
        else:
            self.pieces = self._found(path_or_paths)
        if filters:
            self.pieces = [piece for piece in self.pieces if self._accepts(filters, piece)]

    def _side_file(self, name: str) -> tuple[Any, str | None]:
        if not isinstance(self.paths, str):
            return None, None
        path = f"{self.paths.rstrip('/')}/{name}"
        if not self.fs.exists(path):
            return None, None
        with self.fs.open(path) as file:
            return pq.read_metadata(file), path

    def _found(self, path_or_paths: str | list[str]) -> list[Piece]:
        paths = [path_or_paths] if isinstance(path_or_paths, str) else path_or_paths
        pieces = []
        for path in paths:
            if not self.fs.isdir(path):
                pieces.append(Piece(path, self.fs.open))
                continue
            base = self.fs._strip_protocol(path).rstrip("/")
            for name in sorted(self.fs.find(path)):
                words = [word for word in name[len(base) :].split("/") if word]
                if any(word.startswith(("_", ".")) and "=" not in word for word in words):
                    continue
                keys = self.partitions.keys_of(word for word in words[:-1] if "=" in word)
                pieces.append(Piece(posixpath.join(base, *words), self.fs.open, partition_keys=keys))
        return pieces

    def _accepts(self, filters: Sequence[Any], piece: Piece) -> bool:
        alternatives = filters if isinstance(filters[0], list) else [filters]
        values = {name: self.partitions.value(name, number) for name, number in piece.partition_keys}
        return any(
            all(name not in values or _holds(values[name], how, wanted) for name, how, wanted in conditions)
            for conditions in alternatives
        )


def _holds(value: Any, how: str, wanted: Any) -> bool:
    test = _OPERATORS.get(how)
    if test is None:
        raise ConfigError(f"filters: expected one of {sorted(_OPERATORS)}, found {how!r}.")
    if isinstance(wanted, str | int) and not isinstance(wanted, bool) and not isinstance(value, type(wanted)):
        # A partition column of numbers may be compared with text, and the other way round.
        wanted = type(value)(wanted)
    return bool(test(value, wanted))
