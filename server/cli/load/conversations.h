// What is asked in a load: conversations of one or more turns over retrieved passages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblend/v1/inference.pb.h"
#include "server/cli/bench/bench_spec.h"
#include "server/cli/bench/dataset.h"

namespace kvblend::server::cli {

/// Tokens to generate: uniformly from `least` to `most`.
struct OutputLength {
  int32_t least = 32;
  int32_t most = 32;
};
/// "32" or "16-64". kInvalidArgument for anything else.
absl::StatusOr<OutputLength> ParseOutputLength(const std::string& text);

struct ConversationOptions {
  int count = 0;               // different ones; 0: as many as there are questions
  int turns = 1;               // questions of each
  int passages = 0;            // of each; 0: all that its question has, and 10 with zipf
  std::optional<double> zipf;  // exponent; empty: the passages that belong to the question
  OutputLength output;
  uint64_t seed = 1;
};

struct Conversation {
  v1::Prompt prompt;                   // of the first turn; its chunks stay there for later ones
  std::vector<std::string> questions;  // one per turn
  std::vector<int32_t> output_tokens;  // one per turn

  int turns() const { return static_cast<int>(questions.size()); }
  /// The request of a turn, from 0, behind the answers to those before it, with exactly so many tokens to
  /// generate (end-of-text is ignored). Missing chunks are not stored behind it: the store stays as it was
  /// warmed.
  v1::GenerateRequest Request(int turn, const std::vector<std::string>& answers, const BenchVariant& mode,
                              const std::string& tenant_namespace) const;
};

/// The i-th conversation begins with the i-th question and goes on with those that follow it, around the end.
/// With `zipf` its passages are drawn from those of all questions together, of which a random one is the most
/// popular. kInvalidArgument: there are fewer passages than wanted.
absl::StatusOr<std::vector<Conversation>> MakeConversations(const std::vector<BenchQuestion>& questions,
                                                            const ConversationOptions& options);

/// Chunks behind the same texts.
struct ChunkGroup {
  std::string system_text;
  std::string lead_in;
  std::vector<std::string> chunks;  // each once
};
/// The chunks of all conversations by what they stand behind; `isolated`: behind nothing, all in one group.
std::vector<ChunkGroup> GroupChunks(const std::vector<Conversation>& conversations, bool isolated);

}  // namespace kvblend::server::cli
