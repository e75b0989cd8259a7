#!/usr/bin/env python3
"""Writes tests/golden/*_small.safetensors of the climate networks in PyTorch, small, with their variants: DeepCAM at an
output stride of 8 with a low-level branch ahead of the ReLU, DeepLab's bilinear and deconv decoders. For every parameter the gradient's norm and its product with fixed numbers (deeplab_wide: without batch norm, on images
wide enough for a dilation of 36 behind a stride of 8); for DeepCAM ten losses of SGD with Keras' momentum and
of Adam and AdamW in f64, what is evaluated behind them, and ten losses in f32 on larger images. Development only.

Weights, images and labels are not stored: both sides compute them from a hash of name and position.
"""
import os
import sys

import numpy
import torch
from safetensors.torch import save_file
from torch.nn import functional as f

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../bench/peers"))
from deepcam_torch import build, pixel_loss
from lazy_net import LazyNet

STEPS = 10


class DeepLab(LazyNet):
    """DeepLabv3+ over ResNet-50 v2 with the full-resolution decoder (arXiv:1810.01993)."""

    DECODER = "deconv1x"

    @staticmethod
    def resize(x, like):
        """TensorFlow 1's default: position i of the result lies at i * inputs / outputs."""
        for axis in (2, 3):
            inputs, outputs = x.shape[axis], like.shape[axis]
            at = torch.arange(outputs, dtype=torch.float64) * inputs / outputs
            low = at.long()
            share = (at - low).to(x.dtype).reshape([-1 if i == axis else 1 for i in range(4)])
            high = (low + 1).clamp(max=inputs - 1)
            x = x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share
        return x

    def unit(self, name, x, width, stride, dilation):
        active = self.preact(name + ".preact", x)
        shortcut = x[:, :, ::stride, ::stride]
        if x.shape[1] != 4 * width:
            shortcut = self.conv(name + ".shortcut", active, 4 * width, 1, stride, bias=True)
        first = self.norm_relu(name + ".conv1.bn", self.conv(name + ".conv1", active, width, 1))
        y = self.norm_relu(name + ".conv2.bn", self.conv(name + ".conv2", first, width, 3, stride, dilation))
        return self.conv(name + ".conv3", y, 4 * width, 1, bias=True) + shortcut, first

    def preact(self, name, x):
        return self.norm_relu(name, x)

    def forward(self, image):
        x = self.conv("root", image, 64, 7, 2, bias=True)
        x = f.max_pool2d(f.pad(x, (0, 1, 0, 1), value=-float("inf")), 3, 2)
        for i in (1, 2, 3):
            x, low = self.unit(f"block1.unit{i}", x, 64, 2 if i == 3 else 1, 1)
        for block, units, width, dilation in ((2, 4, 128, 1), (3, 6, 256, 2), (4, 3, 512, 4)):
            for i in range(1, units + 1):
                x, _ = self.unit(f"block{block}.unit{i}", x, width, 1, dilation)
        branches = [self.norm_relu("aspp1.bn", self.conv("aspp1", x, 256, 1))]
        branches += [self.norm_relu(f"aspp{i + 1}.bn", self.conv(f"aspp{i + 1}", x, 256, 3, 1, 12 * i)) for i in (1, 2, 3)]
        pooled = self.norm_relu("global.bn", self.conv("global.conv", x.mean((2, 3), keepdim=True), 256, 1))
        branches.append(pooled.expand(-1, -1, *x.shape[2:]))
        x = self.norm_relu("merge.bn", self.conv("merge", torch.cat(branches, 1), 256, 1))
        low = self.norm_relu("low_level.bn", self.conv("low_level", low, 48, 1))
        x = self.resize(x, low) if self.DECODER == "bilinear" else self.up_same("deconv1", x, 256)
        x = torch.cat((x, low), 1)
        x = self.norm_relu("decoder1.bn", self.conv("decoder1", x, 256, 3))
        x = self.norm_relu("decoder2.bn", self.conv("decoder2", x, 256, 3))
        if self.DECODER == "bilinear":
            return self.resize(self.conv("logits", x, 3, 1, bias=True), image)
        x = self.up_same("deconv3", self.up_same("deconv2", x, 256), 256)
        if self.DECODER == "deconv":
            return self.conv("logits", x, 3, 1, bias=True)
        detail = self.conv("skip2", self.conv("skip1", image, 64, 3, bias=True), 128, 3, bias=True)
        x = self.conv("full1", torch.cat((x, detail), 1), 256, 3, bias=True)
        return self.conv("logits", self.conv("full2", x, 256, 3, bias=True), 3, 1, bias=True)


class BilinearDeepLab(DeepLab):
    DECODER = "bilinear"


class DeconvDeepLab(DeepLab):
    DECODER = "deconv"


class HalvingDeepLab(DeepLab):
    """As the record runs had it: x0.5 in place of every call of batch_norm, which ahead of a unit activates as well."""

    def norm_relu(self, name, x):
        return f.relu(0.5 * x)

    def preact(self, name, x):
        return 0.5 * x


class Tiramisu(LazyNet):
    """The modified Tiramisu (arXiv:1810.01993) with two levels and a narrow growth, batch norm on."""

    BLOCKS, GROWTH = (2, 3), 8

    def activated(self, name, x):
        return self.norm_relu(name + ".bn", x, eps=1e-3)

    def dense_block(self, name, x, layers):
        made = []
        for i in range(1, layers + 1):
            layer = f"{name}.layer{i}"
            made.append(self.activated(layer, self.conv(layer, x, self.GROWTH, 5, bias=True)))
            x = torch.cat((x, made[-1]), 1)
        return x, torch.cat(made, 1)

    def forward(self, image):
        x = self.activated("first", self.conv("first", image, 16, 5, bias=True))
        skip, _ = self.dense_block("down1", x, self.BLOCKS[0])
        x = self.activated("transition_down1", self.conv("transition_down1", skip, skip.shape[1], 1, 2, bias=True))
        _, made = self.dense_block("bottom", x, self.BLOCKS[1])
        x = torch.cat((self.up_same("transition_up1", made, made.shape[1]), skip), 1)
        x, _ = self.dense_block("up1", x, self.BLOCKS[0])
        return self.conv("logits", x, 3, 1, bias=True)


