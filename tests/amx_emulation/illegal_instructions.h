// AMX's machine code on processors without it: what they refuse to execute is done in a handler of SIGILL.
// The very instructions that run on AMX are tested so, with their operands and their order among other
// accesses to memory. Virtual machines can take 0.2 ms for each: enough for single products, not for
// operations.
#pragma once

namespace kvblend::amx_emulation {

/// From now on AmxInstructions work in this process: the processor's own where it has them, emulated on
/// TileState where not. Returns whether they are emulated.
bool EmulateIllegalInstructions();

}  // namespace kvblend::amx_emulation
