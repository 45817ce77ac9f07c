"""How a rank that torchrun has started ends."""

import time

import torch.distributed as dist


def leave() -> None:
    """Ends the process group. gloo's threads let go of the last sums a moment later, for which they need Python; a rank whose interpreter ends meanwhile is aborted."""
    dist.barrier()  # none leaves while another still talks to it
    dist.destroy_process_group()
    time.sleep(0.5)
