"""The two sides of the comparisons on a graphics card."""
import statistics
import subprocess
import sys
import time

import torch


def torch_time(call):
    """Milliseconds of a call of PyTorch on the card: the median of five sets of calls."""

    def timed(calls):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3 / calls

    timed(2)
    calls = max(1, min(200, int(50 / timed(2))))
    return statistics.median(timed(calls) for _ in range(5))


class Speed:
    """The example `speed` of regard-gpu, which answers lines."""

    def __init__(self):
        self.process = subprocess.Popen(
            ["target/release/examples/speed"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def time(self, *fields):
        """Milliseconds of a call of what the fields of a line name."""
        return self.measure(*fields)[0]

    def measure(self, *fields):
        """The same, and the bytes that the card's memory pool holds."""
        self.process.stdin.write(" ".join(map(str, fields)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if len(answer) != 2:
            sys.exit(f"speed stopped at {fields}: {' '.join(answer)}")
        return float(answer[0]), int(answer[1])

    def close(self):
        self.process.stdin.close()
        self.process.wait()
