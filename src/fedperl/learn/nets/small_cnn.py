"""A small convolutional network with batch norm, for the demo, for tests and for machines without a GPU."""

import torch
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Four 3x3 convolutions, pooled over the image by mean and by maximum, one linear layer.

    A dermatoscopic structure may be anywhere in the image and small: the maximum keeps what the mean washes out.
    """

    def __init__(
        self, classes: int, widths: tuple[int, int, int, int] = (24, 32, 64, 128), dropout: float = 0.0
    ) -> None:
        super().__init__()
        a, b, c, d = widths
        self.features = nn.Sequential(
            *_block(3, a, stride=2),
            *_block(a, b),
            nn.MaxPool2d(2),
            *_block(b, c),
            nn.MaxPool2d(2),
            *_block(c, d),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * d, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, 3, h, w), h and w at least 8."""
        maps = self.features(images)
        pooled = torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], dim=1)
        out: Tensor = self.head(self.dropout(pooled))
        return out


def _block(inputs: int, outputs: int, *, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
