"""Collectives of this process with other ranks of its run.

Owns arguments and results. Automatic names belong to ``names.py``; memory under way and waiting to ``engine.py``; which
process is which, and when an engine starts and stops, to ``process.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spark_hvd.core import library, objects
from spark_hvd.core.buffer import Buffer
from spark_hvd.core.engine import Engine
from spark_hvd.core.handle import Handle
from spark_hvd.core.library import Kind, Operand, Outputs, Packed, Request
from spark_hvd.core.names import Names
from spark_hvd.core.op import Op
from spark_hvd.core.plan import Plan
from spark_hvd.errors import ConfigError

Array = np.ndarray[Any, Any]
# Prepared reductions that are kept.
_MOST_PLANS = 8192


class Communicator:
    """Some ranks of a run, as this process sees them. ``spark_hvd.core.init`` makes that of all ranks.

    All arrays are NumPy arrays or DLPack exporters in host memory, C-contiguous: bool, integers of 8 (signed or not),
    16, 32 and 64 bits, floats of 16, 32 and 64 bits; bfloat16 as ml_dtypes has it, or as 16-bit integers with
    ``dtype="bfloat16"``. They must not change, nor be read when they are outputs, before the collective has ended.

    Names pair the calls of the ranks, whatever the order of the calls; a name is in flight once at a time. Every method
    without ``_async`` waits, at most ``timeout`` seconds (CommTimeout; the collective goes on).

    Parameters
    ----------
    engine
        Of this process.
    process_set
        Number of the set, 0: all ranks.
    ranks
        Of the set, in the world, ascending.

    Attributes
    ----------
    rank, size
        Place of this process in the set, -1 if it is not there, and the number of its ranks.
    world_rank
        Rank of this process among all.
    process_sets
        Those that were added here, in that order.
    local_rank, local_size, cross_rank, cross_size, is_homogeneous
        As Horovod has them, of all ranks: those of this host, the hosts that have a rank of this local rank, and
        whether all hosts have as many.
    """

    def __init__(self, engine: Engine, process_set: int = 0, ranks: Sequence[int] | None = None) -> None:
        self._engine = engine
        self.process_set_id = process_set
        self.ranks: tuple[int, ...] = tuple(range(engine.size)) if ranks is None else tuple(ranks)
        self._names = Names()
        self._plans: dict[str, Plan] = {}
        self.process_sets: list[Communicator] = []
        self.world_rank: int = engine.rank
        self.rank: int = self.ranks.index(engine.rank) if engine.rank in self.ranks else -1
        self.size: int = len(self.ranks)
        lib, context = engine.lib, engine.context
        self.local_rank: int = lib.hvd_local_rank(context)
        self.local_size: int = lib.hvd_local_size(context)
        self.cross_rank: int = lib.hvd_cross_rank(context)
        self.cross_size: int = lib.hvd_cross_size(context)
        self.is_homogeneous: bool = bool(lib.hvd_is_homogeneous(context))

    def __repr__(self) -> str:
        which = f", process set {self.process_set_id}" if self.process_set_id else ""
        return f"Communicator(rank {self.rank} of {self.size}{which})"

    @property
    def included(self) -> bool:
        """Whether this process is one of the ranks."""
        return self.rank >= 0

    # Reductions.

    def allreduce_async(
        self, array: Any, *, name: str, op: Op = Op.AVERAGE, out: Any = None, prescale: float = 1.0,
        postscale: float = 1.0, dtype: str | None = None,
    ) -> Handle[Array]:  # fmt: skip
        """Start to combine ``array`` over all ranks, element by element.

        Parameters
        ----------
        array
            The same shape and dtype on every rank.
        name
            Pairs the calls of the ranks.
        op
            Values are combined in rank order on each host, then host by host, in the element type (16-bit floats: in
            float32, with one rounding), so the result is the same on all ranks and in every run. The average of
            integers is truncated.
        out
            Where the result goes: like ``array``, which it may be. Default: a new array.
        prescale, postscale
            Factors before the reduction and after it.

        Returns
        -------
        A handle; ``wait()`` gives the output.
        """
        packed, result = self._reduction(array, name, op, out, prescale, postscale, dtype)
        return self._submit(packed, (array, result), name, lambda _: result)

    def allreduce(
        self, array: Any, *, name: str, op: Op = Op.AVERAGE, out: Any = None, prescale: float = 1.0,
        postscale: float = 1.0, dtype: str | None = None, timeout: float | None = None,
    ) -> Array:  # fmt: skip
        """:meth:`allreduce_async`, waited for."""
        packed, result = self._reduction(array, name, op, out, prescale, postscale, dtype)
        self._engine.run(packed, (array, result), timeout, name)
        return result

    def grouped_allreduce_async(
        self, arrays: Sequence[Any], *, name: str, op: Op = Op.AVERAGE, out: Sequence[Any] | None = None,
        prescale: float = 1.0, postscale: float = 1.0, dtype: str | None = None,
    ) -> Handle[list[Array]]:  # fmt: skip
        """:meth:`allreduce_async` of several arrays that are carried out together, or fail together."""
        who = f"grouped allreduce '{name}'"
        outs = [None] * len(arrays) if out is None else list(out)
        if len(outs) != len(arrays):
            raise ConfigError(f"{who}: {len(arrays)} arrays but {len(outs)} outputs; give one for each")
        memory = [self._pair(a, o, who, dtype) for a, o in zip(arrays, outs, strict=True)]
        operands = tuple(_operand(f"{name}.{i}", *pair) for i, pair in enumerate(memory))
        results = [target.array for _, target in memory]
        request = Request(
            Kind.ALLREDUCE, operands, self.process_set_id, int(op), float(prescale), float(postscale), group=name
        )
        kept = tuple(buffer.array for buffer in itertools.chain.from_iterable(memory))
        return self._submit_group(request, kept, name, lambda _: results)

    def grouped_allreduce(
        self, arrays: Sequence[Any], *, name: str, op: Op = Op.AVERAGE, out: Sequence[Any] | None = None,
        prescale: float = 1.0, postscale: float = 1.0, dtype: str | None = None, timeout: float | None = None,
    ) -> list[Array]:  # fmt: skip
        """:meth:`grouped_allreduce_async`, waited for."""
        return self.grouped_allreduce_async(
            arrays, name=name, op=op, out=out, prescale=prescale, postscale=postscale, dtype=dtype
        ).wait(timeout)

    def reducescatter_async(
        self, array: Any, *, name: str, op: Op = Op.AVERAGE, prescale: float = 1.0, postscale: float = 1.0,
        dtype: str | None = None,
    ) -> Handle[Array]:  # fmt: skip
        """Start to combine ``array`` over all ranks; each gets its share of the rows (uneven: the first, one more).

        Parameters as of :meth:`allreduce_async`; ``op`` is not ``ADASUM``.
        """
        return self.grouped_reducescatter_async(
            [array], name=name, op=op, prescale=prescale, postscale=postscale, dtype=dtype
        )._map(_first)

    def reducescatter(
        self, array: Any, *, name: str, op: Op = Op.AVERAGE, prescale: float = 1.0, postscale: float = 1.0,
        dtype: str | None = None, timeout: float | None = None,
    ) -> Array:  # fmt: skip
        """:meth:`reducescatter_async`, waited for."""
        return self.reducescatter_async(
            array, name=name, op=op, prescale=prescale, postscale=postscale, dtype=dtype
        ).wait(timeout)

    def grouped_reducescatter_async(
        self, arrays: Sequence[Any], *, name: str, op: Op = Op.AVERAGE, prescale: float = 1.0, postscale: float = 1.0,
        dtype: str | None = None,
    ) -> Handle[list[Array]]:  # fmt: skip
        """:meth:`reducescatter_async` of several arrays that are carried out together, or fail together."""
        return self._rows(Kind.REDUCESCATTER, arrays, name, dtype, op, prescale, postscale)

    def grouped_reducescatter(
        self, arrays: Sequence[Any], *, name: str, op: Op = Op.AVERAGE, prescale: float = 1.0, postscale: float = 1.0,
        dtype: str | None = None, timeout: float | None = None,
    ) -> list[Array]:  # fmt: skip
        """:meth:`grouped_reducescatter_async`, waited for."""
        return self.grouped_reducescatter_async(
            arrays, name=name, op=op, prescale=prescale, postscale=postscale, dtype=dtype
        ).wait(timeout)

    # Exchanges.

    def broadcast_async(
        self, array: Any, root: int, *, name: str, out: Any = None, dtype: str | None = None
    ) -> Handle[Array]:
        """Start to copy ``array`` of rank ``root`` (a rank of the world) to all; shape and dtype as on every rank."""
        packed, result = self._broadcast(array, root, name, out, dtype)
        return self._submit(packed, (array, result), name, lambda _: result)

    def broadcast(
        self, array: Any, root: int, *, name: str, out: Any = None, dtype: str | None = None,
        timeout: float | None = None,
    ) -> Array:  # fmt: skip
        """:meth:`broadcast_async`, waited for."""
        packed, result = self._broadcast(array, root, name, out, dtype)
        self._engine.run(packed, (array, result), timeout, name)
        return result

    def allgather_async(self, array: Any, *, name: str, dtype: str | None = None) -> Handle[Array]:
        """Start to bring the rows of all ranks to all, in rank order. The first extent may differ by rank."""
        return self.grouped_allgather_async([array], name=name, dtype=dtype)._map(_first)

    def allgather(self, array: Any, *, name: str, dtype: str | None = None, timeout: float | None = None) -> Array:
        """:meth:`allgather_async`, waited for."""
        return self.allgather_async(array, name=name, dtype=dtype).wait(timeout)

    def grouped_allgather_async(
        self, arrays: Sequence[Any], *, name: str, dtype: str | None = None
    ) -> Handle[list[Array]]:
        """:meth:`allgather_async` of several arrays that are carried out together, or fail together."""
        return self._rows(Kind.ALLGATHER, arrays, name, dtype)

    def grouped_allgather(
        self, arrays: Sequence[Any], *, name: str, dtype: str | None = None, timeout: float | None = None
    ) -> list[Array]:
        """:meth:`grouped_allgather_async`, waited for."""
        return self.grouped_allgather_async(arrays, name=name, dtype=dtype).wait(timeout)

    def alltoall_async(
        self, array: Any, splits: Sequence[int] | None = None, *, name: str, dtype: str | None = None
    ) -> Handle[tuple[Array, Array]]:
        """Start to deal the rows of ``array`` to all ranks.

        Parameters
        ----------
        splits
            How many rows go to each rank, in order. Default: the same number to each.

        Returns
        -------
        A handle; ``wait()`` gives the rows that came, in rank order, and how many came from each rank (int64).
        """
        who = f"alltoall '{name}'"
        source = self._source(array, who, dtype)
        counts = None if splits is None else tuple(int(s) for s in splits)
        request = Request(Kind.ALLTOALL, (_operand(name, source, None),), self.process_set_id, splits=counts)

        def finish(outputs: Outputs | None) -> tuple[Array, Array]:
            assert outputs is not None
            return outputs.array(0, source.array.dtype, source.array.shape[1:]), outputs.splits(0)

        return self._submit(request.pack(), (source.array,), name, finish)

    def alltoall(
        self, array: Any, splits: Sequence[int] | None = None, *, name: str, dtype: str | None = None,
        timeout: float | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """:meth:`alltoall_async`, waited for."""
        return self.alltoall_async(array, splits, name=name, dtype=dtype).wait(timeout)

    # Without arrays.

    def barrier(self, name: str | None = None, timeout: float | None = None) -> None:
        """Return when every rank has called it (unnamed ones meet in their order)."""
        with self._names.choose("barrier", name) as used:
            self._check(f"barrier '{used}'")
            self._engine.run(self._bare(Kind.BARRIER, used), (), timeout, used)

    def join(self, timeout: float | None = None) -> int:
        """Say that this rank has no more data, and help the others until they have none either.

        Until all ranks have joined, this rank takes part in what they do with data that changes nothing (zeros in a
        sum, no rows in an allgather); an average still divides by the number of all ranks. A broadcast from a rank
        that has joined is an error on all ranks.

        Returns
        -------
        The last rank to join, as a rank of the world.
        """
        self._check("join")
        outputs = self._engine.run(self._bare(Kind.JOIN, "join"), (), timeout, "join")
        assert outputs is not None
        return outputs.value(0)

    def broadcast_object(self, obj: Any, root: int = 0, name: str | None = None) -> Any:
        """The picklable object of rank ``root`` (of the world), on every rank."""
        with self._names.choose("broadcast_object", name) as used:
            return objects.broadcast_object(self, obj, root, used)

    def allgather_object(self, obj: Any, name: str | None = None) -> list[Any]:
        """The picklable objects of all ranks, in rank order, on every rank."""
        with self._names.choose("allgather_object", name) as used:
            return objects.allgather_object(self, obj, used)

    # Process sets.

    def add_process_set(self, ranks: Sequence[int]) -> Communicator:
        """The communicator of some ranks of the world. All ranks of the world call it, with the same ranks.

        On a rank that is not among them it has ``rank`` -1 and no collectives.
        """
        ordered = sorted(int(r) for r in ranks)
        added = Communicator(self._engine, self._engine.add_process_set(ordered), ordered)
        self.process_sets.append(added)
        return added

    def remove_process_set(self, communicator: Communicator) -> None:
        """Remove what :meth:`add_process_set` made; all ranks of the world call it, with nothing in flight there."""
        self._engine.check_process("remove_process_set")
        engine = self._engine
        engine.check(engine.lib.hvd_remove_process_set(engine.context, communicator.process_set_id))
        if communicator in self.process_sets:
            self.process_sets.remove(communicator)

    # Memory.

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
        """A new array of zeros in memory that the ranks of this host share.

        A tensor that lies in such memory on all ranks is reduced without a copy. The memory lives as long as the array
        or anything made from it (a view, a torch tensor over it), also after ``shutdown()``.

        Raises
        ------
        LaunchError
            There is not so much memory; says how much was needed and found.
        """
        self._engine.check_process("empty")
        extents = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        status, array = library.allocate(self._engine.lib, self._engine.context, extents, np.dtype(dtype))
        self._engine.check(status)
        result: Array = array
        return result

    # What is going on.

    def counters(self) -> dict[str, int]:
        """Counts since the start, over all process sets: see ``hvd_counter`` in core.h."""
        engine = self._engine
        return {name: engine.lib.hvd_counter(engine.context, name.encode()) for name in library.COUNTERS}

    def transport_of(self, array: Any, op: Op = Op.AVERAGE, dtype: str | None = None) -> str:
        """Name of the transport that would carry an allreduce of ``array``."""
        packed, _ = self._reduction(array, "transport", op, array, 1.0, 1.0, dtype)
        status, name = library.transport_of(self._engine.lib, self._engine.context, packed)
        self._engine.check(status)
        return name

    def start_timeline(self, path: str) -> None:
        """Write what happens to ``path``, as a Chrome trace, until :meth:`stop_timeline`. Each rank its own file."""
        self._engine.check(self._engine.lib.hvd_start_timeline(self._engine.context, path.encode()))

    def stop_timeline(self) -> None:
        """End the trace; nothing happens when there is none."""
        self._engine.check(self._engine.lib.hvd_stop_timeline(self._engine.context))

    # How requests are made.

    def _check(self, who: str) -> None:
        self._engine.check_process(who)
        if self.rank < 0:
            raise ConfigError(
                f"{who}: rank {self._engine.rank} is not in process set {self.process_set_id}, which has the ranks "
                f"{', '.join(map(str, self.ranks))}; call collectives of a set on its own ranks only"
            )

    def _source(self, array: Any, who: str, dtype: str | None) -> Buffer:
        self._check(who)
        return Buffer.of(array, who, dtype=dtype)

    def _pair(self, array: Any, out: Any, who: str, dtype: str | None) -> tuple[Buffer, Buffer]:
        self._check(who)
        source = Buffer.of(array, who, written=out is array, dtype=dtype)
        if out is None:
            return source, source.like()
        if out is array:
            return source, source
        target = Buffer.of(out, who, written=True, dtype=dtype)
        source.require_like(target, who)
        return source, target

    def _reduction(
        self, array: Any, name: str, op: Op, out: Any, prescale: float, postscale: float, dtype: str | None
    ) -> tuple[Packed, Array]:
        self._check("allreduce")
        plan = self._plans.get(name)
        if plan is not None and plan.fits(array, out, (op, prescale, postscale, dtype)):
            return plan.packed, out
        source, target = self._pair(array, out, f"allreduce '{name}'", dtype)
        packed = Request(
            Kind.ALLREDUCE, (_operand(name, source, target),), self.process_set_id, int(op), float(prescale),
            float(postscale),
        ).pack()  # fmt: skip
        if type(array) is np.ndarray and type(out) is np.ndarray:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[name] = Plan(array, out, (op, prescale, postscale, dtype), packed)
        return packed, target.array

    def _broadcast(self, array: Any, root: int, name: str, out: Any, dtype: str | None) -> tuple[Packed, Array]:
        source, target = self._pair(array, out, f"broadcast '{name}'", dtype)
        operands = (_operand(name, source, target),)
        return Request(Kind.BROADCAST, operands, self.process_set_id, root=int(root)).pack(), target.array

    def _rows(
        self, kind: Kind, arrays: Sequence[Any], name: str, dtype: str | None, op: Op = Op.SUM, prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Handle[list[Array]]:  # fmt: skip
        sources = tuple(self._source(array, f"{kind.name.lower()} '{name}'", dtype) for array in arrays)
        alone = len(sources) == 1
        operands = tuple(_operand(name if alone else f"{name}.{i}", s, None) for i, s in enumerate(sources))
        request = Request(
            kind, operands, self.process_set_id, int(op), float(prescale), float(postscale), group="" if alone else name
        )

        def finish(outputs: Outputs | None) -> list[Array]:
            assert outputs is not None
            return [outputs.array(i, s.array.dtype, s.array.shape[1:]) for i, s in enumerate(sources)]

        return self._submit_group(request, tuple(s.array for s in sources), name, finish)

    def _bare(self, kind: Kind, name: str) -> Packed:
        return Request(kind, (Operand(name, 0, 0, 0, ()),), self.process_set_id).pack()

    def _submit(
        self, packed: Packed, memory: tuple[Any, ...], name: str, finish: Callable[[Outputs | None], Any]
    ) -> Handle[Any]:
        return Handle(self._engine, self._engine.submit(packed, memory), name, finish)

    def _submit_group(
        self, request: Request, memory: tuple[Any, ...], name: str, finish: Callable[[Outputs | None], Any]
    ) -> Handle[Any]:
        if not request.operands:
            raise ConfigError(f"'{name}': a group of no arrays; give one at least")
        return self._submit(request.pack(), memory, name, finish)


def _operand(name: str, source: Buffer, target: Buffer | None) -> Operand:
    return Operand(name, source.pointer, target.pointer if target else 0, source.dtype, source.array.shape)


def _first(arrays: list[Array]) -> Array:
    return arrays[0]
