"""Kinetic as an engine that ``conformance.drive`` asks: ``python -m conformance.engine [--device reference]``.

A driver for another implementation is written in the same way: read a line, answer a line, until the input ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

Request = Mapping[str, Any]
Answer = dict[str, Any]


def answer(request: Request, device: str) -> Answer:
    """Everything but the id. An unknown kind is not supported."""
    kinds: dict[str, Callable[[Request], Answer]] = {
        "receipt": _receipt,
        "bundle": _bundle,
        "ed25519": _signature,
        "operation": partial(_operation, device=device),
    }
    run = kinds.get(request["kind"])
    return run(request) if run else {"unsupported": f"vectors of kind {request['kind']}"}


def _receipt(request: Request) -> Answer:
    from conformance.run_vector import run_file

    found = run_file(Path(request["path"]).read_bytes(), request["vector"])
    said = {"code": found.exit_code, "name": found.name, **_signed(found.signature)}
    if found.position >= 0:
        said["position"] = found.position
    return said | {name: value for name in ("receipt_id", "question_id") if (value := getattr(found, name))}


def _bundle(request: Request) -> Answer:
    from conformance.bundle_vectors import run_file

    found = run_file(Path(request["path"]), request["vector"].get("options", {}))
    said = {"code": found.exit_code, "name": found.name, **_signed(found.signature)}
    if found.findings:
        said |= {name: getattr(found, name) for name in ("manifest_digest", "signers", "passed_over")}
    return said | ({"leaf": found.leaf} if found.leaf >= 0 else {})


def _signed(sentence: str) -> Answer:
    """What signatures are worth in a word, from the beginning of the sentence that people read."""
    words = {"valid signature": "trusted", "signature": "unknown", "unsigned": "unsigned"}
    return next(({"signature": word} for begin, word in words.items() if sentence.startswith(begin)), {})


def _signature(request: Request) -> Answer:
    from ktc import signature
    from ktc.errors import SignatureProblem

    parts = (bytes.fromhex(request["vector"][name]) for name in ("public_key", "message", "signature"))
    try:
        signature.verify_bytes(*parts)
    except SignatureProblem as error:
        return {"code": error.exit_code, "name": error.name}
    return {"code": 0}


def _operation(request: Request, device: str) -> Answer:
    import numpy as np

    from conformance import op_vectors

    vector = request["vector"]
    if vector["op"] not in op_vectors.RUNNERS:
        return {"unsupported": f"the operation {vector['op']}"}
    outputs = {}
    for name, found in op_vectors.run(_with_count(vector), device=device, threads=1).items():
        little = np.ascontiguousarray(found, found.dtype.newbyteorder("<"))
        outputs[name] = {"dtype": found.dtype.name, "shape": [*found.shape], "hex": little.tobytes().hex()}
    return {"code": 0, "outputs": outputs}


def _with_count(vector: Request) -> Request:
    """With zeros as outputs: how many tokens are drawn is told by their shape."""
    from math import prod

    import numpy as np

    outputs = {
        name: {**form, "hex": bytes(prod(form["shape"]) * np.dtype(form["dtype"]).itemsize).hex()}
        for name, form in vector.get("outputs", {}).items()
    }
    return {**vector, "outputs": outputs}


def serve(lines: IO[str], out: IO[str], device: str) -> None:
    for line in lines:
        request = json.loads(line)
        out.write(json.dumps({"id": request["id"], **answer(request, device)}) + "\n")
        out.flush()


def main() -> int:
    parser = argparse.ArgumentParser("python -m conformance.engine", description="Answer vectors with Kinetic.")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="of the operations: cpu, or reference")
    serve(sys.stdin, sys.stdout, parser.parse_args().device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
