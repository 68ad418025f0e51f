"""Readings of the cards: a sidecar process asks the drivers, the training process adds what only its allocator knows.

``python -m floatscope._devices`` is the sidecar. It never imports torch: a process that has loaded torch's copy of the
ROCm libraries gets no device from AMD SMI. Only this package imports vendor libraries.
"""

from floatscope._devices._allocator import AllocatorFigures, allocator_figures
from floatscope._devices._count import smi_cards
from floatscope._devices._figures import Unavailable
from floatscope._devices._local import LocalDevices
from floatscope._devices._sampler import in_time

__all__ = ["AllocatorFigures", "LocalDevices", "Unavailable", "allocator_figures", "in_time", "smi_cards"]
