"""Where things lie in a Store. Pure: relative paths, no I/O. Nobody else writes such a path down."""

from __future__ import annotations


def run(run_id: str) -> str:
    """Folder of a run."""
    return f"runs/{run_id}"


def claim(run_id: str) -> str:
    """Mark of the one process that makes the run; removed when that is done."""
    return f"runs/{run_id}/claim"


def train_spec(run_id: str) -> str:
    """The TrainSpec, JSON."""
    return f"runs/{run_id}/spec.json"


def bundle(run_id: str) -> str:
    """Model, optimizer, loss and what else the framework needs, in the framework's own form."""
    return f"runs/{run_id}/bundle.bin"


def progress(run_id: str) -> str:
    """Rank 0's latest progress, JSON, written anew (atomically) while the run goes on; the driver follows it."""
    return f"runs/{run_id}/progress.json"


def result(run_id: str) -> str:
    """The TrainResult, JSON."""
    return f"runs/{run_id}/result.json"


def weights(run_id: str) -> str:
    """The trained weights."""
    return f"runs/{run_id}/weights.safetensors"


def best_weights(run_id: str) -> str:
    """The weights of the best epoch so far."""
    return f"runs/{run_id}/best.safetensors"


def checkpoints(run_id: str) -> str:
    """Folder of the run's checkpoints."""
    return f"runs/{run_id}/checkpoints"


def checkpoint(run_id: str, epoch: int, step: int) -> str:
    """Folder of the state after ``epoch`` whole epochs and ``step`` batches of the next one."""
    return f"{checkpoints(run_id)}/epoch-{epoch:05d}-step-{step:08d}"


def checkpoint_shared(run_id: str, epoch: int, step: int) -> str:
    """What is equal on all ranks. Written last: a checkpoint without it is not whole."""
    return f"{checkpoint(run_id, epoch, step)}/shared.ckpt"


def checkpoint_rank(run_id: str, epoch: int, step: int, rank: int) -> str:
    """What a rank has of its own."""
    return f"{checkpoint(run_id, epoch, step)}/rank-{rank}.ckpt"


def events(run_id: str) -> str:
    """The logs of all epochs as TensorBoard reads them."""
    return f"runs/{run_id}/tensorboard/events.out.tfevents.0000000000.spark_hvd"


def history_picture(run_id: str) -> str:
    """Learning curves, PNG."""
    return f"runs/{run_id}/history.png"


def rank_log(run_id: str, rank: int) -> str:
    """Everything that a rank printed."""
    return f"runs/{run_id}/logs/rank-{rank}.log"


def live(run_id: str) -> str:
    """Folder of the lines that travel to the driver by the Store while the run goes on; deleted when it ends."""
    return f"runs/{run_id}/live"


def live_piece(run_id: str, slot: int, number: int) -> str:
    """Lines of the trainers of a slot, JSON, one a line; pieces are numbered from 0."""
    return f"{live(run_id)}/slot-{slot}-{number:08d}.jsonl"


def returned(run_id: str, rank: int) -> str:
    """What a rank returned, when that is too large for Spark; deleted when the driver has read it."""
    return f"runs/{run_id}/returned/rank-{rank}.bin"


def probe(token: str) -> str:
    """Folder in which driver and executors show each other that they see the same storage."""
    return f"probes/{token}"


# Name of the folders of a run's splits; a column of this name marks the rows while they are written.
SPLIT_COLUMN = "spark_hvd_split"


def intermediate(run_id: str) -> str:
    """All data that was prepared for a run; deleted when the run ends."""
    return f"intermediate/{run_id}"


def dataset(run_id: str, split: str) -> str:
    """Parquet folder of a split (``"train"`` or ``"val"``) that was prepared for a run."""
    return f"{intermediate(run_id)}/{SPLIT_COLUMN}={split}"
