#include "server/convert/reports.h"

#include <string>

#include "absl/strings/str_replace.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "tests/support/message_text.h"

namespace kvblend::server {
namespace {

using ::kvblend::test_support::ExpectMessage;

// The fields of `message`, nested ones included, that hold nothing: given a source where nothing is zero,
// those that the conversion forgot.
std::string EmptyFields(const google::protobuf::Message& message, const std::string& prefix = "") {
  std::string empty;
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor.field(i);
    const std::string path = prefix + std::string(field->name());
    const bool set =
        field->is_repeated() ? reflection.FieldSize(message, field) > 0 : reflection.HasField(message, field);
    if (!set) {
      empty += path + " ";
    } else if (field->type() == google::protobuf::FieldDescriptor::TYPE_MESSAGE) {
      empty += EmptyFields(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, 0)
                                                : reflection.GetMessage(message, field),
                           path + ".");
    }
  }
  return empty;
}

TEST(ConvertReportsTest, PromptReport) {
  PromptReport report;
  report.policy = Policy::kLink;
  report.ratio = 0.25;
  report.reuse = Reuse::kPrefix;
  report.anchoring = Anchoring::kIsolated;
  report.prompt_tokens = 10;
  report.kept_tokens = 12;
  report.kept_exact_tokens = 11;
  report.exact_tokens = 9;
  report.shared_tokens = 1;
  report.reused_tokens = 2;
  report.recomputed_tokens = 3;
  report.computed_tokens = 4;
  report.chunks.push_back({1, ChunkSource::kOtherAnchor, Tier::kHostMemory, 5, 6, "abc"});
  report.chunks.push_back({2, ChunkSource::kMiss, Tier::kNone, 7, 7, "def"});
  report.queue_seconds = 0.1;
  report.lookup_seconds = 0.2;
  report.load_seconds = 0.3;
  report.stall_seconds = 0.25;
  report.select_seconds = 0.4;
  report.prefill_seconds = 0.5;
  report.others_seconds = 0.7;
  report.time_to_first_token_seconds = 0.6;
  report.loading = {.mode = RatioMode::kAuto,
                    .ratio_min = 0.01,
                    .ratio_max = 0.02,
                    .ratio = 0.03,
                    .bypassed_chunks = 4,
                    .predicted = true,
                    .predicted_seconds = 0.05,
                    .predicted_load_seconds = 0.06,
                    .predicted_compute_seconds = 0.07,
                    .compute_seconds_per_token = 0.08,
                    .reads = {{.tier = Tier::kDisk, .bytes = 9, .bytes_per_second = 10}},
                    .skipped_bytes = 11};
  report.correction = "0123";
  report.explanation.push_back({.part = PromptPart::kChunk,
                                .chunk_index = 1,
                                .texts = {"a", " b"},
                                .recomputed = {1},
                                .scores = {0.25, 0.5}});
  const v1::PromptReport wire = ToProto(report);
  EXPECT_EQ(EmptyFields(wire), "");
  ExpectMessage(wire, R"(policy: POLICY_LINK  ratio: 0.25  reuse: REUSE_PREFIX  anchoring: ANCHORING_ISOLATED
      prompt_tokens: 10  kept_tokens: 12  kept_exact_tokens: 11  exact_tokens: 9  shared_tokens: 1  reused_tokens: 2  recomputed_tokens: 3  computed_tokens: 4
      chunks { index: 1  source: CHUNK_SOURCE_OTHER_ANCHOR  tier: TIER_HOST_MEMORY
               num_tokens: 5  recomputed_tokens: 6  key: "abc" }
      chunks { index: 2  source: CHUNK_SOURCE_MISS  num_tokens: 7  recomputed_tokens: 7  key: "def" }
      queue_seconds: 0.1  lookup_seconds: 0.2  load_seconds: 0.3  stall_seconds: 0.25
      select_seconds: 0.4  prefill_seconds: 0.5  others_seconds: 0.7  time_to_first_token_seconds: 0.6
      loading { mode: RATIO_MODE_AUTO  ratio_min: 0.01  ratio_max: 0.02  ratio: 0.03  bypassed_chunks: 4
                predicted: true  predicted_seconds: 0.05  predicted_load_seconds: 0.06
                predicted_compute_seconds: 0.07  compute_seconds_per_token: 0.08
                reads { tier: TIER_DISK  bytes: 9  bytes_per_second: 10 }  skipped_bytes: 11 }
      correction: "0123"
      explanation { part: PROMPT_PART_CHUNK  chunk_index: 1  texts: [ "a", " b" ]  recomputed: 1
                    scores: [ 0.25, 0.5 ] })");
}

