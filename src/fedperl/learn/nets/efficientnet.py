"""EfficientNet-B0 (Tan and Le 2019), the paper's backbone, from MONAI, which can take the published weights."""

from typing import cast

from torch import nn


def efficientnet_b0(classes: int, dropout: float = 0.2) -> nn.Module:
    """Return EfficientNet-B0 with a new head: drop-connect 0.2, 360 state entries, 49 of them counters."""
    from monai.networks.nets import EfficientNetBN  # slow to import: only for those who use it

    net = EfficientNetBN("efficientnet-b0", pretrained=False, num_classes=classes)
    net._dropout.p = dropout
    return cast(nn.Module, net)
