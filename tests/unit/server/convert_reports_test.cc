#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "server/convert/reports.h"

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;

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
  report.exact_tokens = 1;
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
                    .reads = {{.tier = Tier::kDisk, .bytes = 9, .bytes_per_second = 10}}};
  const v1::PromptReport wire = ToProto(report);
  EXPECT_EQ(EmptyFields(wire), "");
  EXPECT_EQ(wire.policy(), v1::POLICY_LINK);
  EXPECT_EQ(wire.ratio(), 0.25);
  EXPECT_EQ(wire.reuse(), v1::REUSE_PREFIX);
  EXPECT_EQ(wire.anchoring(), v1::ANCHORING_ISOLATED);
  EXPECT_EQ(wire.prompt_tokens(), 10);
  EXPECT_EQ(wire.exact_tokens(), 1);
  EXPECT_EQ(wire.reused_tokens(), 2);
  EXPECT_EQ(wire.recomputed_tokens(), 3);
  EXPECT_EQ(wire.computed_tokens(), 4);
  ASSERT_EQ(wire.chunks_size(), 2);
  EXPECT_EQ(wire.chunks(0).index(), 1);
  EXPECT_EQ(wire.chunks(0).source(), v1::CHUNK_SOURCE_OTHER_ANCHOR);
  EXPECT_EQ(wire.chunks(0).tier(), v1::TIER_HOST_MEMORY);
  EXPECT_EQ(wire.chunks(0).num_tokens(), 5);
  EXPECT_EQ(wire.chunks(0).recomputed_tokens(), 6);
  EXPECT_EQ(wire.chunks(0).key(), "abc");
  EXPECT_EQ(wire.chunks(1).source(), v1::CHUNK_SOURCE_MISS);
  EXPECT_EQ(wire.chunks(1).tier(), v1::TIER_UNSPECIFIED);
  EXPECT_EQ(wire.queue_seconds(), 0.1);
  EXPECT_EQ(wire.lookup_seconds(), 0.2);
  EXPECT_EQ(wire.load_seconds(), 0.3);
  EXPECT_EQ(wire.stall_seconds(), 0.25);
  EXPECT_EQ(wire.select_seconds(), 0.4);
  EXPECT_EQ(wire.prefill_seconds(), 0.5);
  EXPECT_EQ(wire.time_to_first_token_seconds(), 0.6);
  EXPECT_EQ(wire.loading().mode(), v1::RATIO_MODE_AUTO);
  EXPECT_EQ(wire.loading().ratio_min(), 0.01);
  EXPECT_EQ(wire.loading().ratio_max(), 0.02);
  EXPECT_EQ(wire.loading().ratio(), 0.03);
  EXPECT_EQ(wire.loading().bypassed_chunks(), 4);
  EXPECT_TRUE(wire.loading().predicted());
  EXPECT_EQ(wire.loading().predicted_seconds(), 0.05);
  EXPECT_EQ(wire.loading().predicted_load_seconds(), 0.06);
  EXPECT_EQ(wire.loading().predicted_compute_seconds(), 0.07);
  EXPECT_EQ(wire.loading().compute_seconds_per_token(), 0.08);
  ASSERT_EQ(wire.loading().reads_size(), 1);
  EXPECT_EQ(wire.loading().reads(0).tier(), v1::TIER_DISK);
  EXPECT_EQ(wire.loading().reads(0).bytes(), 9);
  EXPECT_EQ(wire.loading().reads(0).bytes_per_second(), 10);
}

TEST(ConvertReportsTest, TextDelta) {
  TextDelta delta;
  delta.text = "hello";
  delta.token_ids = {1, 2};
  delta.logprobs = {{1, "he", -0.5}, {2, "llo", -1.5}};
  delta.top_logprobs = {{{1, "he", -0.5}, {9, "x", -3}}, {{2, "llo", -1.5}}};
  const v1::TextDelta wire = ToProto(delta);
  EXPECT_EQ(EmptyFields(wire), "");
  EXPECT_EQ(wire.text(), "hello");
  EXPECT_THAT(wire.token_ids(), ElementsAre(1, 2));
  ASSERT_EQ(wire.logprobs_size(), 2);
  EXPECT_EQ(wire.logprobs(1).token_id(), 2);
  EXPECT_EQ(wire.logprobs(1).text(), "llo");
  EXPECT_EQ(wire.logprobs(1).logprob(), -1.5);
  ASSERT_EQ(wire.top_logprobs_size(), 2);
  ASSERT_EQ(wire.top_logprobs(0).tokens_size(), 2);
  EXPECT_EQ(wire.top_logprobs(0).tokens(1).token_id(), 9);
}

