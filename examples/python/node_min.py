"""The smallest node loader, in Python: one server makes the batches of two ranks, and two peers of each read them; one peer ends on the way and comes back.

    python examples/python/node_min.py recipe.toml 20

examples/recipes/documentation.toml is a recipe that runs as it is. Server and peers are in one process here to keep the example in one file; in training
``laneway serve recipe.toml --ranks 2 --peers 2`` runs on each node, and each peer is in the process of its GPU. examples/c, examples/cpp and examples/rust
hold the same program under the same name.
"""

import json
import sys

from laneway import NodeLoader, Server, global_hash

RANKS, PEERS, NAME = 2, 2, "node_min"


def connect_to(rank: int) -> NodeLoader:
    return NodeLoader(None, rank, RANKS, name=NAME, peers=PEERS)


def restart(peer: NodeLoader) -> NodeLoader:
    """Ends a peer and opens it again where it was. A trainer that died comes back with the state of its checkpoint."""
    saved = json.dumps(peer.state_dict())  # some hundred bytes a lane, however far the run has come
    peer.close()
    peer = connect_to(peer.rank)
    peer.load_state_dict(json.loads(saved))
    return peer


def step(ranks: list[NodeLoader]) -> int:
    """One step as one peer of each rank sees it: the hash of the global batch."""
    batches = [next(peer) for peer in ranks]
    # What a trainer takes: batch.input_ids and batch.labels, each rows × length, where they lie in the server's memory.
    return global_hash([batch.hashes for batch in batches])


def main(path: str, steps: int) -> bool:
    same = True
    with Server(path, name=NAME, ranks=RANKS, peers=PEERS):
        first, second = ([connect_to(rank) for rank in range(RANKS)] for _ in range(PEERS))
        for i in range(steps):
            if i == steps // 2:
                second[0] = restart(second[0])
            one, other = step(first), step(second)
            print(f"step {i:3}  first peers {one:016x}  second peers {other:016x}{', one of them restarted' if i == steps // 2 else ''}")
            same = same and one == other
        for peer in first + second:
            peer.close()
    print("identical" if same else "DIFFERENT")
    return same


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} recipe.toml STEPS")
    sys.exit(0 if main(sys.argv[1], int(sys.argv[2])) else 1)
