"""A small convolutional network with batch norm, for the demo, for tests and for machines without a GPU."""

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Four 3x3 convolutions, each halving the image, global average pooling, one linear layer."""

    def __init__(self, classes: int, widths: tuple[int, ...] = (24, 48, 96, 128)) -> None:
        layers: list[nn.Module] = []
        before = 3
        for width in widths:
            layers += [
                nn.Conv2d(before, width, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            before = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, 3, h, w)."""
        out: Tensor = self.layers(images)
        return out
