#include "engine/api/option_table.h"

#include <limits>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Error(const EngineOptions& options) {
  const absl::Status status = CheckEngineOptions(options);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

template <typename T>
std::string ErrorWith(OptionField<T> field, T value) {
  EngineOptions options;
  field(options) = value;
  return Error(options);
}

struct ChecksRange {
  std::string name;

  template <typename T>
  void ExpectRange(OptionField<T> field, T min, T max) const {
    EXPECT_EQ(ErrorWith(field, max), "") << name;
    EXPECT_THAT(ErrorWith<T>(field, min - 1), StartsWith(name + " is ")) << name;
    if (max < std::numeric_limits<T>::max()) {
      EXPECT_THAT(ErrorWith<T>(field, max + 1), StartsWith(name + " is ")) << name;
    }
    if constexpr (std::is_floating_point_v<T>) {
      EXPECT_THAT(ErrorWith(field, std::numeric_limits<T>::quiet_NaN()), StartsWith(name + " is nan"));
    }
  }
  template <typename T>
  void operator()(const NumberOption<T>& number) const {
    ExpectRange(number.field, number.min, number.max);
    if (number.above_min) {
      EXPECT_THAT(ErrorWith<T>(number.field, number.min), HasSubstr("; allowed: above ")) << name;
    }
  }
  void operator()(const BytesOption& bytes) const { ExpectRange(bytes.field, bytes.min, bytes.max); }
  template <typename Other>
  void operator()(const Other&) const {}
};

TEST(OptionTable, EveryNumberIsHeldToItsRange) {
  EXPECT_EQ(Error({}), "");
  for (const EngineOption& option : EngineOptionTable()) std::visit(ChecksRange{option.name}, option.value);
  EXPECT_EQ(ErrorWith<int32_t>(
                [](EngineOptions & options) -> auto& { return options.page_size; }, 0),
            "page-size is 0; allowed: 1 to 1024");
  EXPECT_EQ(ErrorWith<int64_t>(
                [](EngineOptions & options) -> auto& { return options.correction_learning_bytes; }, 65536),
            "correction-learning-bytes is 64KiB; allowed: 1MiB to 1EiB");
}

TEST(OptionTable, TextsAreHeldToTheirNames) {
  using Change = void (*)(EngineOptions&);
  for (
      const auto& [change, message] : std::vector<std::pair<Change, std::string>>{
          {[](EngineOptions& o) { o.gemm = "fp4"; }, "gemm is 'fp4'; allowed: auto, bf16, f32, int16, int8"},
          {[](EngineOptions& o) { o.chat_format = "vicuna"; },
           "chat-format is 'vicuna'; allowed: auto, chatml, llama2, llama3, mistral, mistral-v3, mistral-tekken, "
           "mistral-v7, gemma, phi3, granite, harmony, zephyr, plain"},
          {[](EngineOptions& o) { o.chat_date = "2026-02-30"; },
           "chat-date is '2026-02-30'; allowed: today, or a day as 2026-01-31"},
          {[](EngineOptions& o) { o.kv_dtype = "x"; },
           "kv-dtype is 'x'; allowed: auto, bf16, f16, f32, int8"},
          {[](EngineOptions& o) { o.chunk_format = ""; },
           "chunk-format is ''; allowed: auto, int8, int4, fp8, bf16, f16, f32"},
          {[](EngineOptions& o) { o.device = "cuda:x"; }, "device is 'cuda:x'"},
          {[](EngineOptions& o) { o.chunk_redis.nodes = "a:1,b"; }, "chunk-redis: 'b' is no address"},
          {[](EngineOptions& o) { o.namespace_quotas.default_share = 0; }, "is 0; allowed: above 0"},
          {[](EngineOptions& o) { o.namespace_quotas.named["a"] = 2; }, "namespace 'a' may fill is 2"}}) {
    EngineOptions options;
    change(options);
    EXPECT_THAT(Error(options), HasSubstr(message));
  }
}

TEST(OptionTable, SettingsMustGoTogether) {
  EngineOptions options;
  options.ratio = {.min = 0.6, .max = 0.4};
  EXPECT_EQ(Error(options), "ratio-min is 0.6; allowed: 0 to ratio-max (0.4)");
  options.ratio = {.min_tokens = -1};
  EXPECT_EQ(Error(options), "min-recomputed-tokens is -1; allowed: 0 to 1000000");
  options = {};
  options.chunk_redis.tls_key = "key.pem";
  EXPECT_THAT(Error(options), HasSubstr("allowed: both or neither"));
  options.chunk_redis.tls_certificate = "certificate.pem";
  EXPECT_EQ(Error(options), "");  // without a Redis they do not matter
  options.chunk_redis.nodes = "redis:6379";
  EXPECT_THAT(Error(options), HasSubstr("chunk-redis-tls is off"));
  options.chunk_redis.tls = true;
  EXPECT_EQ(Error(options), "");
}

}  // namespace
}  // namespace kvblend
