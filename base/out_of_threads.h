// What a program says when the system gives it no more threads.
#pragma once

#include <cstdlib>
#include <exception>
#include <iostream>
#include <system_error>

namespace kvblend {

/// From now on, an std::thread that can't be started ends the process with exit code 1 and one line on
/// stderr, "PROGRAM: can't start a thread: ...", in place of abort(3) without a word of what is short. Nobody
/// catches that error, since no part of the programs works without its threads; any other one that nobody
/// catches still aborts. `program` must live as long as the process.
inline void SayWhenOutOfThreads(const char* program) {
  static const char* name = nullptr;
  static std::terminate_handler otherwise = nullptr;
  name = program;
  const std::terminate_handler say_and_exit = [] {
    try {
      if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) {
        std::cerr << name << ": can't start a thread: " << error.code().message()
                  << "; allowed: as many as the limits of this user, container or service leave (ulimit -u, "
                     "pids.max, TasksMax)"
                  << std::endl;
        std::_Exit(1);
      }
    } catch (...) {
    }
    otherwise();
  };
  const std::terminate_handler before = std::set_terminate(say_and_exit);
  if (before != say_and_exit) otherwise = before;
}

}  // namespace kvblend
