"""An engine that is wrong in some way: ``python fake_engine.py FAULT``, asked by ``conformance.drive``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

PASSES: dict[str, dict[str, Any]] = {
    "accepts": {"code": 0},
    "refuses": {"code": 12},
    "unsupported": {"unsupported": "nothing is done yet"},
    "no-code": {},
    "true": {"code": True},
    "trusts": {"code": 0, "signature": "trusted"},
}


def main(fault: str) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if fault == "dies" or (fault == "dies-at-times" and request["id"].endswith("/1")):
            sys.exit("out of luck")
        if fault == "hangs":
            time.sleep(60)
        if fault == "leaves-a-child" and os.fork() == 0:
            with open(os.environ["FAKE_ENGINE_PID"], "w") as file:
                file.write(str(os.getpid()))
            time.sleep(60)
        answer = {"id": request["id"], **PASSES.get(fault, {"code": 0})}
        print("no JSON" if fault == "babbles" else json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
