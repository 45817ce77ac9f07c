#!/usr/bin/env python3
"""`elastic_resume.py` on a GPU: TorchTitan's own trainer on 2 ranks, then 1, then 4, all sharing the first GPU over gloo.

    python gpu_smoke.py [folder]      needs torchtitan with all that its trainer imports, and a GPU

Give the same options as to `elastic_resume.py`, which runs the same programs on CPUs, as the tests do. It has not been run on a GPU yet.
"""

import os
import sys

import torch
from elastic_resume import main

if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("gpu_smoke: torch sees no GPU here, and nothing was tried; elastic_resume.py tries all but the GPU")
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    sys.exit(main("cuda"))
