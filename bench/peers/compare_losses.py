#!/usr/bin/env python3
"""Trains Convoy and PyTorch from the same weights on the same samples and compares losses and final weights (f32).

    compare_losses.py BIN_DIR DATA_DIR    (PyTorch, safetensors, h5py; development only)

DATA_DIR holds train/ and validation/ in any format that convoy_data reads. Keras' momentum in both, dropout off.
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
from cosmoflow_torch import build
from follow import arguments, follow


def names(model):
    """Convoy's parameter names, in order."""
    for i, conv in enumerate(model.convs):
        yield f"conv{i + 1}", conv
    for i, dense in enumerate(model.dense):
        yield f"dense{i + 1}", dense


def main():
    args = arguments(__doc__, "cosmoflow_train", 20, 0.002).parse_args()
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([f"{args.bin}/convoy_data", "convert", f"{args.data}/train", "--format", "split-hdf5", "--no-gzip",
                        "--out", f"{work}/h5"], check=True, stdout=subprocess.DEVNULL)
        files = sorted(glob.glob(f"{work}/h5/*.hdf5"))
        with h5py.File(files[0]) as f:
            size = f["x"].shape[0]
        model = build(size)
        parameters = {f"{name}.{kind}": getattr(layer, kind) for name, layer in names(model) for kind in ("weight", "bias")}
        save_file({k: v.detach().contiguous() for k, v in parameters.items()}, f"{work}/start.safetensors")
        subprocess.run([f"{args.bin}/cosmoflow_train", "--data-dir", args.data, "--output-dir", f"{work}/run", "--init",
                        f"{work}/start.safetensors", "--save", f"{work}/end.safetensors", "--batch-size", str(args.batch),
                        "--max-steps", str(args.steps), "--no-shuffle", "--dropout", "0", "--lr", str(args.lr), "--n-epochs",
                        "1000", "--n-valid", "1", *args.flags.split()], check=True, stdout=subprocess.DEVNULL)
        ours = [json.loads(line)["loss"] for line in open(f"{work}/run/metrics.jsonl")]
        per_epoch = len(files) // args.batch

        def loss(step):
            first = step % per_epoch * args.batch
            xs, ys = [], []
            for name in files[first:first + args.batch]:
                with h5py.File(name) as f:
                    xs.append(torch.from_numpy(f["x"][:]).float())
                    ys.append(torch.from_numpy(f["y"][:]))
            x = torch.log1p(torch.stack(xs)).permute(0, 4, 1, 2, 3)
            return torch.nn.functional.mse_loss(model(x), torch.stack(ys))

        follow(ours, load_file(f"{work}/end.safetensors"), parameters, loss, args.lr)


if __name__ == "__main__":
    main()
