// Intel AMX: whether this process may use the tiles.
#pragma once

namespace convoy {

/// Feature bits, the kernel's permission (XCOMP request) and a guarded trial of the first instruction, once per
/// process. Never reads CPUID leaf 0x1D, which some hypervisors hide: palette 1 has eight tiles of 16 rows by 64 bytes.
bool amx_granted();

}  // namespace convoy
