"""Outputs of rocm-smi, amd-smi and nvidia-smi in the dresses of their versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from floatscope_server.readers.smi import quantity, timestamp

if TYPE_CHECKING:
    from tests.server.readers.conftest import Reads

MIB = 1 << 20


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("39.0", 39.0),
        ("90 %", 90.0),
        ({"value": 6, "unit": "W"}, 6.0),
        ("N/A", None),
        ({"value": "N/A", "unit": "mV"}, None),
        (["N/A"], None),
        ("[Not Supported]", None),
        ("[N/A]", None),
        (True, None),
        (None, None),
        ("-1", -1.0),
    ],
)
def test_quantity(value: Any, want: float | None) -> None:  # noqa: ANN401 - JSON
    assert quantity(value) == want


def test_timestamp() -> None:
    assert timestamp("1789515524") == 1789515524 * 10**9
    assert timestamp("2025/03/21 10:00:00.500") == 1742551200500000000
    assert timestamp("yesterday") == 0


def test_rocm_smi_json_old_and_new_names(reads: Reads) -> None:
    old = {"GPU use (%)": "7", "GPU memory use (%)": "5", "Average Graphics Package Power (W)": "39.0"}
    new = {
        "GPU use (%)": "8",
        "GPU Memory Allocated (VRAM%)": "12",
        "GPU Memory Read/Write Activity (%)": "3",
        "Current Socket Graphics Package Power (W)": "140.0",
        "GFX Activity": "203885505",
    }
    memory = {"VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10977280"}
    noise = {"VIS_VRAM Total Memory (B)": "1", "GTT Total Memory (B)": "2", "0": "8.0GT/s x16 *", "Unique ID": "N/A"}
    text = "WARNING: AMD GPU device(s) is/are in a low-power state.\n\n"
    text += json.dumps({"card0": old | memory | noise, "card10": new | memory, "system": {"PID 1": "x"}}, indent=1)
    read = reads(text)
    assert read.format == "rocm-smi-json"
    first, second = (reading.device for reading in read.readings)
    assert (first.index, first.busy_percent, first.memory_busy_percent, first.power_watts) == (0, 7.0, 5.0, 39.0)
    assert (second.index, second.busy_percent, second.memory_busy_percent, second.power_watts) == (10, 8.0, 3.0, 140.0)
    assert (second.vram_used_bytes, second.vram_total_bytes, second.temperature_celsius) == (
        10977280,
        68702699520,
        None,
    )


def test_rocm_smi_json_again_and_again(reads: Reads) -> None:
    one = json.dumps({"card0": {"GPU use (%)": "7"}})
    read = reads(f"{one}\n{one}\n{one[:-4]}")
    assert len(read.readings) == 2
    assert [broken.line for broken in read.broken] == [3]


def test_rocm_smi_csv(reads: Reads) -> None:
    read = reads(
        "WARNING: low-power state\n\nDevice,GPU use (%),Total (B),Used (B),Card Series\n"
        'card0,97,17163091968,8581545984,"Radeon, the second"\ncard1,N/A,1,1\n\n'
    )
    assert read.format == "rocm-smi-csv"
    (reading,) = read.readings
    assert (reading.device.busy_percent, reading.device.vram_used_bytes) == (97.0, 8581545984)
    assert reading.device.name == "Radeon, the second"
    assert [broken.line for broken in read.broken] == [5]


def _card(index: int, **more: object) -> dict[str, Any]:
    return {
        "gpu": index,
        "usage": {"gfx_activity": {"value": 91, "unit": "%"}, "umc_activity": "N/A", "vcn_activity": ["N/A"]},
        "power": {"socket_power": {"value": 200, "unit": "W"}, "throttle_status": "THROTTLED"},
        "temperature": {"edge": {"value": 50, "unit": "C"}, "hotspot": {"value": "N/A", "unit": "C"}},
        "mem_usage": {"total_vram": {"value": 30576, "unit": "MB"}, "used_vram": {"value": 20450, "unit": "MB"}},
        **more,
    }


@pytest.mark.parametrize("shape", ["list", "gpu_data", "list of lists"])
def test_amd_smi_json(reads: Reads, shape: str) -> None:
    cards: Any = [_card(0), _card(1, ecc={"total_uncorrectable_count": 2})]
    content = {"list": cards, "gpu_data": {"gpu_data": cards}, "list of lists": [cards]}[shape]
    read = reads(json.dumps(content, indent=4))
    assert read.format == "amd-smi-json"
    first, second = read.readings
    assert first.device.vram_total_bytes == 30576 * MIB
    assert (first.device.busy_percent, first.device.memory_busy_percent) == (91.0, None)
    assert (first.device.power_watts, first.device.temperature_celsius) == (200.0, 50.0)
    assert first.faults == ()
    assert second.faults == ("ecc",)


def test_amd_smi_csv_of_metric(reads: Reads) -> None:
    read = reads(
        "timestamp,gpu,gfx_activity,umc_activity,socket_power,edge,hotspot,mem,total_vram,used_vram\n"
        "1789515524,0,95,80,350,N/A,72,65,196592,1000\n1789515524,1,0,N/A,N/A,N/A,N/A,24,196592,500\n"
    )
    assert read.format == "amd-smi-csv"
    first, second = (reading.device for reading in read.readings)
    assert first.time_ns == 1789515524 * 10**9
    assert (first.busy_percent, first.memory_busy_percent, first.temperature_celsius) == (95.0, 80.0, 72.0)
    assert (first.vram_used_bytes, first.vram_total_bytes) == (1000 * MIB, 196592 * MIB)
    assert (second.index, second.memory_busy_percent, second.power_watts) == (1, None, None)


def test_amd_smi_csv_of_the_monitor_is_in_gib(reads: Reads) -> None:
    read = reads(
        "gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,vram_used,vram_total\n"
        "0,140,45,40,1500,90,30,12.5,192.0\n"
    )
    device = read.readings[0].device
    assert (device.power_watts, device.busy_percent, device.memory_busy_percent) == (140.0, 90.0, 30.0)
    assert (device.vram_used_bytes, device.vram_total_bytes) == (12.5 * 1024 * MIB, 192 * 1024 * MIB)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (
            "GPU  POWER   GPU_T  MEM_T  GFX_CLK  GFX%  MEM%  VRAM_USED  VRAM_TOTAL",
            "  0  140 W   45 °C  N/A    1500 MHz  90 %  30 %  12800 MB  196608 MB",
        ),
        (
            "GPU  XCP  POWER   GPU_T   MEM_T   GFX_CLK   GFX%   MEM%   VRAM_USAGE",
            "  0    0  140 W   45 °C   N/A   1500 MHz   90 %   30 %   12.5/192.0 GB",
        ),
    ],
)
def test_amd_smi_monitor(reads: Reads, header: str, row: str) -> None:
    read = reads(f"{header}\n{row}\n{header}\n{row}\n")
    assert read.format == "amd-smi-monitor"
    assert read.broken == []
    assert len(read.readings) == 2
    device = read.readings[0].device
    assert (device.power_watts, device.temperature_celsius, device.busy_percent) == (140.0, 45.0, 90.0)
    assert (device.vram_used_bytes, device.vram_total_bytes) == (12800 * MIB, 196608 * MIB)


@pytest.mark.parametrize("units", [True, False])
def test_nvidia_smi(reads: Reads, *, units: bool) -> None:
    text = (
        "timestamp, index, name, utilization.gpu [%], utilization.memory [%], memory.used [MiB], memory.total [MiB], "
        "power.draw [W], temperature.gpu\n"
        "2025/03/21 10:00:00.000, 3, NVIDIA H200, 90 %, [N/A], 10000 MiB, 143771 MiB, 310.52 W, 61\n"
        "2025/03/21 10:00:10.000, 3, NVIDIA H200, 9"
    )
    if not units:
        text = text.replace(" %,", ",").replace(" MiB,", ",").replace(" W,", ",")
    read = reads(text)
    assert read.format == "nvidia-smi-csv"
    device = read.readings[0].device
    assert (device.index, device.name, device.busy_percent, device.memory_busy_percent) == (
        3,
        "NVIDIA H200",
        90.0,
        None,
    )
    assert (device.vram_used_bytes, device.power_watts) == (10000 * MIB, 310.52)
    assert read.readings[0].values["memory.used [MiB]"] == 10000.0
    assert len(read.broken) == 1
