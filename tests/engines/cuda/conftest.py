"""Without a GPU kernels run in Triton's interpreter; Triton asks for it when their modules are first imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
