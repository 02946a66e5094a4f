"""Models for images of 32 x 32 that no option of timm gives, from timm's parts: `package.module:function` of a spec."""

from typing import Any, cast

from torch import Tensor, nn


def resnet18(classes: int, drop_rate: float = 0.0) -> nn.Module:
    """ResNet-18 with a stem of 3 x 3, without stride or pooling."""
    from timm.models.resnet import BasicBlock

    return _resnet(BasicBlock, classes, (64, 128, 256, 512), drop_rate)


def plain18(classes: int, drop_rate: float = 0.0) -> nn.Module:
    """The same 18 layers without shortcuts, half as wide behind the stem."""
    from timm.models.resnet import BasicBlock

    class PlainBlock(BasicBlock):  # type: ignore[misc]  # timm is not installed where mypy runs
        """A block whose input is not added to its output."""

        def forward(self, maps: Tensor) -> Tensor:
            inner = self.act1(self.bn1(self.conv1(maps)))
            return cast(Tensor, self.act2(self.bn2(self.conv2(inner))))

    model = _resnet(PlainBlock, classes, (32, 64, 128, 256), drop_rate)
    for module in model.modules():
        if isinstance(module, PlainBlock):
            module.downsample = None  # of the shortcut
            nn.init.ones_(module.bn2.weight)  # timm's begins at 0, and nothing would pass
    return model


def convnext(classes: int, drop_rate: float = 0.0) -> nn.Module:
    """ConvNeXt-Atto whose maps begin at 16 x 16 and end at 2 x 2: timm's would end at one pixel."""
    from timm import create_model

    model = create_model("convnext_atto", num_classes=classes, patch_size=2, drop_rate=drop_rate)
    model.stages[0].downsample = nn.Identity()
    return cast(nn.Module, model)


def mixer(classes: int, image_size: int = 32, drop_rate: float = 0.0, drop_path_rate: float = 0.0) -> nn.Module:
    """MLP-Mixer of 8 blocks, 256 wide, with patches of 4 x 4."""
    from timm.models.mlp_mixer import MlpMixer

    sizes = {"img_size": image_size, "patch_size": 4, "num_blocks": 8, "embed_dim": 256}
    rates = {"drop_rate": drop_rate, "drop_path_rate": drop_path_rate}
    return cast(nn.Module, MlpMixer(num_classes=classes, **sizes, **rates))


def _resnet(block: Any, classes: int, widths: tuple[int, ...], drop_rate: float) -> nn.Module:
    from timm.models.resnet import ResNet

    model = ResNet(block, (2, 2, 2, 2), num_classes=classes, channels=widths, drop_rate=drop_rate)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return cast(nn.Module, model)
