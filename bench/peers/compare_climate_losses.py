#!/usr/bin/env python3
"""Trains DeepCAM in Convoy and in PyTorch from the same weights on the same images and compares losses and final weights
(f32, SGD with Keras' momentum).

    compare_climate_losses.py BIN_DIR DATA_DIR    (PyTorch, safetensors, h5py; development only)

DATA_DIR holds train/, validation/ and stats.h5 as climate_simulate writes them.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

import h5py
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from deepcam_torch import build, pixel_loss
from follow import arguments, follow


def main():
    parser = arguments(__doc__, "climseg_train", 10, 0.005)
    parser.add_argument("--width-divisor", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(3)
    with h5py.File(f"{args.data}/stats.h5") as f:
        low, high = (torch.from_numpy(f[f"climate/{name}"][:]).float() for name in ("minval", "maxval"))
    model = build(divisor=args.width_divisor)
    for name, p in model.named().items():
        if name.endswith(".bn3.weight"):
            with torch.no_grad():
                p.mul_(0.1)  # small residuals: with large ones rounding grows from step to step
    parameters = model.named()
    files = sorted(glob.glob(f"{args.data}/train/*.h5"))
    per_epoch = len(files) // args.batch
    with tempfile.TemporaryDirectory() as work:
        save_file({k: v.detach().contiguous() for k, v in parameters.items()}, f"{work}/start.safetensors")
        subprocess.run([f"{args.bin}/climseg_train", "--data-dir", args.data, "--output-dir", f"{work}/run", "--init",
                        f"{work}/start.safetensors", "--save", f"{work}/end.safetensors", "--local-batch-size", str(args.batch),
                        "--max-steps", str(args.steps), "--no-shuffle", "--optimizer", "SGD", "--start-lr", str(args.lr),
                        "--width-divisor", str(args.width_divisor), "--max-epochs", "1000", "--n-valid",
                        "1", *args.flags.split()], check=True, stdout=subprocess.DEVNULL)
        ours = [json.loads(line)["loss"] for line in open(f"{work}/run/metrics.jsonl")]

        def loss(step):
            first = step % per_epoch * args.batch
            xs, labels = [], []
            for name in files[first:first + args.batch]:
                with h5py.File(name) as f:
                    xs.append((torch.from_numpy(f["climate/data"][:]) - low) / (high - low))
                    labels.append(torch.from_numpy(f["climate/labels_0"][:]).long())
            # Channels-last input makes PyTorch 2.15 crash in the backward pass of these few channels.
            x = torch.stack(xs).permute(0, 3, 1, 2).contiguous()
            return pixel_loss(model(x), torch.stack(labels))

        follow(ours, load_file(f"{work}/end.safetensors"), parameters, loss, args.lr)


if __name__ == "__main__":
    main()
