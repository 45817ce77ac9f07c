"""Reads batches by a recipe, saves a checkpoint half way, and goes on from it as two ranks would: the batches are the same.

    python examples/python/elastic_min.py recipe.toml 100
"""

import json
import sys
import time

from laneway import Loader, global_hash


def main(recipe: str, steps: int) -> bool:
    checkpoint, hashes, tokens = {}, [], 0
    start = time.monotonic()
    with Loader(recipe) as loader:
        while len(hashes) < steps:
            if len(hashes) == steps // 2:
                checkpoint = json.loads(json.dumps(loader.state_dict()))
            batch = loader.next()
            if batch is None:
                break
            # What a trainer takes: batch.input_ids, batch.labels, each rows × length, in place.
            tokens += batch.num_tokens
            hashes.append(global_hash(batch.hashes))
    seconds = time.monotonic() - start
    size = len(json.dumps(checkpoint))
    print(f"{len(hashes)} steps, {tokens} tokens, {tokens / seconds:.0f} a second; the checkpoint has {size} bytes")

    # Two ranks take over, here one after the other. Each owns half of the lanes, and together they give the same batches.
    with Loader(recipe, 0, 2) as first, Loader(recipe, 1, 2) as second:
        for rank in (first, second):
            rank.load_state_dict(checkpoint)
        resumed = [global_hash([next(first).hashes, next(second).hashes]) for _ in hashes[steps // 2 :]]
    same = resumed == hashes[steps // 2 :]
    print(f"steps {steps // 2} to {len(hashes) - 1} again, on two ranks: {'identical' if same else 'DIFFERENT'}")
    return same


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else "recipe.toml"
    sys.exit(0 if main(path, int(sys.argv[2]) if len(sys.argv) > 2 else 100) else 1)
