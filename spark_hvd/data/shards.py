"""Which rows each rank reads in an epoch, in which order, in which step. Pure: numbers in, numbers out, no I/O.

A dataset is a list of row groups, known by their sizes only. Laid end to end they are the *sequence* of rows. Two
layouts say which rows of it belong to a rank:

contiguous
    The row groups are permuted (with ``shuffle``) or not, and rank r takes one contiguous slice of the sequence; the
    slices differ by one row at most, a row group on a border is read by both neighbours.
ordered
    Step s takes rows ``[s * size * batch, (s + 1) * size * batch)`` of the data, rank r the r-th batch of them. So two
    ranks with batch B and one rank with batch 2B see the same global batches. Every rank reads nearly every row group.

A rank's rows are then cut into *blocks* of a fixed number of steps. A block is what is decoded at once and the buffer
in which rows are shuffled: uniformly inside a block, never across one.

With ``drop_last`` every step is whole: the rows that would make a shorter last step are left out of the epoch (others
in each epoch, when the order is shuffled).

Randomness comes from NumPy's PCG64 seeded by ``SeedSequence([seed, epoch, 0])`` for the row groups (the same on every
rank) and ``SeedSequence([seed, epoch, 1, rank, block])`` for the rows of a block. So the order depends on seed, epoch,
rank, size, batch size, block size and the row groups, and a run that is resumed in the middle needs no earlier block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spark_hvd.errors import ConfigError

LAYOUTS = ("contiguous", "ordered")


@dataclass(frozen=True)
class Slice:
    """Rows ``[start, stop)`` of row group ``row_group``."""

    row_group: int
    start: int
    stop: int


@dataclass(frozen=True)
class Block:
    """Rows that are decoded together: all steps from ``first_step`` on, as many as the plan's ``block_steps``.

    ``order`` is a permutation of the block's rows (shape ``(rows,)``), or None when they stay as read.
    """

    first_step: int
    slices: tuple[Slice, ...]
    rows: int
    order: np.ndarray | None


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One epoch as one rank reads it; made by :func:`plan`.

    Attributes
    ----------
    row_groups
        Rows of each row group.
    sequence
        Numbers of the row groups in the order in which they are laid end to end.
    block_steps
        Steps of one block.
    """

    row_groups: tuple[int, ...]
    sequence: tuple[int, ...]
    size: int
    rank: int
    batch_size: int
    seed: int
    epoch: int
    shuffle: bool
    layout: str
    drop_last: bool
    block_steps: int

    @cached_property
    def total_rows(self) -> int:
        """Rows of the data."""
        return sum(self.row_groups)

    @cached_property
    def epoch_rows(self) -> int:
        """Rows of the epoch over all ranks: those of the data, less what ``drop_last`` leaves out."""
        return self.steps * self.size * self.batch_size if self.drop_last else self.total_rows

    @cached_property
    def steps(self) -> int:
        """Steps of the epoch, the same on every rank."""
        if self.drop_last:
            return self.total_rows // self.size // self.batch_size
        if self.layout == "ordered":
            return _ceil(self.total_rows, self.size * self.batch_size)
        return _ceil(_ceil(self.total_rows, self.size), self.batch_size)

    def rows_of_rank(self, rank: int) -> int:
        """Rows that ``rank`` reads in the epoch."""
        if self.drop_last:
            return self.steps * self.batch_size
        if self.layout == "ordered":
            last = self.steps - 1
            return last * self.batch_size + self._step_rows(last, rank) if self.steps else 0
        return (rank + 1) * self.total_rows // self.size - rank * self.total_rows // self.size

    def rows(self, step: int) -> int:
        """Rows of this rank in ``step``."""
        return self._step_rows(step, self.rank)

    def global_rows(self, step: int) -> int:
        """Rows of all ranks in ``step``."""
        if self.layout == "ordered":
            whole = self.size * self.batch_size
            return min(whole, max(0, self.total_rows - step * whole))
        small, larger = divmod(self.total_rows, self.size)
        done = step * self.batch_size
        return larger * self._clip(small + 1 - done) + (self.size - larger) * self._clip(small - done)

    def blocks(self, start_step: int = 0) -> Iterator[Block]:
        """The blocks of this rank from the one on that holds ``start_step``; blocks without rows are left out."""
        for index, slices in self._sliced(start_step):
            rows = sum(piece.stop - piece.start for piece in slices)
            yield Block(index * self.block_steps, slices, rows, self._order(index, rows))

    def reading(self, start_step: int = 0) -> list[Slice]:
        """What :meth:`blocks` needs of the row groups: each once, in order, from its first needed row to its last."""
        needed: list[Slice] = []
        for _, slices in self._sliced(start_step):
            for piece in slices:
                if needed and needed[-1].row_group == piece.row_group:
                    needed[-1] = Slice(piece.row_group, needed[-1].start, piece.stop)
                else:
                    needed.append(piece)
        return needed

    def _sliced(self, start_step: int) -> Iterator[tuple[int, tuple[Slice, ...]]]:
        for index in range(start_step // self.block_steps, _ceil(self.steps, self.block_steps)):
            slices = tuple(self._slices(index))
            if slices:
                yield index, slices

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum([self.row_groups[g] for g in self.sequence], dtype=np.int64)])

    def _clip(self, rows: int) -> int:
        return min(self.batch_size, max(0, rows))

    def _step_rows(self, step: int, rank: int) -> int:
        if self.layout == "ordered":
            return self._clip(self.total_rows - (step * self.size + rank) * self.batch_size)
        return self._clip(self.rows_of_rank(rank) - step * self.batch_size)

    def _slices(self, index: int) -> Iterator[Slice]:
        first_step = index * self.block_steps
        last_step = min(self.steps, first_step + self.block_steps)
        if self.layout == "ordered":
            for step in range(first_step, last_step):
                start = (step * self.size + self.rank) * self.batch_size
                yield from self._cut(start, start + self.rows(step))
            return
        start = self.rank * self.total_rows // self.size
        rows = self.rows_of_rank(self.rank)
        yield from self._cut(
            start + min(rows, first_step * self.batch_size), start + min(rows, last_step * self.batch_size)
        )

    def _cut(self, start: int, stop: int) -> Iterator[Slice]:
        place = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            base, end = int(self._starts[place]), int(self._starts[place + 1])
            upto = min(stop, end)
            yield Slice(self.sequence[place], start - base, upto - base)
            start, place = upto, place + 1

    def _order(self, index: int, rows: int) -> np.ndarray | None:
        return _generator(self.seed, self.epoch, 1, self.rank, index).permutation(rows) if self.shuffle else None


