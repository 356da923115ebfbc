// Command lines of the benchmarks.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "engine/api/engine.h"

namespace kvblend {

/// Any size or number of rounds that a benchmark is ready for.
inline CLI::Range Count(int32_t smallest = 1) { return CLI::Range(smallest, 1 << 20); }

/// MODEL, DATA and the engine's settings that the benchmarks know, named as kvblend-server has them.
inline void AddEngineArguments(CLI::App& app, EngineOptions& engine, std::string& data_path) {
  app.add_option("MODEL", engine.model_path, "GGUF file")->required();
  app.add_option("DATA", data_path, "JSON list of {question, ctxs: [{title, text}]}")->required();
  app.add_option("--chat-format", engine.chat_format, "for a model without a template");
  app.add_option("--gemm", engine.gemm);
  app.add_option("--kv-dtype", engine.kv_dtype);
  app.add_option("--chunk-format", engine.chunk_format);
  app.add_option("--correction", engine.correction, "of stored KV: a file, none, or auto");
  app.add_option("--device", engine.device);
  app.add_option("--page-size", engine.page_size)->check(Count());
  app.add_option("--max-draft-tokens", engine.max_draft_tokens,
                 "guessed per step of decoding; 0: every step is one token")
      ->check(CLI::Range(0, 64));
  app.add_option("--threads", engine.num_threads, "0: one per processor")->check(Count(0));
}

/// Ends the program after --help, and with 2 and the reason where the command line is wrong.
inline void ParseOrExit(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
}

/// Writes a file; "-" is standard output.
inline absl::Status WriteText(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return absl::OkStatus();
  }
  std::ofstream file(path);
  file << text;
  return file.flush() ? absl::OkStatus() : absl::UnavailableError("cannot write " + path);
}

/// The program's exit code; says what went wrong.
inline int ExitCode(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace kvblend