TEST(ConvertReportsTest, GenerateResult) {
  const v1::GenerateFinished wire =
      ToProto(GenerateResult{FinishReason::kStopString, "stop", 3, 4, 5, 0.5, 2.5});
  EXPECT_EQ(EmptyFields(wire), "");
  EXPECT_EQ(wire.reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(wire.stop_string(), "stop");
  EXPECT_EQ(wire.usage().prompt_tokens(), 3);
  EXPECT_EQ(wire.usage().completion_tokens(), 4);
  EXPECT_EQ(wire.seed(), 5u);
  EXPECT_EQ(wire.timings().time_to_first_token_seconds(), 0.5);
  EXPECT_EQ(wire.timings().total_seconds(), 2.5);
}

TEST(ConvertReportsTest, ScoredToken) {
  const v1::ScoredToken wire = ToProto(ScoredToken{1, "a", -2.5, 3, -0.5, {-1.0f, -2.0f}});
  EXPECT_EQ(EmptyFields(wire), "");
  EXPECT_EQ(wire.token_id(), 1);
  EXPECT_EQ(wire.text(), "a");
  EXPECT_EQ(wire.logprob(), -2.5);
  EXPECT_EQ(wire.top_token_id(), 3);
  EXPECT_EQ(wire.top_logprob(), -0.5);
  EXPECT_THAT(wire.distribution(), ElementsAre(-1.0f, -2.0f));
}

TEST(ConvertReportsTest, PutChunkProgress) {
  const v1::PutChunkProgress wire = ToProto(PutChunkProgress{1, 2, 3, "key", 4, true, 0.5, true});
  EXPECT_EQ(EmptyFields(wire), "");
  EXPECT_EQ(wire.index(), 1);
  EXPECT_EQ(wire.done(), 2);
  EXPECT_EQ(wire.total(), 3);
  EXPECT_EQ(wire.key(), "key");
  EXPECT_EQ(wire.num_tokens(), 4);
  EXPECT_TRUE(wire.already_present());
  EXPECT_TRUE(wire.durable());
  EXPECT_EQ(wire.compute_seconds(), 0.5);
}

TEST(ConvertReportsTest, DocumentChunks) {
  DocumentChunks chunks;
  chunks.chunks.push_back(
      {.begin_byte = 1, .end_byte = 2, .num_tokens = 3, .stored_bytes = 4, .key = "key", .stored = true});
  chunks.next_byte = 5;
  const v1::SplitDocumentResponse wire = ToProto(chunks);
  EXPECT_EQ(EmptyFields(wire), "");
  EXPECT_EQ(EmptyFields(wire.chunks(0)), "");
  EXPECT_EQ(wire.next_byte(), 5);
  EXPECT_EQ(wire.chunks(0).begin_byte(), 1);
  EXPECT_EQ(wire.chunks(0).end_byte(), 2);
  EXPECT_EQ(wire.chunks(0).num_tokens(), 3);
  EXPECT_EQ(wire.chunks(0).stored_bytes(), 4);
  EXPECT_EQ(wire.chunks(0).key(), "key");
  EXPECT_TRUE(wire.chunks(0).stored());
}

TEST(ConvertReportsTest, PrefetchedChunks) {
  const v1::PrefetchChunksResponse wire =
      ToProto(std::vector<PrefetchedChunk>{{.key = "key", .tier = Tier::kDisk, .num_tokens = 3},
                                           {.key = "other", .tier = Tier::kNone, .num_tokens = 4}});
  EXPECT_EQ(EmptyFields(wire), "");
  ASSERT_EQ(wire.chunks_size(), 2);
  EXPECT_EQ(wire.chunks(0).key(), "key");
  EXPECT_EQ(wire.chunks(0).tier(), v1::TIER_DISK);
  EXPECT_EQ(wire.chunks(0).num_tokens(), 3);
  EXPECT_EQ(wire.chunks(1).tier(), v1::TIER_UNSPECIFIED);
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
  const std::string zeros(62, '0');
  EXPECT_EQ(wire.key(), "ab" + zeros);
  EXPECT_EQ(wire.content_key(), "cd" + zeros);
  EXPECT_EQ(wire.anchor_hash(), "ef" + zeros);
  EXPECT_EQ(wire.tier(), v1::TIER_HOST_MEMORY);
  EXPECT_EQ(wire.label(), "label");
  EXPECT_EQ(wire.num_tokens(), 1);
  EXPECT_EQ(wire.size_bytes(), int64_t{1} << 40);
  EXPECT_TRUE(wire.pinned());
  EXPECT_EQ(wire.hits(), 3);
  EXPECT_EQ(wire.compute_seconds(), 0.5);
  EXPECT_EQ(wire.created_unix_seconds(), 1.5);
  EXPECT_EQ(wire.last_used_unix_seconds(), 2.5);
}

TEST(ConvertReportsTest, Info) {
  EngineInfo info = {"1.2.3", "model", "llama", "ff", "cuda:1", "GPU", "usable", "cpu", "bf16", "int8", 1,
                     2,       3,       4,       5,    6,        7,     8,        9,     10,     11,     0.25};
  EngineStats stats;
  stats.requests_waiting = 21;
  stats.requests_running = 22;
  stats.background_waiting = 23;
  stats.pages_used = 24;
  stats.pages_total = 25;
  stats.device_memory = {.used_bytes = 26, .total_bytes = 27};
  stats.sequences_decoding = 28;
  stats.store.entries = 31;
  stats.store.bytes = 32;
  stats.store.byte_budget = 33;
  stats.store.pinned_entries = 34;
  stats.store.pinned_bytes = 35;
  stats.store.pinned_byte_limit = 36;
  stats.store.lookups = 37;
  stats.store.hits = 38;
  stats.store.other_anchor_hits = 39;
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
  EXPECT_EQ(EmptyFields(wire), "limits.max_message_bytes uptime_seconds ");  // the server's to fill in
  ASSERT_EQ(wire.tiers_size(), 2);
  EXPECT_EQ(wire.tiers(0).tier(), v1::TIER_DISK);
  EXPECT_TRUE(wire.tiers(0).failing());
  EXPECT_EQ(wire.tiers(0).stats().at("entries"), 51);
  EXPECT_EQ(wire.tiers(0).stats().at("puts"), 52);
  EXPECT_EQ(wire.tiers(1).tier(), v1::TIER_REDIS);
  EXPECT_FALSE(wire.tiers(1).failing());
  EXPECT_EQ(wire.version(), "1.2.3");
  EXPECT_EQ(wire.backend(), "cpu");
  EXPECT_EQ(wire.device().device(), "cuda:1");
  EXPECT_EQ(wire.device().name(), "GPU");
  EXPECT_EQ(wire.device().reason(), "usable");
  EXPECT_EQ(wire.device().memory_used_bytes(), 26);
  EXPECT_EQ(wire.device().memory_total_bytes(), 27);
  EXPECT_EQ(ToProto(info, EngineStats(), options).device().memory_total_bytes(), 0);
  EXPECT_EQ(wire.self_check_max_error(), 0.25);
  EXPECT_EQ(wire.model().name(), "model");
  EXPECT_EQ(wire.model().architecture(), "llama");
  EXPECT_EQ(wire.model().fingerprint(), "ff");
  EXPECT_EQ(wire.kv_format().dtype(), "bf16");
  EXPECT_EQ(wire.kv_format().chunk_bytes_per_token(), 1);
  EXPECT_EQ(wire.kv_format().chunk_format(), "int8");
  EXPECT_EQ(wire.model().num_layers(), 2);
  EXPECT_EQ(wire.model().num_heads(), 3);
  EXPECT_EQ(wire.model().num_kv_heads(), 4);
  EXPECT_EQ(wire.model().head_dim(), 5);
  EXPECT_EQ(wire.model().hidden_dim(), 6);
  EXPECT_EQ(wire.model().vocab_size(), 7);
  EXPECT_EQ(wire.limits().max_context_tokens(), 8);
  EXPECT_EQ(wire.kv_format().page_size(), 9);
  EXPECT_EQ(wire.load().requests_waiting(), 21);
  EXPECT_EQ(wire.load().requests_running(), 22);
  EXPECT_EQ(wire.load().background_waiting(), 23);
  EXPECT_EQ(wire.load().pages_used(), 24);
  EXPECT_EQ(wire.load().pages_total(), 25);
  EXPECT_EQ(wire.load().sequences_decoding(), 28);
  EXPECT_EQ(wire.limits().max_batch_size(), 10);
  EXPECT_EQ(wire.limits().max_batch_tokens(), 11);
  EXPECT_EQ(wire.store().entries(), 31);
  EXPECT_EQ(wire.store().used_bytes(), 32);
  EXPECT_EQ(wire.store().budget_bytes(), 33);
  EXPECT_EQ(wire.store().pinned_entries(), 34);
  EXPECT_EQ(wire.store().pinned_bytes(), 35);
  EXPECT_EQ(wire.store().pinned_byte_limit(), 36);
  EXPECT_EQ(wire.store().lookups(), 37);
  EXPECT_EQ(wire.store().hits(), 38);
  EXPECT_EQ(wire.store().other_anchor_hits(), 39);
  EXPECT_EQ(wire.store().evictions(), 40);
  EXPECT_EQ(wire.limits().max_queued_requests(), 41);
  EXPECT_EQ(wire.limits().max_chunks_per_request(), 42);
  EXPECT_EQ(wire.limits().max_text_bytes(), 43);
}

}  // namespace
}  // namespace kvblend::server
