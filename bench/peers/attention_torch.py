"""PyTorch's side of attention.py: scaled_dot_product_attention on the CPU."""

import json
import sys
import time

import torch
import torch.nn.functional as F

from attention_common import numbers, probe, questions, sentences

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def tensors(question):
    shapes = [(question.batch, question.heads, question.queries, question.dim)]
    shapes += 2 * [(question.batch, question.key_heads, question.keys, question.dim)]
    return [
        torch.from_numpy(numbers(seed, shape)).to(DTYPES[question.dtype])
        for seed, shape in zip((1, 2, 3), shapes)
    ]


def timed(repeats, call):
    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return seconds, result


def forward(question):
    query, key, value = tensors(question)
    grouped = question.heads != question.key_heads
    causal = question.causal and question.queries > 1

    def call():
        with torch.no_grad():
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

    return timed(question.repeats, call)


def backward(question):
    inputs = [tensor.requires_grad_() for tensor in tensors(question)]
    output = F.scaled_dot_product_attention(*inputs, is_causal=question.causal)
    ones = torch.ones_like(output)
    seconds, gradients = timed(
        question.repeats, lambda: torch.autograd.grad(output, inputs, ones, retain_graph=True)
    )
    return seconds, gradients[0]


def padded(question):
    """Sentences of different lengths, padded to the longest: forward and backward."""
    lengths = torch.tensor(sentences())
    longest = int(lengths.max())
    keep = (torch.arange(longest)[None, :] < lengths[:, None])[:, None, None, :]
    total = int(lengths.sum())
    # Packed [1, heads, total, dim] numbers, so that both sides compute the same.
    packed = [torch.from_numpy(numbers(seed, (1, question.heads, total, question.dim))) for seed in (1, 2, 3)]
    inputs = []
    for tensor in packed:
        whole = torch.zeros(len(lengths), question.heads, longest, question.dim)
        for index, part in enumerate(tensor[0].split(lengths.tolist(), dim=1)):
            whole[index, :, : part.shape[1]] = part
        inputs.append(whole.requires_grad_())
    real = keep[:, 0, 0, :, None][:, None].expand(-1, question.heads, -1, question.dim).float()

    def call():
        output = F.scaled_dot_product_attention(*inputs, attn_mask=keep)
        return torch.autograd.grad(output, inputs, real)[0]

    seconds, gradient = timed(question.repeats, call)
    parts = [gradient[index, :, :length] for index, length in enumerate(lengths.tolist())]
    return seconds, torch.cat(parts, dim=1)[None]


def products(question):
    """The two products alone: Q Kᵀ, and the result times V, without a softmax between them."""
    query, key, value = tensors(question)

    def call():
        with torch.no_grad():
            return query @ key.mT @ value

    return timed(question.repeats, call)


KINDS = {"products": products, "forward": forward, "decode": forward, "backward": backward, "packed": padded}

if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    for question in questions():
        seconds, result = KINDS[question.kind](question)
        print(json.dumps({"seconds": seconds, "probe": probe(result.detach().float().numpy())}), flush=True)
