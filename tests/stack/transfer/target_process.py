"""A process that owns pools full of 0xEE and lets peers write into them; driven by lines of JSON on stdin.

`{"do": "hello"}` answers metadata (hex) and pools, `{"do": "read", "pool", "id"}` an item's bytes (hex), and
`{"do": "quiet"}` stops making progress until the next command.
"""

import json
import select
import sys

import msgspec
import numpy as np

from stack.transfer import Pools, Spans, TransferAgent


def main() -> None:
    num_pages, page_bytes, num_slots, slot_bytes = map(int, sys.argv[1:5])
    arrays = {
        "pages": np.full((num_pages, page_bytes), 0xEE, np.uint8),
        "slots": np.full((num_slots, slot_bytes), 0xEE, np.uint8),
    }
    spans = {n: Spans(base=a.ctypes.data, item_bytes=a.shape[1], count=len(a)) for n, a in arrays.items()}
    pools = Pools(**spans)
    agent = TransferAgent(pools)
    quiet = False
    while True:
        if not quiet:
            agent.progress()
        if not select.select([sys.stdin], [], [], 0.001)[0]:
            continue
        line = sys.stdin.readline()
        if not line:
            break
        command = json.loads(line)
        quiet = command["do"] == "quiet"
        if command["do"] == "hello":
            answer = {"metadata": agent.metadata().hex(), "pools": msgspec.to_builtins(pools)}
        elif command["do"] == "read":
            answer = {"bytes": arrays[command["pool"]][command["id"]].tobytes().hex()}
        else:
            answer = {}
        print(json.dumps(answer), flush=True)
    agent.close()


if __name__ == "__main__":
    main()
