"""ResNet-18 (He et al., Deep Residual Learning for Image Recognition, 2016), with the stem for small images."""

from torch import nn


class BasicBlock(nn.Module):
    """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""

    def __init__(self, inputs, outputs, stride, momentum):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs, momentum=momentum),
            nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs, momentum=momentum))
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                          nn.BatchNorm2d(outputs, momentum=momentum))

    def forward(self, x):
        return nn.functional.relu(self.layers(x) + self.shortcut(x))


def resnet18(width=64, channels=1, classes=10, momentum=0.1):
    """A Sequential of stem, eight blocks and head; `width` is 64 in the paper."""
    blocks, inputs = [], width
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            blocks.append(BasicBlock(inputs, width << stage, stride, momentum))
            inputs = width << stage
    stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=momentum), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(nn.Sequential(*stem), *blocks, nn.Sequential(*head))
