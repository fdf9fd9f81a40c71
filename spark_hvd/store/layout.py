"""Where things lie in a Store. Pure: relative paths, no I/O. Nobody else writes such a path down."""

from __future__ import annotations


def run(run_id: str) -> str:
    """Folder of a run."""
    return f"runs/{run_id}"


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


def checkpoint(run_id: str, epoch: int) -> str:
    """State at the end of ``epoch`` (counted from 0)."""
    return f"runs/{run_id}/checkpoints/epoch-{epoch:05d}.ckpt"


def history_picture(run_id: str) -> str:
    """Learning curves, PNG."""
    return f"runs/{run_id}/history.png"


def rank_log(run_id: str, rank: int) -> str:
    """Everything that a rank printed."""
    return f"runs/{run_id}/logs/rank-{rank}.log"


def dataset(run_id: str, split: str) -> str:
    """Parquet folder of a split (``"train"`` or ``"val"``) that was prepared for a run."""
    return f"intermediate/{run_id}/{split}"


def intermediate(run_id: str) -> str:
    """What may be deleted when the run has ended."""
    return f"intermediate/{run_id}"
