#!/usr/bin/env python3
"""One CosmoFlow training step in PyTorch, in its four CPU configurations or, with --device cuda, in its six CUDA ones
(cudnn.benchmark, the whole step replayed as one CUDA graph, inputs on the device). Development only: nothing in Convoy
needs it.

Prints one JSON line per configuration: median and minimum seconds per step; on the CPU also peak resident MiB, for which
each configuration runs in a process of its own. CUDA ones share a process. All run one after the other.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

CONFIGURATIONS = ("f32", "f32_channels_last", "bf16", "bf16_channels_last")
CUDA_CONFIGURATIONS = CONFIGURATIONS + ("f16", "f16_channels_last")


def build(size, channels=4, network="mlperf"):
    """MLPerf HPC's network, or that of LBANN's application (lbann; lbann_bn with batch norm)."""
    import torch
    mlperf, normalises = network == "mlperf", network == "lbann_bn"
    first, widest, units = (32, 512, (128, 64)) if mlperf else (16, 256, (2048, 256))

    class CosmoFlow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            blocks, width, inputs = size.bit_length() - 3, first, channels
            self.convs, self.norms = torch.nn.ModuleList(), torch.nn.ModuleList()
            for _ in range(blocks):
                self.convs.append(torch.nn.Conv3d(inputs, width, 3, padding=1, bias=not normalises))
                self.norms.append(torch.nn.BatchNorm3d(width, momentum=0.01) if normalises else torch.nn.Identity())
                inputs, width = width, min(2 * width, widest)
            self.dense = torch.nn.ModuleList(
                [torch.nn.Linear(inputs * (size >> blocks) ** 3, units[0]), torch.nn.Linear(*units),
                 torch.nn.Linear(units[1], 4)])

        def forward(self, x):
            f = torch.nn.functional
            for conv, norm in zip(self.convs, self.norms):
                x = f.leaky_relu(norm(conv(x)), 0.3)
                x = f.max_pool3d(x, 2) if mlperf else f.avg_pool3d(x, 3, 2, 1)
            x = x.permute(0, 2, 3, 4, 1).flatten(1)  # channels last, as Keras flattens
            x = f.leaky_relu(self.dense[0](x), 0.3)
            x = f.leaky_relu(self.dense[1](x), 0.3)
            return 1.2 * torch.tanh(self.dense[2](x))

    return CosmoFlow()


def measure(configuration, size, batch, steps, threads, network):
    import contextlib

    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = build(size, network=network)
    x = torch.log1p(torch.poisson(torch.full((batch, 4, size, size, size), 1.0)))
    target = torch.rand(batch, 4) * 2 - 1
    if "channels_last" in configuration:
        model = model.to(memory_format=torch.channels_last_3d)
        x = x.contiguous(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    seconds = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if configuration.startswith("bf16") else contextlib.nullcontext():
            prediction = model(x)
        loss = torch.nn.functional.mse_loss(prediction.float(), target)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    seconds = seconds[1:]
    return {"framework": "torch " + torch.__version__, "network": network, "configuration": configuration,
            "size": size, "batch": batch, "median_seconds": statistics.median(seconds), "min_seconds": min(seconds),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure_cuda(configuration, size, batch, steps, network):
    import torch
    from cuda_graph import narrow_type, replayed
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    model = build(size, network=network).cuda()
    x = torch.log1p(torch.poisson(torch.full((batch, 4, size, size, size), 1.0))).cuda()
    target = (torch.rand(batch, 4) * 2 - 1).cuda()
    if "channels_last" in configuration:
        model = model.to(memory_format=torch.channels_last_3d)
        x = x.contiguous(memory_format=torch.channels_last_3d)
    narrow = narrow_type(configuration)
    scale = 1024.0 if narrow == torch.float16 else 1.0  # fixed: a GradScaler would only add to the step
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3 / scale, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", narrow or torch.bfloat16, enabled=narrow is not None, cache_enabled=False):
            prediction = model(x)
        loss = torch.nn.functional.mse_loss(prediction.float(), target)
        (loss * scale).backward()
        optimizer.step()

    times = replayed(step, steps)
    return {"framework": "torch " + torch.__version__, "network": network, "configuration": configuration,
            "size": size, "batch": batch, **times,
            "samples_per_second": batch / times["median_seconds"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--network", choices=("mlperf", "lbann", "lbann_bn"), default="mlperf")
    parser.add_argument("--only", help="one configuration of the device, in this process")
    args = parser.parse_args()
    known = CUDA_CONFIGURATIONS if args.device == "cuda" else CONFIGURATIONS
    if args.only and args.only not in known:
        parser.error(f"--only: expected one of {', '.join(known)}, found {args.only}")
    if args.device == "cuda":
        for configuration in [args.only] if args.only else known:
            print(json.dumps(measure_cuda(configuration, args.size, args.batch, args.steps, args.network)), flush=True)
        return
    if args.only:
        print(json.dumps(measure(args.only, args.size, args.batch, args.steps, args.threads, args.network)), flush=True)
        return
    for configuration in known:
        subprocess.run([sys.executable, __file__, "--only", configuration, "--size", str(args.size), "--batch",
                        str(args.batch), "--steps", str(args.steps), "--threads", str(args.threads), "--network", args.network],
                       check=True)


if __name__ == "__main__":
    main()