TEST(ConvertReportsTest, TextDelta) {
  TextDelta delta;
  delta.text = "hello";
  delta.token_ids = {1, 2};
  delta.begin_character = 7;
  delta.logprobs = {{1, "he", -0.5, "he"}, {2, "llo", -1.5, "llo"}};
  delta.top_logprobs = {{{1, "he", -0.5, "he"}, {9, "\uFFFD", -3, "\xC5"}}, {{2, "llo", -1.5, "llo"}}};
  const v1::TextDelta wire = ToProto(delta);
  EXPECT_EQ(EmptyFields(wire), "");
  ExpectMessage(wire, R"(text: "hello"  token_ids: [ 1, 2 ]  begin_character: 7
      logprobs { token_id: 1  text: "he"  logprob: -0.5  bytes: "he" }
      logprobs { token_id: 2  text: "llo"  logprob: -1.5  bytes: "llo" }
      top_logprobs { tokens { token_id: 1  text: "he"  logprob: -0.5  bytes: "he" }
                     tokens { token_id: 9  text: "\357\277\275"  logprob: -3  bytes: "\305" } }
      top_logprobs { tokens { token_id: 2  text: "llo"  logprob: -1.5  bytes: "llo" } })");
}

TEST(ConvertReportsTest, GenerateResult) {
  const v1::GenerateFinished wire = ToProto(
      GenerateResult{FinishReason::kStopString,
                     "stop",
                     3,
                     4,
                     5,
                     0.5,
                     2.5,
                     {{.begin_byte = 6, .end_byte = 7, .chunks = {{.index = 8, .attention = 0.75f}}}}});
  EXPECT_EQ(EmptyFields(wire), "");
  ExpectMessage(wire, R"(reason: FINISH_REASON_STOP_STRING  stop_string: "stop"  seed: 5
      usage { prompt_tokens: 3  completion_tokens: 4 }
      timings { time_to_first_token_seconds: 0.5  total_seconds: 2.5 }
      attributions { begin_byte: 6  end_byte: 7  chunks { index: 8  attention: 0.75 } })");
}

TEST(ConvertReportsTest, ScoredToken) {
  const v1::ScoredToken wire = ToProto(ScoredToken{1, "a", -2.5, 3, -0.5, {-1.0f, -2.0f}});
  EXPECT_EQ(EmptyFields(wire), "");
  ExpectMessage(
      wire,
      R"(token_id: 1  text: "a"  logprob: -2.5  top_token_id: 3  top_logprob: -0.5  distribution: [ -1, -2 ])");
}

TEST(ConvertReportsTest, PutChunkProgress) {
  const v1::PutChunkProgress wire = ToProto(PutChunkProgress{1, 2, 3, "key", 4, true, 0.5, true, 9});
  EXPECT_EQ(EmptyFields(wire), "");
  ExpectMessage(wire, R"(index: 1  done: 2  total: 3  key: "key"  num_tokens: 4
      already_present: true  durable: true  compute_seconds: 0.5  computed_tokens: 9)");
}

TEST(ConvertReportsTest, DocumentChunks) {
  const std::string key(64, 'c');
  DocumentChunks chunks;
  chunks.chunks.push_back({.begin_byte = 1,
                           .end_byte = 2,
                           .num_tokens = 3,
                           .stored_bytes = 4,
                           .key = *ChunkKey::FromHex(key),
                           .stored = true});
  chunks.next_byte = 5;
  const v1::SplitDocumentResponse wire = ToProto(chunks);
  EXPECT_EQ(EmptyFields(wire), "");
  ExpectMessage(wire, R"(chunks { begin_byte: 1  end_byte: 2  num_tokens: 3  stored_bytes: 4  key: ")" + key +
                          R"("  stored: true } next_byte: 5)");
}

TEST(ConvertReportsTest, PrefetchedChunks) {
  const v1::PrefetchChunksResponse wire = ToProto(std::vector<PrefetchedChunk>{
      {.key = "key", .tier = Tier::kDisk, .num_tokens = 3, .refusal = "too large"},
      {.key = "other", .tier = Tier::kNone, .num_tokens = 4}});
  EXPECT_EQ(EmptyFields(wire), "");
  ExpectMessage(wire, R"(chunks { key: "key"  tier: TIER_DISK  num_tokens: 3  refusal: "too large" }
      chunks { key: "other"  num_tokens: 4 })");
}

TEST(ConvertReportsTest, ChunkInfo) {
  ChunkInfo info;
  Digest digest{};
  digest[0] = 0xab;
  info.key = ChunkKey(digest);
  digest[0] = 0xcd;
  info.content_key = ContentKey(digest);
  digest[0] = 0xef;
  info.anchor_hash = digest;
  info.label = "label";
  info.num_tokens = 1;
  info.bytes = int64_t{1} << 40;
  info.pinned = true;
  info.hits = 3;
  info.compute_cost_seconds = 0.5;
  info.created = absl::FromUnixMillis(1500);
  info.last_used = absl::FromUnixMillis(2500);
  const v1::ChunkInfo wire = ToProto(info);
  EXPECT_EQ(EmptyFields(wire), "");
  ExpectMessage(wire, absl::StrReplaceAll(R"(
      key: "ab<zeros>"  content_key: "cd<zeros>"  anchor_hash: "ef<zeros>"  tier: TIER_HOST_MEMORY
      label: "label"  num_tokens: 1  size_bytes: 1099511627776  pinned: true  hits: 3
      compute_seconds: 0.5  created_unix_seconds: 1.5  last_used_unix_seconds: 2.5)",
                                          {{"<zeros>", std::string(62, '0')}}));
}

