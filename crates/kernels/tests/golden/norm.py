"""Layer norm and RMS norm of PyTorch, forward and backward, in float64 from float32 numbers.

    python3 norm.py > norm.txt        # torch 2.15

Each case is a line `kind rows width epsilon`, then a line for each of input, weight, bias, d_output, output,
d_input, d_weight, d_bias: a name and its numbers.
"""

import torch
from torch.nn.functional import layer_norm, rms_norm

CASES = [
    ("layer", 3, 5, 1e-5),
    ("layer", 2, 37, 1e-3),
    ("layer", 4, 16, 1e-5),
    ("rms", 3, 5, 1e-6),
    ("rms", 2, 37, 1e-3),
    ("rms", 4, 16, 1e-6),
]


def numbers(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float32).double()


def line(name, tensor):
    print(name, *(f"{x:.17g}" for x in tensor.detach().flatten().tolist()))


def main():
    generator = torch.Generator().manual_seed(7)
    for kind, rows, width, epsilon in CASES:
        # A mean far from 0, as the sums over a row meet it.
        x = (numbers(generator, rows, width) + 3).float().double().requires_grad_()
        weight = numbers(generator, width).requires_grad_()
        bias = numbers(generator, width).requires_grad_()
        d_output = numbers(generator, rows, width)
        if kind == "layer":
            output = layer_norm(x, (width,), weight, bias, epsilon)
        else:
            output = rms_norm(x, (width,), weight, epsilon) + bias
        output.backward(d_output)
        print(kind, rows, width, f"{epsilon:.17g}")
        line("input", x)
        line("weight", weight)
        line("bias", bias)
        line("d_output", d_output)
        line("output", output)
        line("d_input", x.grad)
        line("d_weight", weight.grad)
        line("d_bias", bias.grad)


if __name__ == "__main__":
    main()
