#!/usr/bin/env python3
"""One DeepCAM training step in PyTorch, in its CPU configurations or, with --device cuda, in its CUDA ones
(cudnn.benchmark, the whole step replayed as one CUDA graph, inputs on the device). Development only: nothing in Convoy
needs it.

Prints one JSON line per configuration: median and minimum seconds per step; on the CPU also peak resident MiB of a process
that ran only that configuration. Each configuration runs in a process of its own, rounds interleaved by --rounds.
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
WEIGHTS = (0.986267818 ** -0.125, 0.00045787089 ** -0.125, 0.01327431072 ** -0.125)


def build(channels=16, divisor=1, output_stride=16, low_level_relu=True):
    import torch
    from lazy_net import LazyNet
    from torch.nn import functional as f

    class DeepCam(LazyNet):
        def separable(self, name, x, width, stride=1, dilation=1):
            x = self.conv(name + ".depthwise", x, x.shape[1], 3, stride, dilation, x.shape[1])
            return self.conv(name + ".pointwise", x, width, 1)

        def skip(self, name, x, width, stride):
            return self.norm(name + ".skip_bn", self.conv(name + ".skip", x, width, 1, stride))

        def entry(self, name, x, width, stride):
            y = self.norm_relu(name + ".bn1", self.separable(name + ".sep1", x, width))
            y = self.norm(name + ".bn2", self.separable(name + ".sep2", y, width))
            return self.separable(name + ".sep3", y, width, stride) + self.skip(name, x, width, stride)

        def middle(self, name, x, dilation):
            y = x
            for i in (1, 2):
                y = self.norm_relu(f"{name}.bn{i}", self.separable(f"{name}.sep{i}", y, x.shape[1], 1, dilation))
            return f.relu(self.norm(name + ".bn3", self.separable(name + ".sep3", y, x.shape[1], 1, dilation)) + x)

        def forward(self, image):
            d = divisor
            x = self.norm_relu("bn1", self.conv("conv1", image, 32 // d, 3, 2))
            x = self.norm_relu("bn2", self.conv("conv2", x, 64 // d, 3))
            dilation = 16 // output_stride
            raw = self.entry("block1", x, 128 // d, 2)
            x = f.relu(raw)
            low = x if low_level_relu else raw
            x = f.relu(self.entry("block2", x, 256 // d, 2))
            x = f.relu(self.entry("block3", x, 728 // d, output_stride // 8))
            for i in range(4, 20):
                x = self.middle(f"block{i}", x, dilation)
            y = self.norm_relu("block20.bn1", self.separable("block20.sep1", x, x.shape[1], 1, dilation))
            y = self.norm("block20.bn2", self.separable("block20.sep2", y, 1024 // d, 1, dilation))
            x = self.separable("block20.sep3", y, 1024 // d) + self.skip("block20", x, 1024 // d, 1)
            for name, width in (("3", 1536 // d), ("4", 1536 // d), ("5", 2048 // d)):
                x = self.norm_relu("bn" + name, self.separable("conv" + name, x, width, 1, 2 * dilation))
            w = 256 // d
            branches = [self.norm_relu("aspp1.bn", self.conv("aspp1", x, w, 1))]
            branches += [self.norm_relu(f"aspp{i + 1}.bn", self.conv(f"aspp{i + 1}", x, w, 3, 1, 6 * i * dilation))
                         for i in (1, 2, 3)]
            pooled = self.conv("global.conv", x.mean((2, 3), keepdim=True), w, 1)
            affine = self.layer("global.affine", lambda: Affine(w))
            branches.append(f.relu(affine(pooled)).expand(-1, -1, *x.shape[2:]))
            x = self.norm_relu("merge.bn", self.conv("merge", torch.cat(branches, 1), w, 1))
            low = self.norm_relu("low_level.bn", self.conv("low_level", low, 48 // d, 1))
            x = self.norm_relu("deconv1.bn", self.up("deconv1", x, w))
            if output_stride == 16:
                x = self.norm_relu("deconv2.bn", self.up("deconv2", x, w))
            x = torch.cat((x, low), 1)
            x = self.norm_relu("decoder1.bn", self.conv("decoder1", x, w, 3))
            x = self.norm_relu("decoder2.bn", self.conv("decoder2", x, w, 3))
            x = self.conv("decoder3", x, w, 1, bias=True)
            x = self.norm_relu("deconv3.bn", self.up("deconv3", x, w))
            return self.up("deconv4", x, 3)

    class Affine(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(width))
            self.bias = torch.nn.Parameter(torch.zeros(width))

        def forward(self, x):
            return x * self.weight[:, None, None] + self.bias[:, None, None]

    return DeepCam(channels, 64)


def pixel_loss(logits, labels, dtype=None):
    """Cross-entropy times class weight, plain mean over pixels; in f32 unless another type is asked for."""
    import torch
    dtype = dtype or torch.float32
    loss = torch.nn.functional.cross_entropy(logits.to(dtype), labels, reduction="none")
    return (loss * torch.tensor(WEIGHTS, dtype=dtype)[labels]).mean()


def measure(configuration, height, width, batch, steps, threads):
    import contextlib

    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = build()
    x = torch.rand(batch, 16, height, width)
    labels = torch.randint(0, 3, (batch, height, width))
    if "channels_last" in configuration:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-6)
    seconds = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        cast = torch.autocast("cpu", dtype=torch.bfloat16) if "bf16" in configuration else contextlib.nullcontext()
        with cast:
            logits = model(x)
        pixel_loss(logits, labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    steady = seconds[1:]
    print(json.dumps({"peer": "PyTorch " + torch.__version__, "configuration": configuration, "threads": threads,
                      "height": height, "width": width, "batch": batch, "median_seconds": statistics.median(steady),
                      "min_seconds": min(steady),
                      "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)


def measure_cuda(configuration, height, width, batch, steps):
    import torch
    from cuda_graph import narrow_type, replayed
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    model = build().cuda()
    x = torch.rand(batch, 16, height, width).cuda()
    labels = torch.randint(0, 3, (batch, height, width)).cuda()
    weights = torch.tensor(WEIGHTS).cuda()
    if "channels_last" in configuration:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    narrow = narrow_type(configuration)
    scale = 1024.0 if narrow == torch.float16 else 1.0  # fixed: a GradScaler would only add to the step
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-6, fused=True, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", narrow or torch.bfloat16, enabled=narrow is not None, cache_enabled=False):
            logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels, weights, reduction="none").mean()
        (loss * scale).backward()
        optimizer.step()

    times = replayed(step, steps)
    print(json.dumps({"peer": "PyTorch " + torch.__version__, "configuration": configuration, "height": height,
                      "width": width, "batch": batch, **times, "samples_per_second": batch / times["median_seconds"]}),
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--height", type=int, default=768)
    parser.add_argument("--width", type=int, default=1152)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--configurations", help="default: all of the device")
    parser.add_argument("--one", help="measure this configuration in this process")
    args = parser.parse_args()
    known = CUDA_CONFIGURATIONS if args.device == "cuda" else CONFIGURATIONS
    wanted = [args.one] if args.one else (args.configurations or ",".join(known)).split(",")
    for configuration in wanted:
        if configuration not in known:
            parser.error(f"expected one of {', '.join(known)}, found {configuration}")
    if args.one and args.device == "cuda":
        return measure_cuda(args.one, args.height, args.width, args.batch, args.steps)
    if args.one:
        return measure(args.one, args.height, args.width, args.batch, args.steps, args.threads)
    failed = {}
    for _ in range(args.rounds):
        for configuration in wanted:
            run = subprocess.run([sys.executable, __file__, "--one", configuration, "--device", args.device, "--height",
                                  str(args.height), "--width", str(args.width), "--batch", str(args.batch), "--steps",
                                  str(args.steps), "--threads", str(args.threads)], check=False)
            if run.returncode != 0:  # the others may run all the same
                failed[configuration] = run.returncode
    if failed:
        sys.exit("failed: " + ", ".join(f"{name} (exit code {code})" for name, code in failed.items()))


if __name__ == "__main__":
    main()
