"""The gradients of ResNet-50, as a load that many know."""

from __future__ import annotations


def resnet50() -> list[int]:
    """Elements of the 161 gradients of ResNet-50, from its architecture (He et al., "Deep residual learning", 2015)."""
    shapes = [64 * 3 * 49, 64, 64]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for count, filters in ((inputs * width, width), (width * width * 9, width), (width * width * 4, width * 4)):
                shapes += [count, filters, filters]
            if block == 0:
                shapes += [inputs * width * 4, width * 4, width * 4]
            inputs = width * 4
    return [*shapes, 2048 * 1000, 1000]
