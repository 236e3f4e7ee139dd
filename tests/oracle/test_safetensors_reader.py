# SPDX-License-Identifier: Apache-2.0
"""The safetensors reader against the format's own library: what it writes is read to the last byte, and damaged headers
are read by both or refused by both. Needs requirements-models.txt and the executable safetensors_dump."""
import json
import os
import random
import subprocess

import numpy as np
import pytest
from conftest import ROOT

pytest.importorskip("torch")
pytest.importorskip("safetensors")
DUMP = ROOT / os.environ.get("QUERN_BUILD", "build/release") / "safetensors_dump"
SEED = 20261130
# Where quern refuses what the library reads, besides element types: ranks above its limit, fields of a tensor that the
# format does not have (the library passes over them), and keys that are there twice (the library takes the last).
STRICTER = ("is the limit", "unknown field", "is there twice")


def dump(paths):
    done = subprocess.run([DUMP, *paths], check=True, capture_output=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def library_reads(content):
    import safetensors
    try:
        safetensors.deserialize(content)
        return True
    except safetensors.SafetensorError:
        return False


def test_random_files_of_the_library_are_read_to_the_last_byte(tmp_path):
    import torch
    from safetensors.torch import save_file
    names = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "int64": torch.int64,
             "uint8": torch.uint8, "float8_e4m3fn": torch.float8_e4m3fn, "bool": torch.bool}
    rng = random.Random(SEED)
    expected = []
    for number in range(50):
        tensors, view = {}, {}
        for _ in range(rng.randrange(12)):
            kind = rng.choice(list(names))
            shape = [rng.choice([0, 1, 2, 3, 5, 17]) for _ in range(rng.randrange(5))]
            count = int(np.prod(shape, dtype=np.int64))
            raw = np.array([rng.randrange(2 if kind == "bool" else 256) for _ in range(count * names[kind].itemsize)], np.uint8)
            name = "".join(rng.choice("abc.0é\"\\") for _ in range(rng.randrange(1, 9)))
            tensors[name] = torch.frombuffer(raw, dtype=names[kind]).reshape(shape) if count else torch.zeros(shape, dtype=names[kind])
            weighted = int((raw.astype(np.uint64) * np.arange(1, raw.size + 1, dtype=np.uint64)).sum())
            view[name] = [kind, shape, raw.size, weighted]
        save_file(tensors, tmp_path / f"{number}", metadata=rng.choice([None, {"format": "pt"}]))
        expected.append({"tensors": view})
    assert dump([tmp_path / f"{number}" for number in range(50)]) == expected


def damaged(content, rng):
    """A few characters of the header replaced, removed, doubled or exchanged; the length stays true."""
    length = int.from_bytes(content[:8], "little")
    header, payload = bytearray(content[8:8 + length]), content[8 + length:]
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(header))
        match rng.randrange(4):
            case 0: header[at] = rng.choice(b'{}[]",:0123456789 -.eE\\xn\x00\xff')
            case 1: del header[at]
            case 2: header[at:at] = header[at:at + rng.randrange(1, 60)]
            case 3: header[at:at] = bytes([rng.choice(b'{}[]",:0123456789 ')])
    return len(header).to_bytes(8, "little") + bytes(header) + payload


def test_damaged_headers_are_judged_as_the_library_judges_them(tmp_path):
    content = (ROOT / "testdata" / "safetensors" / "types.safetensors").read_bytes()
    rng = random.Random(SEED)
    cases = [damaged(content, rng) for _ in range(4000)]
    for number, case in enumerate(cases):
        (tmp_path / f"{number}").write_bytes(case)
    ours = [view for start in range(0, len(cases), 500)
            for view in dump([tmp_path / f"{number}" for number in range(start, min(start + 500, len(cases)))])]
    read = refused = 0
    for case, view in zip(cases, ours, strict=True):
        error = view.get("error")
        if error and (error["code"] == "unsupported" or any(text in error["what"] for text in STRICTER)):
            continue
        assert (error is None) == library_reads(case), (case, error)
        read, refused = read + (error is None), refused + (error is not None)
    assert read > 100 and refused > 1000, (read, refused)