def fnv(name):
    value = 0xCBF29CE484222325
    for c in name.encode():
        value = ((value ^ c) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value & 0xFFFFFFFF


def numbers(name, count):
    """Uniform in [-1, 1): murmur's finaliser of position plus the name's hash."""
    h = (numpy.arange(count, dtype=numpy.uint64) + fnv(name)) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h ^= h >> shift
        h = (h * factor) & 0xFFFFFFFF
    h ^= h >> 16
    return torch.from_numpy((h.astype(numpy.float64) / 2 ** 31 - 1).astype(numpy.float32))


def projection(name, values):
    return (values.flatten() * numbers("projection." + name, values.numel()).double()).sum()


class Case:
    def __init__(self, model, height, width, batch=2, dtype=torch.float64):
        with torch.no_grad():
            for name, p in model.named().items():
                u = numbers(name, p.numel()).reshape(p.shape)
                if p.dim() > 1:
                    p.copy_(u * (6 / p[0].numel()) ** 0.5)
                else:
                    p.copy_(0.1 * u + (1 if name.endswith(".weight") else 0))
                if name.endswith(".bn3.weight"):
                    p.mul_(0.1)  # small residuals: with large ones the loss surface is too rough to follow in f32
        self.model, self.dtype = model.to(dtype), dtype
        self.parameters = dict(sorted(model.named().items()))
        x = numbers("x", batch * height * width * 16).reshape(batch, height, width, 16)
        self.x = x.permute(0, 3, 1, 2).contiguous().to(dtype)
        # Mostly background, as in the real images.
        u = numbers("labels", batch * height * width).reshape(batch, height, width)
        self.labels = (u > 0.8).long() + (u > 0.98).long()

    def loss(self):
        return pixel_loss(self.model(self.x), self.labels, self.dtype)

    def gradients(self):
        self.model.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss.item()

    def first_gradients(self):
        self.gradients()
        grads = {name: p.grad for name, p in self.parameters.items()}
        return {"projections": torch.tensor([projection(n, g) for n, g in grads.items()], dtype=torch.float32),
                "norms": torch.tensor([g.norm() for g in grads.values()], dtype=torch.float32)}

    def descend(self, rate):
        """Losses of SGD with Keras' momentum."""
        velocity = {k: torch.zeros_like(p) for k, p in self.parameters.items()}
        losses = []
        for _ in range(STEPS):
            losses.append(self.gradients())
            with torch.no_grad():
                for name, p in self.parameters.items():
                    velocity[name].mul_(0.9).sub_(rate * p.grad)
                    p.add_(velocity[name])
        return torch.tensor(losses)

    def adam(self, kind, rate):
        """Adam adds its decay to the gradients, AdamW does not."""
        optimizer = kind(self.parameters.values(), lr=rate, eps=1e-6, weight_decay=0.1)
        losses = []
        for _ in range(STEPS):
            losses.append(self.gradients())
            optimizer.step()
        return torch.tensor(losses)

    def evaluated(self):
        """The loss and the statistics that evaluation uses, of the weights as they are."""
        self.model.eval()
        with torch.no_grad():
            loss = self.loss()
        arrays = {k[len("layers."):].replace("/", "."): v for k, v in self.model.named_buffers() if "running" in k}
        return {"evaluated_loss": torch.tensor([loss.item()]),
                "statistics": torch.tensor([projection(n, v) for n, v in sorted(arrays.items())], dtype=torch.float32)}


def main():
    torch.set_num_threads(2)
    deepcam = Case(build(divisor=8), 32, 320).first_gradients()  # wide enough for a dilation of 18 behind a stride of 16
    case = Case(build(divisor=8), 32, 64)
    deepcam["losses"] = case.descend(0.01)
    deepcam.update(case.evaluated())
    deepcam["adam_w_losses"] = Case(build(divisor=8), 32, 64).adam(torch.optim.AdamW, 0.001)
    deepcam["adam_losses"] = Case(build(divisor=8), 32, 64).adam(torch.optim.Adam, 0.001)
    deepcam["f32_losses"] = Case(build(divisor=8), 256, 256, dtype=torch.float32).descend(0.0065)
    exact = Case(build(divisor=8), 256, 256).descend(0.0065)
    for name, values in deepcam.items():
        if name.endswith("losses"):
            print(name, values.tolist())
    print("rounding of f32 moved PyTorch's own losses by", (deepcam["f32_losses"] / exact - 1).abs().max().item())
    results = {"deepcam": deepcam, "deeplab": Case(DeepLab(16, 32), 8, 16).first_gradients(),
               "deepcam_fine": Case(build(divisor=8, output_stride=8, low_level_relu=False), 16, 32).first_gradients(),
               "deeplab_bilinear": Case(BilinearDeepLab(16, 32), 8, 16).first_gradients(),
               "deeplab_deconv": Case(DeconvDeepLab(16, 32), 8, 16).first_gradients(),
               "deeplab_wide": Case(HalvingDeepLab(16, 32), 16, 384).first_gradients(),
               "tiramisu": Case(Tiramisu(16, 32), 16, 32).first_gradients()}
    for name, arrays in results.items():
        save_file(arrays, os.path.join(HERE, name + "_small.safetensors"))


if __name__ == "__main__":
    main()
