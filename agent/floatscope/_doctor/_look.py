"""Gathers the facts, from the kernel's files, the environment and the installed distributions. Changes nothing."""

from __future__ import annotations

import contextlib
import grp
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from floatscope._chips import gfx_name
from floatscope._devices import Unavailable, in_time
from floatscope._devices._figures import readable
from floatscope._doctor._machine import Card, DeviceFile, Link, Machine, Torch
from floatscope._doctor._verdict import Verdict, wrong

__all__ = ["look", "look_in_time"]

_AMD = "0x1002"
_GPU_CLASSES = ("0x03", "0x12")
"""Display controllers and processing accelerators (PCI Code and ID Assignment); an MI300X is the latter."""
_MOST_BYTES = 64 << 10
"""Of one file: the kernel's have a page, a list of control groups some more, and a device in its place no end."""
_XGMI = "11"
"""Type of a KFD link, HSA_IOLINKTYPE_XGMI."""
_ECC_BIT = 26
"""HSA_CAP_SRAM_EDCSUPPORTED in the kernel's kfd_topology.h"""
_MOST_LANES = 32
_FASTEST = 128.0
"""GT/s, of PCI Express 7.0"""
_SPEED = re.compile(r"(\d{1,3}(?:\.\d+)?) GT/s")
_WHOLE = re.compile(r"[0-9]{1,20}")
"""What fits 64 bits; Python refuses to convert thousands of digits."""
_COMPILED_FOR_ONE_VENDOR = ("flash_attn", "bitsandbytes", "xformers", "transformer_engine")


def look(
    *,
    environment: Mapping[str, str],
    root: Path = Path("/"),
    torch: Torch | None = None,
    site: Sequence[Path] = (),
    libraries: bool = True,
    tested_with: str | None = None,
    identity: tuple[int, tuple[int, ...]] | None = None,
) -> Machine:
    """The machine below ``root``. ``site`` are folders of installed packages, ``identity`` user and groups (default:
    of this process). Reads some dozens of small files and imports nothing; what cannot be read is left out. With
    ``libraries`` also searches compiled packages, which may be gigabytes. ``tested_with`` is that of the
    last self-test.
    """
    user, groups = identity or (os.geteuid(), (os.getegid(), *os.getgroups()))
    sys, dev = root / "sys", root / "dev"
    files = tuple(_device_files(dev, user, groups))
    return Machine(
        environment=dict(environment),
        pci_cards=sum(1 for _ in _pci_cards(sys)),
        driver=_text(sys / "module/amdgpu/initstate"),
        driver_version=_text(sys / "module/amdgpu/version") or _kernel(root),
        rocm=_rocm(root, environment),
        cards=tuple(_cards(sys)),
        nvidia=(root / "proc/driver/nvidia/version").exists(),
        device_files=files,
        kfd=(dev / "kfd").exists(),
        user=user,
        groups=groups,
        group_names=dict(_group_names({file.group for file in files})),
        container=_container(root, environment),
        shm_bytes=_shm_bytes(dev),
        limits=_limits(root),
        libraries=dict(_rocm_libraries(root, environment)),
        packages=_packages(site),
        cuda_built=tuple(_cuda_built(site)) if libraries else (),
        kernel_options=_text(root / "proc/cmdline") or "",
        torch=torch,
        tested_with=tested_with,
    )


