#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes types.safetensors beside this script: one tensor of each element type that quern reads, by the library itself.

Made with safetensors 0.8.0 and torch 2.13.0 (requirements-models.txt); no randomness. src/formats/safetensors_test.cc
knows the content.
"""
import pathlib

import torch
from safetensors.torch import save_file

TYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64,
    "f8_e4m3": torch.float8_e4m3fn, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u64": torch.uint64, "u32": torch.uint32, "u16": torch.uint16, "u8": torch.uint8,
}
# Values 0 to 5, which every type holds exactly.
tensors = {name: torch.arange(6).to(dtype).reshape(3, 2) for name, dtype in TYPES.items()}
tensors["bool"] = torch.tensor([[True, False], [False, True], [True, True]])
tensors["scalar"] = torch.tensor(2.5)
tensors["empty"] = torch.zeros(2, 0, 3, dtype=torch.bfloat16)
tensors["three"] = torch.arange(3).to(torch.bfloat16)
tensors["näme \"quoted\"\\"] = torch.tensor([7], dtype=torch.uint8)
save_file(tensors, pathlib.Path(__file__).parent / "types.safetensors", metadata={"format": "pt"})
