// Prompts of an exact number of tokens, made of real text: one chunk that is as long as it takes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/options.h"
#include "engine/api/request.h"

namespace kvblend {

/// Tokens of a text on its own.
using TokenCounter = absl::FunctionRef<absl::StatusOr<int32_t>(std::string_view)>;

class ExactPrompts {
 public:
  /// `data_path`: as for BenchPrompt. All its passages, one after the other and again from the first, are
  /// the text that prompts are made of.
  static absl::StatusOr<ExactPrompts> Read(const std::string& data_path);

  /// The prompt whose chunk is empty. Its tokens are what every prompt has beside the chunk's.
  Prompt Frame() const;

  /// The frame with a chunk of exactly `chunk_tokens` tokens. kInvalidArgument: fewer than 0.
  /// kInternal: words can't be put together to that number, which no vocabulary at hand does.
  absl::StatusOr<Prompt> Make(int32_t chunk_tokens, TokenCounter count) const;

 private:
  std::string Text(size_t num_words) const;

  std::vector<std::string> words_;  // with the space before them
};

/// A JSON object {"N": [token ids]} of the prompts with N tokens, for measuring others on the same tokens.
absl::Status WriteTokens(const EngineOptions& engine, const std::string& data_path,
                         const std::vector<int32_t>& sizes, const std::string& json_path);

}  // namespace kvblend
