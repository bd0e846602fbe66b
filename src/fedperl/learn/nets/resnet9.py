"""ResNet-9 without batch norm or biases, as FedMatch uses it for CIFAR-10: 6,568,640 weights for ten classes."""

import torch.nn.functional as F
from torch import Tensor, nn


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


class PooledReLU(nn.Module):
    """The largest of four, then ReLU: the same as the other way round, on a quarter of the numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, channels, h // 2, w // 2) of x, (n, channels, h, w)."""
        return F.relu(F.max_pool2d(x, 2))


class ResNet9(nn.Module):
    """Eight 3x3 convolutions with two residual pairs, global max-pooling, one linear layer."""

    def __init__(self, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.conv2 = _conv(3, 64), _conv(64, 128)
        self.pair1 = nn.ModuleList([_conv(128, 128), _conv(128, 128)])
        self.conv3, self.conv4 = _conv(128, 256), _conv(256, 512)
        self.pair2 = nn.ModuleList([_conv(512, 512), _conv(512, 512)])
        self.pooled: nn.Module = PooledReLU()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(512, classes, bias=False)
        for weight in self.parameters():
            # Keras' VarianceScaling: truncated normal of variance 1 / fan-in, its std corrected for the truncation.
            std = weight[0].numel() ** -0.5 / 0.87962566
            nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, 3, h, w), h and w at least 8."""
        x = F.relu(self.conv1(images))
        x = self.pooled(self.conv2(x))
        x = x + _through(self.pair1, x)
        x = self.pooled(self.conv3(x))
        x = self.pooled(self.conv4(x))
        x = x + _through(self.pair2, x)
        # Over all that is left of the image; the adaptive kind says the same, slowly on a GPU.
        out: Tensor = self.head(self.dropout(F.max_pool2d(x, x.shape[-2:]).flatten(1)))
        return out


def _through(pair: nn.ModuleList, x: Tensor) -> Tensor:
    for conv in pair:
        x = F.relu(conv(x))
    return x
