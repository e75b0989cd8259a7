"""Trains a PyTorch model as Convoy has trained, and compares. Development only."""
import argparse

import torch


def arguments(description, program, steps, rate):
    """The parser of a comparison with `program`, which begins from these defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("bin")
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--lr", type=float, default=rate)
    parser.add_argument("--flags", default="", help="more flags for " + program)
    return parser


def follow(ours, end, parameters, loss_of, rate):
    """Steps of Keras' momentum: `ours` are Convoy's losses, `end` its final tensors, loss_of(step) gives PyTorch's loss."""
    velocity = {k: torch.zeros_like(v) for k, v in parameters.items()}
    worst = 0.0
    for step, expected in enumerate(ours):
        for p in parameters.values():
            p.grad = None
        loss = loss_of(step)
        loss.backward()
        with torch.no_grad():
            for k, p in parameters.items():
                velocity[k] = 0.9 * velocity[k] - rate * p.grad
                p += velocity[k]
        difference = abs(expected - loss.item()) / loss.item()
        worst = max(worst, difference)
        print(f"step {step:2d}  convoy {expected:.7f}  torch {loss.item():.7f}  relative {difference:.1e}")
    tensors = {k: ((end[k] - p.detach()).norm() / p.detach().norm()).item() for k, p in parameters.items()}
    print(f"largest relative difference of a loss {worst:.2e}, of a tensor {max(tensors.values()):.2e}; "
          f"loss {ours[0]:.4f} -> {ours[-1]:.4f}")
