"""Imported by ranks before anything else of TorchTitan: there, its trainer runs on CPUs."""

from on_cpu import use_cpu

use_cpu()
