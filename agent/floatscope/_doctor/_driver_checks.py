"""Driver, device files, containers, and how many cards each layer of the stack sees."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope._doctor._machine import Machine
from floatscope._doctor._masks import visible
from floatscope._doctor._verdict import Verdict, ok, warning, wrong

__all__ = ["container_checks", "count_checks", "driver_checks", "permission_checks"]

_SHM = "/dev/shm"  # noqa: S108  # the name of an item
_SMALL_SHM = 1 << 30
"""RCCL puts some ten MiB per pair of ranks there, a data loader whole batches; a container's default is 64 MiB."""


def driver_checks(machine: Machine) -> Iterator[Verdict]:
    """The kernel module."""
    if machine.driver == "live":
        yield ok("driver", f"amdgpu {machine.driver_version or 'live'}")
    elif machine.driver is not None:
        yield wrong(
            "driver",
            f"amdgpu is {machine.driver!r}",
            "the module is loaded and does not serve: it failed to start, or is being removed",
            "read `dmesg | grep amdgpu`, then load it again (`modprobe -r amdgpu && modprobe amdgpu`) or restart",
        )
    elif machine.cards:
        # A container may show the cards and not the module.
        yield ok("driver", "amdgpu, its state is not visible here")
    elif machine.pci_cards:
        yield wrong(
            "driver",
            "no amdgpu module",
            f"{machine.pci_cards} AMD card(s) on the PCI bus have no driver",
            "install amdgpu-dkms for this kernel, or take amdgpu off the module blacklist, and restart",
        )
    elif machine.rocm_torch:
        yield wrong(
            "driver",
            "no amdgpu module",
            "torch is a ROCm build and this machine has neither the driver nor an AMD card",
            "run it on a machine with an AMD card, or install the torch build that fits this one",
        )


def permission_checks(machine: Machine) -> Iterator[Verdict]:
    """/dev/kfd and /dev/dri: there, and ours to open."""
    if not machine.amd or (machine.driver is None and not machine.cards):
        return
    if not machine.kfd:
        inside = machine.container is not None
        yield wrong(
            "/dev/kfd",
            "missing",
            "ROCm opens it first of all; "
            + ("the container was started without it" if inside else "KFD did not start"),
            "start the container with --device /dev/kfd --device /dev/dri"
            if inside
            else "read `dmesg | grep kfd`; KFD needs a supported card and a kernel built with CONFIG_HSA_AMD",
        )
    for file in machine.device_files:
        if file.allowed:
            yield ok(file.path, "readable and writable")
            continue
        name = machine.group_names.get(file.group)
        who = f"group {file.group}" + (f" ({name})" if name else "")
        yield wrong(
            file.path,
            f"belongs to {who}; this process, user {machine.user}, is not in it",
            "torch then finds no card, without saying why",
            f"start the container with --group-add {file.group} (the host's number; names differ inside)"
            if machine.container is not None
            else f"sudo usermod -aG {name or file.group} $USER, then log in again",
        )
    renders = [file for file in machine.device_files if file.path.startswith("/dev/dri/")]
    if machine.kfd and machine.cards and not renders:
        yield wrong(
            "/dev/dri",
            "no render node",
            "ROCm opens the render node of each card that it uses",
            "start the container with --device /dev/dri" if machine.container else "read `dmesg | grep amdgpu`",
        )


def container_checks(machine: Machine) -> Iterator[Verdict]:
    """Shared memory, which peers inside a container use instead of a link that they cannot have."""
    cards = max(machine.dies, machine.torch.devices or 0 if machine.torch else 0)
    if machine.container is None or cards < 2 or machine.shm_bytes is None:
        return
    size = f"{machine.shm_bytes / (1 << 20):.0f} MiB"
    if machine.shm_bytes < _SMALL_SHM:
        yield wrong(
            _SHM,
            size,
            f"{cards} cards exchange through it where P2P is not to be had, and data loaders too: RCCL ends with "
            "'No space left on device', or hangs",
            "start the container with --ipc=host, or --shm-size=8g",
        )
    else:
        yield ok(_SHM, size)


def count_checks(machine: Machine) -> Iterator[Verdict]:
    """The kernel's, AMD SMI's and torch's numbers of cards."""
    cards = len(machine.cards)
    if machine.amd:
        shown = {"kernel": cards, "amd-smi": machine.smi_cards, "torch": machine.torch and machine.torch.devices}
        yield ok("cards", ", ".join(f"{who} {count}" for who, count in shown.items() if count is not None))
    if machine.pci_cards > cards and machine.driver == "live":
        yield wrong(
            "cards.kernel",
            f"{cards} of {machine.pci_cards}",
            "the driver gave up on a card that is on the PCI bus, or it fell off while running",
            "read `dmesg | grep -E 'amdgpu|AER'`; a cold restart brings back one that was lost after a reset",
        )
    dies = machine.dies
    if machine.smi_cards is not None and machine.smi_cards not in (cards, dies):
        yield warning(
            "cards.amd-smi",
            f"{machine.smi_cards}, the kernel shows {cards}",
            "AMD SMI counts other cards than the kernel: two copies of its library, or a card that hangs",
            "compare by PCI address (`amd-smi list`), never by index; restart the driver if one is missing there",
        )
    elif machine.smi_problem and machine.cards:
        yield warning(
            "cards.amd-smi",
            "no answer",
            machine.smi_problem,
            "readings come from sysfs; for the rest `pip install 'floatscope[amd]'` and install ROCm's amd-smi-lib",
        )
    torch = machine.torch
    if torch is None or torch.hip is None or torch.devices is None:
        return
    expected = visible(machine, dies)
    if torch.devices < expected:
        yield wrong(
            "cards.torch",
            f"{torch.devices} of {expected}",
            "torch uses fewer cards than the kernel shows and the masks leave",
            "look at the verdicts on /dev/kfd, /dev/dri and the masks, then whether this torch was built for the chip: "
            "torch.cuda.get_arch_list()",
        )