TEST(ConvertReportsTest, Info) {
  EngineInfo info = {"1.2.3",  "model", "llama", "ff",   "cuda:1", "GPU", "usable", "cpu",
                     "chatml", "date",  "bf16",  "int8", 1,        2,     3,        4,
                     5,        6,       7,       8,      9,        10,    11,       0.25};
  EngineStats stats;
  stats.requests_waiting = 21;
  stats.requests_running = 22;
  stats.background_unfinished = 23;
  stats.pages_used = 24;
  stats.pages_total = 25;
  stats.device_memory = {.used_bytes = 26, .total_bytes = 27};
  stats.sequences_decoding = 28;
  stats.pages_kept = 29;
  stats.tokens_waiting = 30;
  stats.predicted_wait_seconds = 0.5;
  stats.decoded_tokens = 72;
  stats.correction = {.version = "0123",
                      .learning = LearningState::kFrozen,
                      .learned = true,
                      .tokens = 61,
                      .fitted_chunks = 62,
                      .kept_back_chunks = 63,
                      .fits = 64,
                      .fits_applied = 65,
                      .waiting_chunks = 66,
                      .shared = true,
                      .replicas_found = 67,
                      .replicas_merged = 68,
                      .moments_published = 69,
                      .moments_refused = 70,
                      .sharing_failures = 71,
                      .deviation_before = {0.5, 0.25},
                      .deviation_after = {0.5, 0.125}};
  stats.store.entries = 31;
  stats.store.bytes = 32;
  stats.store.byte_budget = 33;
  stats.store.pinned_entries = 34;
  stats.store.pinned_bytes = 35;
  stats.store.pinned_byte_limit = 36;
  stats.store.lookups = 37;
  stats.store.hits = 38;
  stats.store.other_anchor_hits = 39;
  stats.prompt_chunks = 73;
  stats.prompt_chunks_found = 74;
  stats.store.evictions = 40;
  stats.tiers = {{.tier = Tier::kDisk,
                  .failing = true,
                  .values = {{.name = "entries", .help = "", .kind = TierStat::Kind::kGauge, .value = 51},
                             {.name = "puts", .help = "", .value = 52}}},
                 {.tier = Tier::kRedis, .failing = false, .values = {}}};
  EngineOptions options;
  options.max_queued_requests = 41;
  options.max_chunks_per_request = 42;
  options.max_text_bytes = 43;
  const v1::GetInfoResponse wire = ToProto(info, stats, options);
  // The server's to fill in, the chunk store's, and that of keys.
  EXPECT_EQ(EmptyFields(wire),
            "limits.max_message_bytes store.namespace_byte_limit uptime_seconds totals_left_out ");
  ExpectMessage(wire, R"(version: "1.2.3"  backend: "cpu"  self_check_max_error: 0.25
      device { device: "cuda:1"  name: "GPU"  reason: "usable"  memory_used_bytes: 26  memory_total_bytes: 27 }
      model { name: "model"  architecture: "llama"  fingerprint: "ff"  num_layers: 2  num_heads: 3  num_kv_heads: 4
              head_dim: 5  hidden_dim: 6  vocab_size: 7 }
      kv_format { dtype: "bf16"  chunk_bytes_per_token: 1  chunk_format: "int8"  page_size: 9  correction: "0123" }
      limits { max_context_tokens: 8  max_batch_size: 10  max_batch_tokens: 11
               max_queued_requests: 41  max_chunks_per_request: 42  max_text_bytes: 43 }
      load { requests_waiting: 21  requests_running: 22  background_unfinished: 23
             pages_used: 24  pages_total: 25  sequences_decoding: 28  pages_kept: 29
             tokens_waiting: 30  predicted_wait_seconds: 0.5  decoded_tokens: 72 }
      store { entries: 31  used_bytes: 32  budget_bytes: 33  pinned_entries: 34  pinned_bytes: 35
              pinned_byte_limit: 36  lookups: 37  hits: 38  other_anchor_hits: 39  evictions: 40
              prompt_chunks: 73  prompt_chunks_found: 74 }
      tiers { tier: TIER_DISK  failing: true
              stats { key: "entries"  value: 51 }  stats { key: "puts"  value: 52 } }
      tiers { tier: TIER_REDIS }
      correction { version: "0123"  learning: LEARNING_STATE_FROZEN  learned: true  tokens: 61  fitted_chunks: 62
                   kept_back_chunks: 63  fits: 64  fits_applied: 65  waiting_chunks: 66
                   deviation_before: [ 0.5, 0.25 ]  deviation_after: [ 0.5, 0.125 ]
                   shared: true  replicas_found: 67  replicas_merged: 68  moments_published: 69  moments_refused: 70
                   sharing_failures: 71 })");
  EXPECT_EQ(ToProto(info, EngineStats(), options).device().memory_total_bytes(), 0);
}

}  // namespace
}  // namespace kvblend::server
