"""What torch says of itself and of the cards that it can use. The only part of the doctor that imports it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from floatscope._chips import bandwidth_of, fp8_formats, fp8_of
from floatscope._doctor._machine import Torch
from floatscope._doctor._verdict import Verdict, ok, wrong

__all__ = ["ask", "bandwidth", "import_torch", "probe_checks"]

_COPY_BYTES = 1 << 28
"""Larger than every cache: an MI300X has 256 MiB of Infinity Cache, and source and target together are twice that."""


def import_torch() -> tuple[Any, Verdict | None]:
    """The module, or None with a verdict where there is one that cannot be imported."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return None, None
        return None, _broken(error)
    except Exception as error:  # noqa: BLE001  # OSError of a missing library, KeyError of amdsmi, ...
        return None, _broken(error)
    return torch, None


def _broken(error: Exception) -> Verdict:
    first = (str(error).splitlines() or [""])[0]
    return wrong(
        "torch",
        f"{type(error).__name__}: {first}",
        "torch is installed and cannot be imported",
        "install it again, for the ROCm of this machine; a wheel of amdsmi or a second torch does this too",
    )


def ask(torch: ModuleType | Any, *, cards: bool) -> Torch:  # noqa: ANN401  # torch has no type for itself
    """Versions, and with ``cards`` their number and architectures, which starts a CUDA context where there is none.
    Waits for no device.
    """
    used = torch.cuda.device_count() if cards and torch.cuda.is_available() else 0
    return Torch(
        version=str(torch.__version__),
        hip=torch.version.hip,
        cuda=torch.version.cuda,
        devices=used if cards else None,
        chips=tuple(_chip(torch, index) for index in range(used)),
    )


def _chip(torch: Any, index: int) -> str:  # noqa: ANN401
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        return str(properties.gcnArchName)
    return f"sm_{properties.major}{properties.minor}"


def bandwidth(torch: Any) -> tuple[tuple[str, float], ...]:  # noqa: ANN401
    """Bytes per second, read and written, of the best of five copies on each card; the card's architecture or name."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, _ = torch.cuda.mem_get_info(index)
        if free < 4 * _COPY_BYTES:
            continue  # somebody trains there
        source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=f"cuda:{index}")
        target = torch.empty_like(source)
        best = 0.0
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.device(index):
                begin.record()
                target.copy_(source)
                end.record()
            end.synchronize()
            best = max(best, 2 * _COPY_BYTES / (begin.elapsed_time(end) / 1e3))
        chip = _chip(torch, index).partition(":")[0]
        found.append((chip if bandwidth_of(chip) else properties.name, best))
    return tuple(found)


def probe_checks(torch: Any) -> list[Verdict]:  # noqa: ANN401
    """The chip's FP8 against what a product on it really does."""
    from floatscope._fp8_probe import multiplies

    found = []
    for index in range(torch.cuda.device_count()):
        chip = _chip(torch, index).partition(":")[0]
        names = fp8_formats(fp8_of(chip))
        if not names:
            continue
        item = f"fp8 probe {index}"
        if multiplies(torch.device("cuda", index), names[0], names[0]):
            found.append(ok(item, f"{names[0]} x {names[0]} is right on {chip}"))
        else:
            found.append(
                wrong(
                    item,
                    f"{names[0]} is refused on {chip}",
                    "the chip has the instruction and this build of torch does not use it: what asks for FP8 fails, or "
                    "silently runs as BF16",
                    "use a torch built for this ROCm or CUDA (2.7 or newer)",
                )
            )
    return found
