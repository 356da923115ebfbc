#include "tests/amx_emulation/illegal_instructions.h"

#include <signal.h>
#include <ucontext.h>

#include <cstring>

#include "kernels/cpu/amx/tiles.h"
#include "tests/amx_emulation/tile_state.h"

namespace kvblend::amx_emulation {
namespace {

// General registers in the order of their numbers in instructions.
constexpr int kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/// One instruction with a VEX prefix of three bytes, of opcode map 0F38.
class Instruction {
 public:
  enum Prefix { kNone, k66, kF3, kF2 };  // as VEX encodes them

  Instruction(const uint8_t* bytes, const greg_t* registers) : registers_(registers) {
    std::memcpy(bytes_, bytes, 5);
    // The rest only as far as the instruction goes: it may end where the memory does.
    if (is_vex() && has_sib()) bytes_[5] = bytes[5];
    if (is_vex()) std::memcpy(displacement_, bytes + displacement_at(), displacement_bytes());
    address_of_next_ = reinterpret_cast<uintptr_t>(bytes) + size();
  }

  bool is_vex() const { return bytes_[0] == 0xC4 && (bytes_[1] & 0x1F) == 2; }
  bool is_wide() const { return (bytes_[2] & 0x80) != 0 || (bytes_[2] & 4) != 0; }  // W, L
  Prefix prefix() const { return static_cast<Prefix>(bytes_[2] & 3); }
  uint8_t opcode() const { return bytes_[3]; }
  bool is_memory() const { return mod() != 3; }
  bool has_sib() const { return is_memory() && (bytes_[4] & 7) == 4; }
  int reg() const { return (bytes_[4] >> 3 & 7) | ((bytes_[1] & 0x80) == 0 ? 8 : 0); }
  int rm() const { return (bytes_[4] & 7) | ((bytes_[1] & 0x20) == 0 ? 8 : 0); }
  int vvvv() const { return ~bytes_[2] >> 3 & 15; }
  int size() const { return displacement_at() + displacement_bytes(); }

  /// The address without the index register.
  std::byte* address() const {
    uint64_t address = Displacement();
    if (is_rip_relative()) {
      address += address_of_next_;
    } else if (has_sib()) {
      if (!sib_has_no_base()) address += Register((bytes_[5] & 7) | (rm() & 8));
    } else {
      address += Register(rm());
    }
    return reinterpret_cast<std::byte*>(address);
  }
  /// The index register times its scale: the distance of rows.
  int64_t stride() const {
    const int index = (bytes_[5] >> 3 & 7) | ((bytes_[1] & 0x40) == 0 ? 8 : 0);
    return index == 4 ? 0 : static_cast<int64_t>(Register(index) << (bytes_[5] >> 6));
  }

 private:
  int mod() const { return bytes_[4] >> 6; }
  bool is_rip_relative() const { return mod() == 0 && (bytes_[4] & 7) == 5; }
  bool sib_has_no_base() const { return mod() == 0 && (bytes_[5] & 7) == 5; }
  int displacement_at() const { return has_sib() ? 6 : 5; }
  int displacement_bytes() const {
    if (!is_memory()) return 0;
    if (mod() == 1) return 1;
    return mod() == 2 || is_rip_relative() || (has_sib() && sib_has_no_base()) ? 4 : 0;
  }
  uint64_t Displacement() const {
    int32_t value = 0;
    if (displacement_bytes() == 1) value = static_cast<int8_t>(displacement_[0]);
    if (displacement_bytes() == 4) std::memcpy(&value, displacement_, sizeof(value));
    return static_cast<uint64_t>(int64_t{value});
  }
  uint64_t Register(int number) const { return static_cast<uint64_t>(registers_[kRegisters[number]]); }

  const greg_t* registers_;
  uint8_t bytes_[6] = {}, displacement_[4] = {};
  uint64_t address_of_next_ = 0;
};

// False when it is none of AMX's.
bool Execute(const Instruction& instruction) {
  using I = Instruction;
  if (!instruction.is_vex() || instruction.is_wide()) return false;
  TileState& tiles = TileState::OfThread();
  const auto is = [&](uint8_t opcode, I::Prefix prefix) {
    return instruction.opcode() == opcode && instruction.prefix() == prefix;
  };
  if (is(0x5C, I::kF3) && !instruction.is_memory()) {
    tiles.AddProducts(instruction.reg(), instruction.rm(), instruction.vvvv());
    return true;
  }
  if (instruction.vvvv() != 0) return false;
  // TILELOADD and TILELOADDT1
  if ((is(0x4B, I::kF2) || is(0x4B, I::k66)) && instruction.has_sib()) {
    tiles.Load(instruction.reg(), instruction.address(), instruction.stride());
  } else if (is(0x4B, I::kF3) && instruction.has_sib()) {
    tiles.Store(instruction.reg(), instruction.address(), instruction.stride());
  } else if (is(0x49, I::kF2) && !instruction.is_memory() && instruction.rm() == 0) {
    tiles.Zero(instruction.reg());
  } else if (is(0x49, I::kNone) && instruction.is_memory() && instruction.reg() == 0) {
    tiles.Configure(instruction.address());
  } else if (is(0x49, I::kNone) && !instruction.is_memory() && instruction.reg() == 0 &&
             instruction.rm() == 0) {
    tiles.Release();
  } else {
    return false;
  }
  return true;
}

// An instruction raises this itself, so that nothing else of its thread is interrupted.
void OnIllegalInstruction(int signal, siginfo_t* /*info*/, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction instruction(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
  if (Execute(instruction)) {
    registers[REG_RIP] += instruction.size();
  } else {
    ::signal(signal, SIG_DFL);  // and now the same once more
  }
}

}  // namespace

bool EmulateIllegalInstructions() {
  static const bool emulated = [] {
    if (kernels::RequestAmx()) return false;
    struct sigaction action = {};
    action.sa_sigaction = &OnIllegalInstruction;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, nullptr);
    return true;
  }();
  return emulated;
}

}  // namespace kvblend::amx_emulation
