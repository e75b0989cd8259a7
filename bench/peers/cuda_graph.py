"""Times a step that is replayed as one CUDA graph. Development only."""
import statistics
import time


def replayed(step, steps):
    """Median and minimum seconds, and the device, as the peers print them."""
    import torch
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    seconds = []
    for _ in range(steps + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    seconds = seconds[2:]
    return {"device": torch.cuda.get_device_name(), "median_seconds": statistics.median(seconds),
            "min_seconds": min(seconds)}


def narrow_type(configuration):
    """What a configuration's name asks autocast for; None: f32."""
    import torch
    return {"bf16": torch.bfloat16, "f16": torch.float16}.get(configuration.split("_")[0])
