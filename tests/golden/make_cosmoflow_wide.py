#!/usr/bin/env python3
"""Makes cosmoflow_wide.safetensors: twenty losses of a CosmoFlow with channels for every kernel, in PyTorch (f64).

    python3 make_cosmoflow_wide.py    (PyTorch 2.x, safetensors; development only)

Network: 32^3 x 4 counts, log1p, three blocks [conv 3^3 same -> LeakyReLU 0.3 -> max-pool 2] with 16, 32 and 64 channels,
dense 16, 8, 4, output 1.2 tanh, mean squared error. Momentum in Keras' form, rate 0.005, momentum 0.9, batch 2. Weights and
samples are not stored: both sides compute them from a hash of name and position.
"""
import torch
from safetensors.torch import save_file

from make_climate import numbers

torch.set_num_threads(2)
f = torch.nn.functional
shapes = {"conv1": (16, 4, 3, 3, 3), "conv2": (32, 16, 3, 3, 3), "conv3": (64, 32, 3, 3, 3), "dense1": (16, 64 * 64),
          "dense2": (8, 16), "dense3": (4, 8)}
parameters = {}
for name, shape in shapes.items():
    count = torch.Size(shape).numel()
    weight = numbers(name + ".weight", count).reshape(shape) * (2 * shape[0] / count) ** 0.5
    parameters[name + ".weight"] = weight.double().requires_grad_()
    parameters[name + ".bias"] = (0.1 * numbers(name + ".bias", shape[0])).double().requires_grad_()
x = ((numbers("x", 2 * 32 ** 3 * 4) + 1) * 2).floor().reshape(2, 32, 32, 32, 4).double()
y = numbers("y", 8).reshape(2, 4).double()


def forward():
    a = torch.log1p(x).permute(0, 4, 1, 2, 3)
    for name in ("conv1", "conv2", "conv3"):
        a = f.conv3d(a, parameters[name + ".weight"], parameters[name + ".bias"], padding=1)
        a = f.max_pool3d(f.leaky_relu(a, 0.3), 2)
    a = a.permute(0, 2, 3, 4, 1).flatten(1)
    for name in ("dense1", "dense2"):
        a = f.leaky_relu(f.linear(a, parameters[name + ".weight"], parameters[name + ".bias"]), 0.3)
    return 1.2 * torch.tanh(f.linear(a, parameters["dense3.weight"], parameters["dense3.bias"]))


velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
losses = []
for _ in range(20):
    loss = f.mse_loss(forward(), y)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    losses.append(loss.item())
    with torch.no_grad():
        for (name, p), gradient in zip(parameters.items(), gradients):
            velocity[name] = 0.9 * velocity[name] - 0.005 * gradient
            p += velocity[name]
print("losses", losses)
save_file({"losses": torch.tensor(losses, dtype=torch.float32)}, "cosmoflow_wide.safetensors")
