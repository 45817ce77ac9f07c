"""A peer of a node loader, as a process: says each batch's hashes, a line a batch.

``node_peer.py '{"recipe": …, "batches": …, "state": …, …}'``: what is not named is an argument of NodeLoader. With ``"comes_by"``, ``"seek"`` or ``"load"``, it goes to the
place where it is before every third batch.
"""

from __future__ import annotations

import json
import sys
import time

from laneway import NodeLoader


def main() -> None:
    given = json.loads(sys.argv[1])
    batches, state, pause_s = given.pop("batches"), given.pop("state", None), given.pop("pause_s", 0)
    comes_by = given.pop("comes_by", None)
    loader = NodeLoader(given.pop("recipe", None), framework="numpy", progress=None, **given)
    if state is not None:
        loader.load_state_dict(state)
    for number in range(batches):
        if number % 3 == 2 and comes_by == "seek":
            loader.seek(loader.step)
        if number % 3 == 2 and comes_by == "load":
            loader.load_state_dict(loader.state_dict())
        batch = loader.next(60)
        if batch is None:
            print(json.dumps(None), flush=True)
            break
        print(json.dumps([batch.step, batch.microbatch, batch.hashes.tolist()]), flush=True)
        del batch
        time.sleep(pause_s)
    print(json.dumps({"state": loader.state_dict()}), flush=True)


main()
