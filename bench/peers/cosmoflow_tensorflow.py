#!/usr/bin/env python3
"""One CosmoFlow training step in Keras (the MLPerf HPC reference's framework), f32 and mixed_bfloat16. Development only."""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

# TensorFlow leaves oneDNN off on CPUs without AVX-512, where its own 3-D convolutions take five times as long.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

CONFIGURATIONS = ("f32", "mixed_bfloat16")


def measure(configuration, size, batch, steps, threads):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if configuration != "f32":
        tf.keras.mixed_precision.set_global_policy(configuration)
    layers = [tf.keras.layers.Input((size, size, size, 4))]
    for block in range(size.bit_length() - 3):
        layers += [tf.keras.layers.Conv3D(min(32 << block, 512), 3, padding="same"), tf.keras.layers.LeakyReLU(0.3),
                   tf.keras.layers.MaxPool3D(2)]
    layers.append(tf.keras.layers.Flatten())
    for units in (128, 64):
        layers += [tf.keras.layers.Dense(units), tf.keras.layers.LeakyReLU(0.3)]
    layers += [tf.keras.layers.Dense(4, dtype="float32"), tf.keras.layers.Lambda(lambda v: 1.2 * tf.tanh(v), dtype="float32")]
    model = tf.keras.Sequential(layers)
    optimizer = tf.keras.optimizers.SGD(1e-3, momentum=0.9)
    rng = np.random.default_rng(1)
    x = tf.constant(np.log1p(rng.poisson(1.0, (batch, size, size, size, 4))).astype("f4"))
    target = tf.constant(rng.uniform(-1, 1, (batch, 4)).astype("f4"))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - target) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    seconds = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        step().numpy()
        seconds.append(time.perf_counter() - start)
    seconds = seconds[1:]
    return {"framework": "tensorflow " + tf.__version__, "configuration": configuration, "size": size, "batch": batch,
            "median_seconds": statistics.median(seconds), "min_seconds": min(seconds),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=CONFIGURATIONS, help="one configuration, in this process")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only, args.size, args.batch, args.steps, args.threads)), flush=True)
        return
    for configuration in CONFIGURATIONS:
        subprocess.run([sys.executable, __file__, "--only", configuration, "--size", str(args.size), "--batch",
                        str(args.batch), "--steps", str(args.steps), "--threads", str(args.threads)], check=True)


if __name__ == "__main__":
    main()
