"""Reports of serving engines made by hand: steps with labels, graphs of captured sizes, a sampler between steps."""

from support.build import call, kernel, launched, nvtx

#: Sizes of captured graphs, and times (ns) of a step, of a request or token in it, and of what the host does.
SIZES = (1, 2, 4, 8, 16)
FIXED, PER_REQUEST, PER_TOKEN = 800_000, 20_000, 900
HOST, SAMPLER = 150_000, 40_000

#: Tokens of prompts and requests that generate, step by step: prompts come every so often.
USUAL = [
    *((700, 0), *((0, number) for number in (3, 3, 5, 5, 6, 6, 7, 9, 9, 11, 12))),
    *((1500, 12), *((0, number) for number in (13, 13, 14, 18, 18, 12))),
] * 4


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
    All take so many times as long by `slower`.
    """
    events, at, number = [], 1_000_000, 0
    for prompt, decodes in steps:
        size = None if prompt else next((size for size in sizes if size >= decodes), None)
        length = int((FIXED + PER_REQUEST * (size or decodes) + PER_TOKEN * prompt) * slower)
        begun = ended = at + 30_000 + 4_000 * layers
        said = at + 8_000 + 4_000 * layers
        if size is None:
            each = length // (2 * layers)
            for place in range(2 * layers):
                ran = kernel(ended, ended + each, correlation=number + place, name=("gemm", "attention")[place % 2])
                called = ended - 3_000 if apart else at + 2_000 * place + 5_000
                events += launched(called, called + 1_000, ran)
                ended, said = ended + each + apart, max(said, called + 2_000)
            ended -= apart
        else:
            side, ended = {"graph_exec_id": size, "graph_node_id": size << 32}, begun + length
            replay = kernel(begun, ended, correlation=number, name="decode_layers", side=side)
            events += launched(at + 5_000, at + 9_000, replay, name="cudaGraphLaunch")
        number += 2 * layers + 1
        events.append(nvtx(label(prompt, decodes, size), at, said))
        late = said + 2_000
        if sampler:
            sampled = kernel(ended, ended + sampler, correlation=number - 1, name="argmax")
            events += [nvtx("sample", late, late + 5_000), *launched(late + 1_000, late + 4_000, sampled)]
        done = ended + sampler
        events += [
            call("cudaStreamSynchronize", late + 6_000, done + 5_000),
            nvtx("schedule", done + 10_000, done + host),
        ]
        at = done + host
    return events
