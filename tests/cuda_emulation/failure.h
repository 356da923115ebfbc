// How the emulator stops a program whose kernel does what a GPU would not survive or define.
#pragma once

#include <string>

namespace kvblend::cuda_emulation {

/// Where in the kernel's source a collective stands.
struct Site {
  const char* file = "";
  int line = 0;

  /// As a default argument: the line of the call.
  static constexpr Site Current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  friend bool operator==(const Site&, const Site&) = default;
};

std::string ToString(const Site& site);

/// Prints "CUDA emulation: <kernel>, block (x, y, z), thread t: <message>" to standard error and aborts.
[[noreturn]] void Fail(const std::string& message);

}  // namespace kvblend::cuda_emulation
