#!/usr/bin/env python3
"""Writes tests/golden/deepcam_small.safetensors: a narrow DeepCAM in PyTorch, ten losses of SGD with Keras' momentum and,
for every parameter, the gradient's norm and its product with fixed numbers. Development only.

Weights, images and labels are not stored: both sides compute them from a hash of name and position.
"""
import os
import sys

import numpy
import torch
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/peers"))
from deepcam_torch import build, pixel_loss

HEIGHT, WIDTH, BATCH, DIVISOR, RATE = 32, 64, 2, 8, 0.01


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


def main():
    torch.set_num_threads(1)
    model = build(divisor=DIVISOR)
    parameters = dict(sorted(model.named().items()))
    with torch.no_grad():
        for name, p in parameters.items():
            u = numbers(name, p.numel()).reshape(p.shape)
            if p.dim() > 1:
                p.copy_(u * (6 / p[0].numel()) ** 0.5)
            else:
                p.copy_(0.1 * u + (1 if name.endswith(".weight") else 0))
            if name.endswith(".bn3.weight"):
                p.mul_(0.1)  # small residuals: with large ones the loss surface is too rough to follow in f32
    x = numbers("x", BATCH * HEIGHT * WIDTH * 16).reshape(BATCH, HEIGHT, WIDTH, 16).permute(0, 3, 1, 2).contiguous()
    # Something to learn: the class depends on the smoothed first channel.
    smooth = torch.nn.functional.avg_pool2d(x[:, :1], 9, 1, 4)[:, 0]
    labels = (smooth > 0.05).long() + (smooth > 0.1).long()
    # In f64: ReLUs behind 76 batch norms amplify the rounding of f32 until two programs part.
    model.double()
    parameters = dict(sorted(model.named().items()))
    velocity = {k: torch.zeros_like(p) for k, p in parameters.items()}
    losses, projections, norms = [], [], []
    for step in range(10):
        model.zero_grad()
        loss = pixel_loss(model(x.double()), labels, torch.float64)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for name, p in parameters.items():
                if step == 0:
                    projections.append((p.grad.flatten() * numbers("projection." + name, p.numel()).double()).sum())
                    norms.append(p.grad.norm())
                velocity[name].mul_(0.9).sub_(RATE * p.grad)
                p.add_(velocity[name])
    print(losses)
    save_file({"losses": torch.tensor(losses), "projections": torch.tensor(projections, dtype=torch.float32),
               "norms": torch.tensor(norms, dtype=torch.float32), "labels": labels.to(torch.uint8)},
              os.path.join(os.path.dirname(os.path.abspath(__file__)), "deepcam_small.safetensors"))


if __name__ == "__main__":
    main()
