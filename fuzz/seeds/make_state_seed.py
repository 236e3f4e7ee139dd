# SPDX-License-Identifier: Apache-2.0
"""Writes state_file/small.state: a saved timeline without its checksum, which the target adds. The last byte of the payload is
its length."""
import json
import pathlib
import struct

facts = json.dumps({"kv": "fp16", "layers": 2, "model": "tiny"}, separators=(",", ":")).encode()
ids = [5, 6, 7]
payload = bytes(range(1, 24))
(pathlib.Path(__file__).parent / "state_file" / "small.state").write_bytes(
    b"QUERNST1" + struct.pack("<I", len(facts)) + facts + struct.pack(f"<Q{len(ids)}i", len(ids), *ids) + payload)