def look_in_time(
    timeout_s: float,
    *,
    environment: Mapping[str, str],
    root: Path = Path("/"),
    torch: Torch | None = None,
    site: Sequence[Path] = (),
    libraries: bool = True,
    tested_with: str | None = None,
) -> tuple[Machine, list[Verdict]]:
    """``look``; where a driver hangs for longer than ``timeout_s``, what is known without its files, and a verdict."""
    known = Machine(environment=dict(environment), torch=torch, tested_with=None)

    def search() -> Machine:
        return look(
            environment=environment,
            root=root,
            torch=torch,
            site=site,
            libraries=libraries,
            tested_with=tested_with,
        )

    try:
        return in_time(search, timeout_s, "the kernel's files"), []
    except Unavailable as finding:
        hangs = wrong(
            "driver",
            "no answer",
            f"{finding}: a card or its driver hangs, and so will whoever reads it",
            "read `dmesg | grep amdgpu`, end what uses the card, and reset it or restart",
        )
        return known, [hangs]


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _whole(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def _kernel(root: Path) -> str | None:
    # The driver in the kernel's own tree has no version but the kernel's.
    release = _text(root / "proc/sys/kernel/osrelease")
    return f"of kernel {release}" if release and (root / "sys/module/amdgpu").exists() else None


def _rocm(root: Path, environment: Mapping[str, str]) -> str | None:
    for home in (environment.get("ROCM_PATH"), "/opt/rocm"):
        if home and (text := _text(root / home.lstrip("/") / ".info/version")):
            return text.partition("-")[0]
    return None


def _pci_cards(sys: Path) -> Iterator[Path]:
    for device in sorted((sys / "bus/pci/devices").glob("*")):
        if _text(device / "vendor") == _AMD and (_text(device / "class") or "").startswith(_GPU_CLASSES):
            yield device


def _cards(sys: Path) -> Iterator[Card]:
    nodes = _nodes(sys / "class/kfd/kfd/topology/nodes")
    cards = [path for path in (sys / "class/drm").glob("card*") if re.fullmatch(r"card\d+", path.name)]
    seen = set()
    for path in sorted(cards, key=lambda path: int(path.name.removeprefix("card"))):
        device = Path(os.path.realpath(path / "device"))
        # Partitions of one card are several DRM cards at one address.
        if _text(device / "vendor") != _AMD or device in seen:
            continue
        seen.add(device)
        own = nodes.get(device.name, [])
        first = own[0] if own else {}
        version = int(first.get("gfx_target_version", 0))
        busy = _whole(device / "gpu_busy_percent")
        yield Card(
            pci=device.name,
            name=readable(_text(device / "product_name")),
            gfx=gfx_name(version) if version else None,
            vram_bytes=_whole(device / "mem_info_vram_total"),
            visible_bytes=_whole(device / "mem_info_vis_vram_total"),
            busy_percent=None if busy is None else float(busy),
            compute_partition=_mode(device / "current_compute_partition"),
            memory_partition=_mode(device / "current_memory_partition"),
            links=tuple(_links(device)),
            xgmi_peers=int(first.get("xgmi_peers", 0)),
            hive=int(first.get("hive_id", 0)),
            ecc=bool(int(first["capability"]) >> _ECC_BIT & 1) if "capability" in first else None,
            nodes=len(own),
        )


def _nodes(folder: Path) -> dict[str, list[dict[str, str]]]:
    """PCI address -> properties of the KFD nodes there, with the number of their XGMI links."""
    found: dict[str, list[dict[str, str]]] = {}
    for node in sorted(folder.glob("*")):
        properties = _properties(node / "properties")
        if not int(properties.get("simd_count", 0)):
            continue  # a processor
        location, domain = int(properties.get("location_id", 0)), int(properties.get("domain", 0))
        links = [_properties(link / "properties") for link in node.glob("io_links/*")]
        properties["xgmi_peers"] = str(sum(link.get("type") == _XGMI for link in links))
        address = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0"
        # The low three bits are the number of a partition, whose device is the whole card's.
        found.setdefault(address, []).append(properties)
    return found


def _properties(path: Path) -> dict[str, str]:
    words = [line.split() for line in (_text(path) or "").splitlines()]
    return {pair[0]: pair[1] for pair in words if len(pair) == 2 and _WHOLE.fullmatch(pair[1])}


def _links(device: Path) -> Iterator[Link]:
    """From the card up to the root port: an Instinct card sits behind bridges of its own."""
    for hop in (device, *device.parents):
        if not (hop / "max_link_width").exists():
            return
        yield Link(
            address=hop.name,
            width=_lanes(hop / "current_link_width"),
            max_width=_lanes(hop / "max_link_width"),
            speed=_speed(hop / "current_link_speed"),
            max_speed=_speed(hop / "max_link_speed"),
        )


def _mode(path: Path) -> str | None:
    text = _text(path)
    return text if text is not None and re.fullmatch(r"[A-Z]PX|NPS[1248]", text) else None


def _lanes(path: Path) -> int | None:
    # 255 and 65535 are what the kernel reads from a device that does not answer.
    width = _whole(path)
    return width if width is not None and width <= _MOST_LANES else None


def _speed(path: Path) -> float | None:
    match = _SPEED.match(_text(path) or "")
    return float(match[1]) if match and float(match[1]) <= _FASTEST else None


def _device_files(dev: Path, user: int, groups: tuple[int, ...]) -> Iterator[DeviceFile]:
    for path in (dev / "kfd", *sorted((dev / "dri").glob("renderD*"))):
        try:
            status = path.stat()
        except OSError:
            continue
        # Not os.access: that asks for this process, and a training may run as somebody else.
        bits = status.st_mode >> (6 if status.st_uid == user else 3 if status.st_gid in groups else 0)
        yield DeviceFile(
            path="/" + str(path.relative_to(dev.parent)), group=status.st_gid, allowed=user == 0 or bits & 6 == 6
        )


def _group_names(groups: set[int]) -> Iterator[tuple[int, str]]:
    for group in groups:
        with contextlib.suppress(KeyError):
            yield group, grp.getgrgid(group).gr_name


def _container(root: Path, environment: Mapping[str, str]) -> str | None:
    for name in (".dockerenv", "run/.containerenv"):
        if (root / name).exists():
            return f"/{name}"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "KUBERNETES_SERVICE_HOST"
    text = _text(root / "proc/1/cgroup") or ""
    return "/proc/1/cgroup" if re.search(r"docker|kubepods|containerd|libpod|apptainer", text) else None


def _shm_bytes(dev: Path) -> int | None:
    try:
        status = os.statvfs(dev / "shm")
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def _limits(root: Path) -> dict[str, float]:
    rows = re.findall(
        r"^(Max [a-z ]+?) {2,}([0-9]{1,20}|unlimited) ", _text(root / "proc/self/limits") or "", re.MULTILINE
    )
    return {name: float("inf") if soft == "unlimited" else float(soft) for name, soft in rows}


def _rocm_libraries(root: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """As librccl.so.1.0.70200 has it: nothing is loaded."""
    folder = root / (environment.get("ROCM_PATH") or "/opt/rocm").lstrip("/") / "lib"
    for name in ("rccl", "MIOpen", "hipblaslt"):
        versions = [path.name.partition(".so.")[2] for path in folder.glob(f"lib{name}.so.*")]
        if versions:
            yield name.lower(), max(versions, key=len)


def _packages(site: Sequence[Path]) -> dict[str, str]:
    # By the folders' names: reading the metadata of a few hundred distributions takes a tenth of a second.
    found: dict[str, str] = {}
    for folder in (folder for place in site for folder in sorted(place.glob("*.dist-info"))):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return found


def _cuda_built(site: Sequence[Path]) -> Iterator[str]:
    for name in _COMPILED_FOR_ONE_VENDOR:
        folders = [folder / name for folder in site if (folder / name).is_dir()]
        libraries = [path for folder in folders for path in sorted(folder.rglob("*.so"))]
        # flash-attn puts its one module beside its package.
        libraries += [path for folder in site for path in sorted(folder.glob(f"{name}_*.so"))]
        amd = any(_mentions(path, b"libamdhip64", b"rocm") for path in libraries)
        if not amd and any(_mentions(path, b"libcudart", b"libcublas") for path in libraries):
            yield name


def _mentions(path: Path, *words: bytes) -> bool:
    """Whether a compiled library names one of ``words``, in its name or among those that it is linked with."""
    if any(word in path.name.encode() for word in words):
        return True
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(word) >= 0 for word in words)
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return False
