// Fields of config.json that are read in more than one way, and what they mean to transformers 5.24.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/model/model_config.h"
#include "tests/support/gguf_builder.h"
#include "tests/unit/model/hf_folder_files.h"

namespace kvblend::model {
namespace {

using ::testing::HasSubstr;
using Folder = std::map<std::string, std::string>;

// The folder with these fields of its config.json; "absent" takes one away.
Folder With(Folder files, const nlohmann::json& fields) {
  nlohmann::json config = nlohmann::json::parse(files["config.json"]);
  for (const auto& [name, value] : fields.items()) {
    if (value == "absent") {
      config.erase(name);
    } else {
      config[name] = value;
    }
  }
  files["config.json"] = config.dump();
  return files;
}

Folder Architecture(const std::string& model) { return ChangedArchitecture(model, "{", "{"); }

absl::StatusOr<ModelConfig> Read(const Folder& files) {
  const auto file = Present(files);
  return file.ok() ? ReadModelConfig(*file) : file.status();
}

constexpr int64_t kMost = int64_t{1} << 31;

TEST(HfConfigTest, AFileOfAllTensorsCountsBesideAnIndex) {
  auto files = ReadFolder("llama");
  files["model.safetensors.index.json"] = R"({"weight_map": {"of an earlier save": "gone.safetensors"}})";
  const auto file = Present(files);
  EXPECT_TRUE(file.ok()) << file.status();
}

TEST(HfConfigTest, TwoScalingsMustSayTheSame) {
  const nlohmann::json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 1e6}};
  const nlohmann::json same = {{"type", "yarn"}, {"factor", 4.0}};
  const auto files = With(ReadFolder("qwen3"), {{"rope_parameters", yarn}});
  EXPECT_EQ(*Present(With(files, {{"rope_scaling", same}}))->GetFloat("qwen3.rope.scaling.factor"), 4);
  EXPECT_TRUE(Present(With(files, {{"rope_scaling", nlohmann::json::object()}})).ok());
  ExpectRefused(
      With(files, {{"rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}}}), kInvalid,
      "field 'rope_scaling' is {\"factor\":2.0,\"type\":\"yarn\"}; allowed: none beside 'rope_parameters'");
  const nlohmann::json plain = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  ExpectRefused(With(files, {{"rope_parameters", plain}, {"rope_scaling", same}}), kInvalid,
                "'rope_scaling'");
}

TEST(HfConfigTest, TheOriginalContextOutsideTheScalingComesFirst) {
  const nlohmann::json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const auto files = With(ReadFolder("qwen3"), {{"rope_scaling", yarn}});
  const std::string key = "qwen3.rope.scaling.original_context_length";
  EXPECT_EQ(*Present(files)->GetInteger(key, 0, kMost), 128);
  const auto outside = With(files, {{"original_max_position_embeddings", 64}});
  EXPECT_EQ(*Present(outside)->GetInteger(key, 0, kMost), 64);

  const auto divisor = [](const Folder& folder) {
    const auto file = Present(folder);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? AllRows(*file->FindTensor("rope_freqs.weight"))[1] : 0;
  };
  EXPECT_NE(divisor(With(ReadFolder("llama"), {{"original_max_position_embeddings", 1000000}})),
            divisor(ReadFolder("llama")));
}

TEST(HfConfigTest, YarnStretchesTheContext) {
  const auto context = [](double factor, int64_t original) {
    const nlohmann::json yarn = {
        {"type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original}};
    return *Present(With(ReadFolder("qwen3"), {{"rope_scaling", yarn}}))
                ->GetInteger("qwen3.context_length", 0, kMost);
  };
  EXPECT_EQ(context(4, 128), 512);  // as Qwen's models describe it
  EXPECT_EQ(context(4, 32), 128);   // max_position_embeddings has it already
  EXPECT_EQ(context(1.5, 8), 128);
  ExpectRefused(With(ReadFolder("qwen3"), {{"max_position_embeddings", 0}}), kInvalid,
                "field 'max_position_embeddings' is 0");
}

TEST(HfConfigTest, WindowsAreThoseOfTheFamily) {
  const auto window = [](const Folder& files) {
    const auto config = Read(files);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->layers[0].sliding_window : -1;
  };
  const auto mistral = Architecture("mistral");
  EXPECT_EQ(window(mistral), 37);
  EXPECT_EQ(window(With(mistral, {{"use_sliding_window", false}})), 37) << "not a field of Mistral's";
  EXPECT_EQ(window(With(mistral, {{"sliding_window", nullptr}})), 0);
  EXPECT_EQ(window(With(mistral, {{"sliding_window", "absent"}})), 0) << "4,096 are more than the context";
  EXPECT_EQ(window(With(mistral, {{"sliding_window", "absent"}, {"max_position_embeddings", 8192}})), 4096);
  EXPECT_EQ(window(With(Architecture("llama"), {{"sliding_window", 20}})), 0);
  const auto qwen = Architecture("qwen2");
  EXPECT_EQ(window(With(qwen, {{"sliding_window", 20}, {"use_sliding_window", "absent"}})), 0);
  ExpectRefused(With(qwen, {{"sliding_window", 20}, {"use_sliding_window", true}}), kUnknown,
                "field 'use_sliding_window' is true; allowed: false");
}

TEST(HfConfigTest, LayersWithAWindowHaveATurningOfTheirOwn) {
  const auto second = [](const Folder& files) -> absl::StatusOr<float> {
    const auto config = Read(files);
    if (!config.ok()) return config.status();
    return config->ropes[config->layers[0].rope].inv_freq[1];
  };
  const auto gemma = ReadFolder("gemma3");  // four pairs to a head
  EXPECT_FLOAT_EQ(*second(gemma), std::pow(10000.0, -0.25));
  EXPECT_FLOAT_EQ(*second(With(gemma, {{"rope_local_base_freq", 20000.0}})), std::pow(20000.0, -0.25));
  const nlohmann::json by_layer = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                                   {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}};
  const auto nested = With(gemma, {{"rope_scaling", nullptr}, {"rope_parameters", by_layer}});
  EXPECT_FLOAT_EQ(*second(nested), std::pow(30000.0, -0.25)) << "before rope_local_base_freq";
  EXPECT_EQ(Present(nested)->FindEntry("gemma3.rope.scaling.type"), nullptr);
  ExpectRefused(With(gemma, {{"rope_local_base_freq", -1}}), kInvalid, "'rope_local_base_freq' is -1");
  // transformers takes no such object where all layers turn alike.
  ExpectRefused(With(ReadFolder("qwen3"), {{"rope_parameters", by_layer}}), kUnknown,
                "allowed: one object for all layers");
}

// The GGUF file with one more key, and one without meaning that keeps the tensors aligned.
std::string WithKey(const std::string& bytes, const std::string& key, uint32_t type,
                    const std::string& value) {
  std::string entries;
  test_support::AppendGgufString(entries, key);
  test_support::AppendBytes<uint32_t>(entries, type);
  entries += value;
  std::string name = "general.";
  while ((entries.size() + name.size() + 16) % 32 != 0) name += 'x';
  test_support::AppendGgufString(entries, name);
  test_support::AppendBytes<uint32_t>(entries, test_support::kGgufUint32);
  test_support::AppendBytes<uint32_t>(entries, 0);
  uint64_t count = 0;
  std::memcpy(&count, bytes.data() + 16, sizeof(count));
  count += 2;
  std::string changed = bytes;
  std::memcpy(changed.data() + 16, &count, sizeof(count));
  return changed.insert(24, entries);
}

TEST(HfConfigTest, GgufFilesOfNewerConvertersSayHowLayersWithAWindowTurn) {
  const std::string bytes = ReadWhole(KVBLEND_SOURCE_DIR "/tests/fixtures/architectures/gemma3.gguf");
  const auto read = [&](const std::string& key, uint32_t type,
                        const auto value) -> absl::StatusOr<ModelConfig> {
    std::string stored;
    test_support::AppendBytes(stored, value);
    const std::string changed = WithKey(bytes, key, type, stored);
    const auto file = GgufFile::FromMemory(test_support::Bytes(changed), "gemma3.gguf");
    if (!file.ok()) return file.status();
    return ReadModelConfig(*file);
  };
  const auto config = read("gemma3.rope.freq_base_swa", test_support::kGgufFloat32, 20000.0F);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto& turning = config->ropes[config->layers[0].rope];
  EXPECT_FLOAT_EQ(turning.inv_freq[1],
                  std::pow(20000.0, -1.0 / static_cast<double>(turning.inv_freq.size())));
  EXPECT_FALSE(read("gemma3.rope.freq_base_swa", test_support::kGgufFloat32, -1.0F).ok());
  const std::string period = "gemma3.attention.sliding_window_pattern";
  EXPECT_TRUE(read(period, test_support::kGgufUint32, uint32_t{6}).ok());
  const auto other = read(period, test_support::kGgufUint32, uint32_t{4});
  EXPECT_EQ(other.status().code(), kUnknown);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("allowed: 6"));
}

TEST(HfConfigTest, AnOutputThatDiffersFromTheEmbeddingIsNotTied) {
  auto files = With(ReadFolder("qwen3"), {{"tie_word_embeddings", true}});
  const auto differing = Present(files);
  ASSERT_TRUE(differing.ok()) << differing.status();
  EXPECT_NE(differing->FindTensor("output.weight"), nullptr);

  std::string& tensors = files["model.safetensors"];
  uint64_t size = 0;
  std::memcpy(&size, tensors.data(), sizeof(size));
  const nlohmann::json header = nlohmann::json::parse(tensors.substr(sizeof(size), size));
  const auto at = [&](const std::string& name, int side) {
    return sizeof(size) + size + header[name]["data_offsets"][side].get<size_t>();
  };
  const std::string embedding = "model.embed_tokens.weight";
  tensors.replace(at("lm_head.weight", 0), at("lm_head.weight", 1) - at("lm_head.weight", 0),
                  tensors.substr(at(embedding, 0), at(embedding, 1) - at(embedding, 0)));
  EXPECT_EQ(Present(files)->FindTensor("output.weight"), nullptr);
  EXPECT_NE(Present(With(files, {{"tie_word_embeddings", false}}))->FindTensor("output.weight"), nullptr);
}

TEST(HfConfigTest, TheEmbeddingHasTheRowsOfTheVocabulary) {
  for (const std::string model : {"llama", "qwen3", "gemma3"}) {
    ExpectRefused(With(ReadFolder(model), {{"vocab_size", 13}}), kInvalid,
                  "tensor 'model.embed_tokens.weight' has 12 rows; allowed: config.json's 'vocab_size', 13");
  }
}

TEST(HfConfigTest, TokensAddedBehindTheLastRowAreLeftOut) {
  auto files = Architecture("gemma3");
  const std::string stored = files["tokenizer.json"];
  const auto tokens = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json tokenizer = nlohmann::json::parse(stored);
    change(tokenizer);
    files["tokenizer.json"] = tokenizer.dump();
    const auto spec = ReadTokenizerSpec(*Present(files));
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->tokens.size() : 0;
  };
  EXPECT_EQ(tokens([](nlohmann::json&) {}), 279);
  const auto image = [](nlohmann::json& tokenizer) {
    tokenizer["added_tokens"].push_back(
        {{"id", 279}, {"content", "<image_soft_token>"}, {"special", true}, {"lstrip", true}});
  };
  EXPECT_EQ(tokens(image), 279);
  EXPECT_EQ(tokens([](nlohmann::json& tokenizer) { tokenizer["model"]["vocab"]["behind"] = 279; }), 280)
      << "and the model is refused";
}

TEST(HfConfigTest, FieldsThatOnlySomeFamiliesRead) {
  const auto llama = ReadFolder("llama");
  EXPECT_TRUE(Present(With(llama, {{"hidden_activation", "gelu"}})).ok());
  ExpectRefused(With(llama, {{"hidden_activation", "silu"}, {"hidden_act", "gelu"}}), kUnknown,
                "'hidden_act'");
  EXPECT_TRUE(Present(With(llama, {{"use_mrope", false}, {"do_sample", true}, {"max_length", 20}})).ok());
  ExpectRefused(With(llama, {{"use_mrope", true}}), kUnknown, "field 'use_mrope' is true; allowed: false");
  const auto gemma = Architecture("gemma2");
  EXPECT_TRUE(Present(With(gemma, {{"sliding_window_size", 29}})).ok());
  ExpectRefused(With(gemma, {{"sliding_window_size", 30}}), kInvalid, "'sliding_window_size' is 30");
  EXPECT_TRUE(Present(With(ReadFolder("qwen3moe"), {{"qkv_bias", false}, {"use_qk_norm", true}})).ok());
  ExpectRefused(With(ReadFolder("qwen3moe"), {{"shared_expert_intermediate_size", 64}}), kUnknown,
                "'shared_expert_intermediate_size' is 64");
  ExpectRefused(With(Architecture("gpt_oss"), {{"rope_parameters", nullptr}}), kInvalid,
                "field 'rope_scaling' is missing");
  // To transformers any scaling of Phi's is LongRoPE, which has factors.
  ExpectRefused(With(ReadFolder("phi3"), {{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}}), kInvalid,
                "field 'long_factor' is missing");
  ExpectRefused(With(ReadFolder("phi3"), {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}), kUnknown,
                "allowed: default, longrope, su, yarn");
  // What stands with the scaling comes first.
  const auto half = With(ReadFolder("phi3"), {{"partial_rotary_factor", 1.0}});
  nlohmann::json scaling = nlohmann::json::parse(half.at("config.json"))["rope_scaling"];
  scaling["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(
      *Present(With(half, {{"rope_scaling", scaling}}))->GetInteger("phi3.rope.dimension_count", 0, kMost),
      4);
}

}  // namespace
}  // namespace kvblend::model
