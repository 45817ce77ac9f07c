"""The smallest elastic run, in Python: one rank trains for a while and saves; two ranks go on from there, and see the same global batches.

    python examples/python/elastic_min.py recipe.toml 20

examples/recipes/documentation.toml is a recipe that runs as it is. The two ranks are two loaders here to keep the example in one file; in training each
is in its own process, opened with torchrun's RANK and WORLD_SIZE. examples/c, examples/cpp and examples/rust hold the same program under the same name.
"""

import json
import sys

from laneway import Loader, Recipe, global_hash


def step(loaders: list[Loader]) -> int:
    """One step of all ranks: takes a batch of each, and gives the hash of the global batch."""
    batches = [next(loader) for loader in loaders]
    # What a trainer takes: batch.input_ids and batch.labels, each rows × length, in place.
    return global_hash([batch.hashes for batch in batches])


def main(path: str, steps: int) -> bool:
    recipe, expected, saved = Recipe.load(path), [], ""
    with Loader(recipe) as one:
        for i in range(steps):
            if i == steps // 2:
                saved = json.dumps(one.state_dict())  # some hundred bytes a lane, however far the run has come
            expected.append(step([one]))

    with Loader(recipe, 0, 2) as first, Loader(recipe, 1, 2) as second:
        for rank in (first, second):
            rank.load_state_dict(json.loads(saved))
        found = [step([first, second]) for _ in range(steps // 2, steps)]
    for i, (one_rank, two_ranks) in enumerate(zip(expected[steps // 2 :], found, strict=True), steps // 2):
        print(f"step {i:3}  one rank {one_rank:016x}  two ranks, resumed {two_ranks:016x}")
    print("identical" if found == expected[steps // 2 :] else "DIFFERENT")
    return found == expected[steps // 2 :]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} recipe.toml STEPS")
    sys.exit(0 if main(sys.argv[1], int(sys.argv[2])) else 1)
