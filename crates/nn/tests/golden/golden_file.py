"""How a golden file is made: shared by nn_golden.py and ../../../models/tests/golden/models_golden.py.

A case is a function that computes outputs from parameters. It is run twice in PyTorch: in float64, which
gives the expected outputs and gradients, and in float32, whose distance from them says what rounding
alone does to a straightforward computation (the largest relative distance over all cases of a kind, as
one small case may be lucky). The Rust side allows a small multiple of that distance (2 for outputs, 3 for
gradients; crates/nn/tests/modules/support.rs), so no tolerance is chosen by hand.

Parameters and inputs are not stored: `values` draws them from their name by a formula that the Rust side
repeats bit for bit. Every value is a multiple of 2^-24 or coarser, so exact in float32.
"""

import json

import numpy as np
import torch
from safetensors.numpy import save_file


def values(name: str, shape, scale: float) -> np.ndarray:
    """Numbers from U(-scale, scale) that follow from `name` alone; `scale` is a power of two."""
    key = 0x811C9DC5  # FNV-1a, 32 bits
    for byte in name.encode():
        key = ((key ^ byte) * 0x01000193) & 0xFFFFFFFF
    with np.errstate(over="ignore"):
        x = np.uint32(key) + np.arange(int(np.prod(shape)), dtype=np.uint32) * np.uint32(0x9E3779B1)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
        x = x ^ (x >> np.uint32(16))
    return (((x >> np.uint32(8)).astype(np.float64) / 2.0**23 - 1.0) * scale).reshape(shape)


class Draw:
    """The leaves of one run of a case: parameters and inputs whose gradients are wanted."""

    def __init__(self, case: str, dtype: torch.dtype):
        self.case, self.dtype, self.leaves, self.scales = case, dtype, {}, {}

    def __call__(self, name: str, *shape: int, scale: float = 0.5) -> torch.Tensor:
        """The parameter or input `name`, with gradient."""
        if name not in self.leaves:
            leaf = torch.tensor(values(f"{self.case}/{name}", shape, scale), dtype=self.dtype)
            self.leaves[name], self.scales[name] = leaf.requires_grad_(), scale
        assert self.leaves[name].shape == shape, (self.case, name, shape)
        return self.leaves[name]

    def constant(self, name: str, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Numbers without gradient, such as the weights of a loss."""
        self.scales[name] = scale
        return torch.tensor(values(f"{self.case}/{name}", shape, scale), dtype=self.dtype)


class GoldenFile:
    def __init__(self):
        self.arrays, self.cases = {}, []

    def case(self, name: str, compute, **description):
        """Records `compute(draw) -> (loss, outputs)`; `description` is what the Rust side reads."""
        runs = []
        for dtype in (torch.float64, torch.float32):
            draw = Draw(name, dtype)
            loss, outputs = compute(draw)
            loss.backward()
            outputs = {key: value.detach().double().numpy() for key, value in outputs.items()}
            gradients = {
                key: (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).double().numpy()
                for key, leaf in draw.leaves.items()
            }
            runs.append((outputs, gradients))
        errors = []
        for exact, naive in zip(*runs):
            error = 0.0
            for key, value in exact.items():
                assert np.isfinite(value).all(), (name, key)
                size = np.abs(value).max()
                # What is 0 but for float64's rounding (the gradient of a bias on keys) has no relative distance.
                if size > 1e-12:
                    error = max(error, np.abs(naive[key] - value).max() / size)
                # A case that rounding alone shakes (a window's edge, a tie) would test nothing.
                assert error < 1e-5, (name, key, error, size)
            errors.append(float(error))
        outputs, gradients = runs[0]
        self.arrays[name] = np.concatenate(
            [value.astype(np.float32).ravel() for value in (*outputs.values(), *gradients.values())]
        )
        self.cases.append({
            "name": name,
            # What the case's array holds, one after the other.
            "outputs": [[key, value.shape] for key, value in outputs.items()],
            "gradients": [[key, value.shape] for key, value in gradients.items()],
            "scales": [draw.scales[key] for key in gradients],
            "constants": {key: draw.scales[key] for key in draw.scales if key not in gradients},
            "output_error": errors[0],
            "gradient_error": errors[1],
            **description,
        })

    def save(self, path):
        for field in ("output_error", "gradient_error"):
            for kind in {case["kind"] for case in self.cases}:
                of_kind = [case for case in self.cases if case["kind"] == kind]
                worst = max(case[field] for case in of_kind)
                for case in of_kind:
                    case[field] = worst
        save_file(self.arrays, path, metadata={"cases": json.dumps(self.cases, separators=(",", ":"))})
        path.chmod(0o644)
        outputs = max(case["output_error"] for case in self.cases)
        gradients = max(case["gradient_error"] for case in self.cases)
        print(f"{path}: {len(self.cases)} cases, {path.stat().st_size} bytes")
        print(f"float32 in PyTorch is off by at most {outputs:.1e} (outputs), {gradients:.1e} (gradients)")
