// kvblend model: from arguments to exit code.
#include <gmock/gmock.h>

#include "absl/strings/str_format.h"
#include "engine/api/engine.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/cli/commands_fixture.h"

namespace kvblend::server::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(CommandsTest, ModelInspectTellsWhatAModelIs) {
  const std::string model = (folder_ / "tiny.gguf").string();
  ASSERT_TRUE(test_support::WriteTinyModel(model, {}).ok());
  EXPECT_EQ(Run({"model", "inspect", model, "--json", "--context", "100"}), 0);
  const OrderedJson report = OutJson().at(0);
  EXPECT_EQ(report["architecture"], "llama");
  EXPECT_EQ(report["layers"], 2);
  EXPECT_EQ(report["heads"], 4);
  EXPECT_EQ(report["kv_heads"], 2);
  EXPECT_EQ(report["head_size"], 8);
  EXPECT_EQ(report["vocabulary"], test_support::TinyVocabSize());
  EXPECT_EQ(report["fingerprint"], ModelFingerprints(model)->front());
  EXPECT_EQ(report["kv_bytes"], 100 * 2 * 2 * 2 * 8 * 2);  // tokens, K and V, layers, heads, size, bf16
  EXPECT_EQ(report["answer_kv_bytes"], report["kv_bytes"]);
  EXPECT_EQ(report["tensor_types"][0]["type"], "F32");
  EXPECT_EQ(report["tensor_types"][0]["bytes"], 4 * report["parameters"].get<int64_t>());
  EXPECT_EQ(report["runs"], true);
  EXPECT_EQ(Run({"model", "inspect", model}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("2 layers, width 32, 4 heads and 2 KV heads of 8"),
                           HasSubstr("runs          yes"),
                           HasSubstr(absl::StrFormat("llama, %.1f K parameters",
                                                     report["parameters"].get<int64_t>() / 1000.0))));
}

TEST_F(CommandsTest, ModelInspectTellsWhatWindowsSpareAnAnswer) {
  const std::string model = KVBLEND_SOURCE_DIR "/tests/fixtures/architectures/gemma3.gguf";
  EXPECT_EQ(Run({"model", "inspect", model, "--json", "--context", "200"}), 0);
  const OrderedJson report = OutJson().at(0);
  const int64_t of_token_and_layer = report["kv_bytes_per_token"].get<int64_t>() / 7;
  EXPECT_EQ(report["answer_kv_bytes"], of_token_and_layer * (200 + 6 * 29))
      << "one of seven layers sees everything";
  EXPECT_EQ(Run({"model", "inspect", model}), 0);
  EXPECT_THAT(Out(), HasSubstr("once the prompt is done"));
}

TEST_F(CommandsTest, ModelInspectOfAModelWithoutATemplate) {
  test_support::GgufBuilder builder = test_support::TinyModelBuilder({});
  builder.RemoveKey("tokenizer.chat_template");
  const std::string model = File("base.gguf", builder.Build());
  EXPECT_EQ(Run({"model", "inspect", model}), 1);
  EXPECT_THAT(Err(), AllOf(HasSubstr("--chat-format"), HasSubstr("plain for a model that has learned none")));
  EXPECT_EQ(Run({"model", "inspect", model, "--chat-format", "plain", "--json"}), 0) << Err();
  EXPECT_EQ(OutJson().at(0)["runs"], true);
  EXPECT_EQ(Run({"model", "inspect", model, "--chat-format", "vicuna"}), 2);
}

TEST_F(CommandsTest, ModelInspectTellsWhyAModelDoesNotRun) {
  EXPECT_EQ(Run({"model", "inspect", (folder_ / "none.gguf").string()}), 3);
  EXPECT_EQ(Run({"model", "inspect", File("text.gguf", "no model")}), 2);
  EXPECT_THAT(Err(), HasSubstr("magic number"));
  test_support::GgufBuilder builder = test_support::TinyModelBuilder({});
  builder.SetString("general.architecture", "rwkv").SetUint32("rwkv.block_count", 7);
  const std::string other = File("other.gguf", builder.Build());
  EXPECT_EQ(Run({"model", "inspect", other, "--json"}), 1);
  EXPECT_EQ(OutJson().at(0)["layers"], 7);
  EXPECT_EQ(OutJson().at(0)["runs"], false);
  EXPECT_THAT(OutJson().at(0)["reason"].get<std::string>(), HasSubstr("'rwkv'"));
  const std::string model = (folder_ / "tiny.gguf").string();
  ASSERT_TRUE(test_support::WriteTinyModel(model, {}).ok());
  EXPECT_EQ(Run({"model", "inspect", model, "--context", "5000"}), 2);
  EXPECT_THAT(Err(), HasSubstr("context is 5000; allowed: 0 to the 1024 tokens"));
  EXPECT_EQ(Run({"model", "inspect", model, "--context", "-1"}), 2);
}

}  // namespace
}  // namespace kvblend::server::cli
