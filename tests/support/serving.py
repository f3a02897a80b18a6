"""Reports of serving engines made by hand: steps with labels, graphs of captured sizes, a sampler between steps."""

from support.build import call, kernel, launched, memcpy, nvtx

#: Sizes of captured graphs, and times (ns) of a step, of a request or token in it, and of what the host does.
SIZES = (1, 2, 4, 8, 16)
FIXED, PER_REQUEST, PER_TOKEN = 800_000, 20_000, 900
HOST, SAMPLER = 150_000, 40_000

#: Tokens of prompts and requests that generate, step by step: prompts come every so often.
USUAL = (
    *((700, 0), *((0, number) for number in (3, 3, 5, 5, 6, 6, 7, 9, 9, 11, 12))),
    *((1500, 12), *((0, number) for number in (13, 13, 14, 18, 18, 12))),
) * 4


def vllm(prompt, decodes, _):
    return f"execute_context_{int(prompt > 0)}({prompt})_generation_{decodes}({decodes})"


def atom(prompt, decodes, size):
    if prompt and not decodes:
        return f"prefill[bs=1 tok={prompt} ctx={prompt}]"
    asked = f"{decodes + (prompt > 0)}" + (f"/{size}" if size and size != decodes and not prompt else "")
    mixed = f" p=1 d={decodes}" if prompt else f" d={decodes}"
    return f"decode[bs={asked} tok={prompt + decodes}{mixed}]"


def events_of(steps, *, label=vllm, slower=1.0, sizes=SIZES, host=HOST, sampler=SAMPLER, layers=2, apart=0):  # noqa: PLR0913 - what an engine is
    """Events of an engine that runs `steps` one after the other: numbers of tokens of prompts, and of requests.

    Steps that only generate are replays of graphs of the least of the `sizes` that holds them; others, and larger ones,
    run eagerly: two kernels in each of the `layers`, launched when they start if that is `apart` from the one before.
    All take so many times as long by `slower`, or as that says for a prompt, requests and a size. Without a `label`
    each step ends with a copy of its tokens to the host instead.
    """
    events, at, number = [], 1_000_000, 0
    for prompt, decodes in steps:
        size = None if prompt else next((size for size in sizes if size >= decodes), None)
        factor = slower(prompt, decodes, size) if callable(slower) else slower
        length = int((FIXED + PER_REQUEST * (size or decodes) + PER_TOKEN * prompt) * factor)
        begun = ended = at + 30_000 + 4_000 * layers
        said = at + 8_000 + 4_000 * layers
        if size is None:
            each = length // (2 * layers)
            for place in range(2 * layers):
                name = ("flash_fwd_kernel", "decode_part" if decodes else "gemm")[place % 2]
                ran = kernel(ended, ended + each, correlation=number + place, name=name)
                called = ended - 3_000 if apart else at + 2_000 * place + 5_000
                events += launched(called, called + 1_000, ran)
                ended, said = ended + each + apart, max(said, called + 2_000)
            ended -= apart
        else:
            ended = begun + length
            events.append(call("cudaGraphLaunch", at + 5_000, at + 9_000, correlation=number))
            for node, name in enumerate(("decode_part", f"gemm_{size}")):
                side = {"graph_exec_id": size, "graph_node_id": (size << 32) + node}
                sides = begun + node * length // 2, begun + (node + 1) * length // 2
                events.append(kernel(*sides, correlation=number, name=name, side=side))
        number += 2 * layers + 1
        events += [nvtx(label(prompt, decodes, size), at, said)] if label else []
        late = said + 2_000
        if sampler:
            sampled = kernel(ended, ended + sampler, correlation=number - 1, name="argmax")
            events += [nvtx("sample", late, late + 5_000), *launched(late + 1_000, late + 4_000, sampled)]
        done = ended + sampler
        if not label:
            copy = memcpy(done, done + 2_000, direction="Device-to-Host", correlation=10**6 + number)
            events += launched(late + 5_000, late + 6_000, copy, name="cudaMemcpyAsync")
        events += [
            call("cudaStreamSynchronize", late + 6_000, done + 5_000),
            nvtx("schedule", done + 10_000, done + host),
        ]
        at = done + host
    return events
