"""What happens in a trainer, whatever its framework: loop, gradients, callbacks, checkpoints, metrics, progress."""
