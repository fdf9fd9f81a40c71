"""The GPUs of this machine, as the NVIDIA driver library shows them: the one place of the launcher that knows ctypes.

NVML only looks: unlike CUDA it makes no context, takes no memory and survives a fork. Without the library, or without
a device, there are none; that is no error.
"""

from __future__ import annotations

import ctypes

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96


def devices(library: str = _LIBRARY) -> list[str]:
    """UUIDs of all devices of this machine in the order of the bus; empty when there are none.

    Parameters
    ----------
    library
        Name or path of the driver library.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return []
    if nvml.nvmlInit_v2() != 0:
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        return [uuid for index in range(count.value) if (uuid := _uuid(nvml, index))]
    finally:
        nvml.nvmlShutdown()


def _uuid(nvml: ctypes.CDLL, index: int) -> str:
    device, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
        return ""
    if nvml.nvmlDeviceGetUUID(device, text, ctypes.c_uint(_UUID_BYTES)) != 0:
        return ""
    return text.value.decode(errors="replace")
