"""The rate of a plain product of f32 matrices: the most that a model can reach with a library's BLAS.

    python3 bench/peers/product.py

This is numpy's side of training.py: it answers each line `product M K N` of standard input with a line of JSON.
"""

import json
import statistics
import sys
import time

REPEATS = 11


def rate(full, multiply, question):
    """Operations a second of `[M, K] x [K, N]`: the median of some products after one to warm up."""
    rows, inner, columns = map(int, question.split()[1:])
    left, right = full((rows, inner), 0.5), full((inner, columns), 0.5)
    seconds = []
    for _ in range(1 + REPEATS):
        started = time.perf_counter()
        product = multiply(left, right)
        seconds.append(time.perf_counter() - started)
        del product
    return 2 * rows * inner * columns / statistics.median(seconds[1:])


def main():
    import numpy

    def full(shape, value):
        return numpy.full(shape, value, numpy.float32)

    for line in sys.stdin:
        print(json.dumps({"multiply_adds": rate(full, numpy.matmul, line.strip())}), flush=True)


if __name__ == "__main__":
    main()
