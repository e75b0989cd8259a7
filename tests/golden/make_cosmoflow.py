#!/usr/bin/env python3
"""Makes cosmoflow_small.safetensors and lbann_small.safetensors: weights, inputs, gradients and a loss curve of small
CosmoFlows in PyTorch (f32).

    python3 make_cosmoflow.py    (PyTorch 2.x, safetensors; development only)

Networks: 16^3 x 4 counts, log1p, two blocks with 4 and 8 channels, dense 8, 6, 4, output 1.2 tanh, mean squared error.
Blocks: MLPerf's [conv 3^3 same -> LeakyReLU 0.3 -> max-pool 2], LBANN's with batch norm [conv without bias -> batch norm
of momentum 0.01 -> LeakyReLU 0.3 -> mean of windows of 3 every 2, zeros around]. Momentum in Keras' form, rate 0.02,
momentum 0.9, batch 2, 20 steps.
"""
import torch
from safetensors.torch import save_file

torch.set_num_threads(1)
f = torch.nn.functional


def make(file, lbann):
    torch.manual_seed(7)
    names = ["conv1", "conv2", "dense1", "dense2", "dense3"]
    layers = [torch.nn.Conv3d(4, 4, 3, padding=1, bias=not lbann), torch.nn.Conv3d(4, 8, 3, padding=1, bias=not lbann),
              torch.nn.Linear(8 * 64, 8), torch.nn.Linear(8, 6), torch.nn.Linear(6, 4)]
    norms = [torch.nn.BatchNorm3d(channels, momentum=0.01) for channels in (4, 8)] if lbann else []
    x = torch.poisson(torch.full((2, 16, 16, 16, 4), 1.3)).to(torch.int16)
    y = torch.rand(2, 4) * 2 - 1

    def block(i, a):
        a = layers[i](a)
        if lbann:
            return f.avg_pool3d(f.leaky_relu(norms[i](a), 0.3), 3, 2, 1, count_include_pad=True)
        return f.max_pool3d(f.leaky_relu(a, 0.3), 2)

    def forward():
        a = block(1, block(0, torch.log1p(x.float()).permute(0, 4, 1, 2, 3)))
        a = a.permute(0, 2, 3, 4, 1).flatten(1)
        for dense in layers[2:4]:
            a = f.leaky_relu(dense(a), 0.3)
        return 1.2 * torch.tanh(layers[4](a))

    named = list(zip(names, layers)) + [(f"bn{i + 1}", norm) for i, norm in enumerate(norms)]
    out = {"x": x, "y": y}
    parameters = {f"{name}.{kind}": p for name, layer in named for kind, p in layer.named_parameters()}
    for name, p in parameters.items():
        out["start." + name] = p.detach().clone()
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
    losses = []
    for step in range(20):
        for p in parameters.values():
            p.grad = None
        loss = f.mse_loss(forward(), y)
        loss.backward()
        if step == 0:
            for name, p in parameters.items():
                out["gradient." + name] = p.grad.clone()
        losses.append(loss.item())
        with torch.no_grad():
            for name, p in parameters.items():
                velocity[name] = 0.9 * velocity[name] - 0.02 * p.grad
                p += velocity[name]
    for name, p in parameters.items():
        out["final." + name] = p.detach().clone()
    for i, norm in enumerate(norms):
        out[f"final.bn{i + 1}.running_mean"], out[f"final.bn{i + 1}.running_var"] = norm.running_mean, norm.running_var
    out["losses"] = torch.tensor(losses)
    print(file, "losses", losses[0], "->", losses[-1])
    save_file({k: v.contiguous() for k, v in out.items()}, file)


make("cosmoflow_small.safetensors", lbann=False)
make("lbann_small.safetensors", lbann=True)