def plan(
    row_groups: Sequence[int],
    *,
    size: int,
    rank: int,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    layout: str | None = None,
    drop_last: bool = False,
    block_rows: int = 1 << 16,
) -> EpochPlan:
    """Plan one epoch for one rank.

    Parameters
    ----------
    row_groups
        Rows of each row group, in the order of the data; 0 is legal.
    size, rank
        Number of ranks; the rank that reads.
    batch_size
        Rows per step and rank, at least 1.
    seed, epoch
        What the order depends on when ``shuffle`` is set.
    shuffle
        Permute row groups, and rows inside blocks.
    layout
        ``"contiguous"`` or ``"ordered"``; None: contiguous when shuffled, else ordered.
    drop_last
        Leave out the rows of a step that is not whole on every rank.
    block_rows
        Rows of a block; rounded down to whole batches, at least one batch.

    Raises
    ------
    ConfigError
        A number is out of range, or ``shuffle`` meets ``layout="ordered"``, which has no shuffled form.
    """
    layout = layout or ("contiguous" if shuffle else "ordered")
    if layout not in LAYOUTS:
        raise ConfigError(f"layout={layout!r}: expected one of {LAYOUTS}.")
    if shuffle and layout == "ordered":
        raise ConfigError("layout='ordered' keeps the order of the data: expected shuffle=False, found shuffle=True.")
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(f"rank={rank}, size={size}: expected 0 <= rank < size.")
    if batch_size < 1 or epoch < 0:
        raise ConfigError(f"batch_size={batch_size}, epoch={epoch}: expected batch_size >= 1 and epoch >= 0.")
    sizes = tuple(int(rows) for rows in row_groups)
    if any(rows < 0 for rows in sizes):
        raise ConfigError(f"row_groups: expected sizes of 0 or more, found {min(sizes)}.")
    sequence = np.flatnonzero(np.asarray(sizes, dtype=np.int64))
    if shuffle:
        sequence = _generator(seed, epoch, 0).permutation(sequence)
    return EpochPlan(
        row_groups=sizes,
        sequence=tuple(int(g) for g in sequence),
        size=size,
        rank=rank,
        batch_size=batch_size,
        seed=seed,
        epoch=epoch,
        shuffle=shuffle,
        layout=layout,
        drop_last=drop_last,
        block_steps=max(1, block_rows // batch_size),
    )


def _generator(seed: int, *words: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed % (1 << 64), *words])))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
