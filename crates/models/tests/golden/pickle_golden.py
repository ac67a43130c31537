#!/usr/bin/env python3
"""Writes pickle/pytorch_model.bin: a checkpoint of PyTorch with each type of values, for tests/pretrained/folder.rs.

Run:  python3 -m venv venv && venv/bin/pip install torch==2.15.0
      venv/bin/python crates/models/tests/golden/pickle_golden.py
"""

import os

import torch

assert torch.__version__.startswith("2.15.0"), torch.__version__

values = torch.arange(6, dtype=torch.float32).reshape(2, 3)
torch.save(
    {
        "f32": values,
        # Two views of one storage, one of them repeating a single number.
        "transposed": values.T,
        "wide": torch.zeros(1).expand(1000, 1000),
        "f16": torch.tensor([0.5, -1.5, 2.0], dtype=torch.float16),
        "bf16": torch.tensor([[0.5, -1.5], [2.0, 256.0]], dtype=torch.bfloat16),
        "i64": torch.tensor([1, 2]),
    },
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "pickle", "pytorch_model.bin"),
)
