"""Reports of an engine whose steps take given times, with labels that say all of them."""

from support.build import call, kernel, launched, nvtx, report


def decode(requests, padded, kv):
    size = f"{requests}/{padded}" if padded > requests else str(requests)
    return f"decode[bs={size} tok={requests} d={requests} sqsq={requests} sqsk={kv} sk={kv}]"


def engine_of(rows, host=100_000, captures=(), **of):
    """A report of steps: requests, size of the graph (0 for none: prompts of so many tokens), tokens in the cache, ns.

    The host takes `host` ns before each; graphs of `captures` were captured before.
    """
    events, at = [nvtx(f"capture_{size}_decode", 1000 * size, 1000 * size + 500) for size in captures], 1_000_000
    for number, (requests, padded, kv, ns) in enumerate(rows):
        side = {"graph_exec_id": padded, "graph_node_id": padded << 32} if padded else {}
        ran = kernel(at + 8_000, at + 8_000 + ns, correlation=number, name="layers", side=side)
        name = "cudaGraphLaunch" if padded else "cudaLaunchKernel"
        label = decode(requests, padded, kv) if padded else f"prefill[bs=1 tok={requests} sqsq=1 sqsk=1 sk={kv}]"
        events += [*launched(at + 2_000, at + 6_000, ran, name=name), nvtx(label, at, at + 9_000 + ns)]
        events.append(call("cudaStreamSynchronize", at + 7_000, at + 8_500 + ns))
        at += 8_000 + ns + host
    return report(events, **of)
