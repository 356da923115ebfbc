// Models in Hugging Face's form. The oracle is the Python package `gguf`: tests/fixtures/make_hf_folders.py.
#include "engine/model/files/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/model/model_file.h"
#include "engine/model/model_weights.h"
#include "tests/fuzz/folder_exercise.h"
#include "tests/support/gguf_builder.h"
#include "tests/unit/model/hf_folder_files.h"

namespace kvblend::model {
namespace {

using test_support::Bytes;
using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::vector<std::string> kModels = {"llama", "llama_fp8", "llama_fp8_rows", "mixtral",
                                          "qwen2", "qwen3",     "qwen3moe",       "gemma3",
                                          "phi3",  "granite",   "gpt_oss"};

TEST(HfFolderTest, PresentsWhatTheGgufFileOfTheSameModelHolds) {
  for (const std::string& model : kModels) {
    SCOPED_TRACE(model);
    const auto folder = OpenModel(kFixtures + model);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const auto expected = OpenModel(kFixtures + model + "/expected.gguf");
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const GgufEntry& entry : expected->metadata()) {
      const GgufEntry* found = folder->FindEntry(entry.key);
      ASSERT_NE(found, nullptr) << entry.key;
      EXPECT_EQ(found->type, entry.type) << entry.key;
      std::visit(
          [&](const auto& value) {
            using T = std::decay_t<decltype(value)>;
            if constexpr (!std::is_same_v<T, GgufArray>) {
              EXPECT_EQ(std::get<T>(found->value), value) << entry.key;
            }
          },
          entry.value);
    }
    EXPECT_EQ(folder->metadata().size(), expected->metadata().size() + 2)
        << "and the tokenizer, and the third end of a text";
    EXPECT_THAT(*folder->GetInt32Array("tokenizer.ggml.eog_token_ids"), testing::ElementsAre(5));
    EXPECT_EQ(*folder->GetString("tokenizer.huggingface.json"), "{}\n");
    for (const GgufTensor& tensor : expected->tensors()) {
      const GgufTensor* found = folder->FindTensor(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(found->dims, tensor.dims) << tensor.name;
      EXPECT_EQ(AllRows(*found), AllRows(tensor)) << tensor.name;
    }
    EXPECT_EQ(folder->tensors().size(), expected->tensors().size());
  }
}

TEST(HfFolderTest, AFolderIsAModelThatRuns) {
  for (const std::string model : {"llama", "llama_fp8", "mixtral", "qwen3moe", "gpt_oss"}) {
    const auto folder = OpenModel(kFixtures + model);
    const auto expected = OpenModel(kFixtures + model + "/expected.gguf");
    const auto config = ReadModelConfig(*folder), expected_config = ReadModelConfig(*expected);
    ASSERT_TRUE(config.ok()) << config.status();
    ASSERT_TRUE(expected_config.ok()) << expected_config.status();
    EXPECT_EQ(config->ropes[0].inv_freq, expected_config->ropes[0].inv_freq);
    EXPECT_EQ(config->vocab_size, 12);
    const auto backend = kernels::CreateReferenceBackend();
    const auto stream = backend->CreateStream();
    EXPECT_TRUE(LoadModelWeights(*folder, *config, *backend, **stream).ok());
  }
}

// Were reading it the square of the number of tensors, as it was, this would take minutes.
TEST(HfFolderTest, AHeaderOfManyTensorsIsReadInItsLength) {
  std::string header = "{";
  for (int i = 0; i < 300'000; ++i) header += "\"" + std::to_string(i) + "\":{},";
  header.back() = '}';
  auto files = ReadFolder("llama");
  const uint64_t header_bytes = header.size();
  files["model.safetensors"].assign(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  files["model.safetensors"] += header;
  EXPECT_THAT(Present(files).status().message(), HasSubstr("tensor '0' is described by {}"));
}

TEST(HfFolderTest, FingerprintsTellFoldersApart) {
  std::set<std::array<uint8_t, 32>> fingerprints;
  for (const std::string& model : kModels) fingerprints.insert(*Fingerprint(*OpenModel(kFixtures + model)));
  EXPECT_EQ(fingerprints.size(), kModels.size());
  // Every byte of every tensor counts, also of those that are not read as they lie.
  for (const std::string model : {"llama", "llama_fp8", "mixtral", "gpt_oss"}) {
    auto files = ReadFolder(model);
    const auto original = *Fingerprint(*Present(files));
    std::string& tensors = files["model.safetensors"];
    uint64_t header = 0;
    std::memcpy(&header, tensors.data(), sizeof(header));
    for (size_t at = 8 + header; at < tensors.size(); at += 61) {
      tensors[at] ^= 1;
      EXPECT_NE(*Fingerprint(*Present(files)), original) << model << " byte " << at;
      tensors[at] ^= 1;
    }
  }
}

TEST(HfFolderTest, RefusesConfigurationsByField) {
  const auto config = [](const std::string& from, const std::string& to, const std::string& model = "llama") {
    return Changed(model, "config.json", from, to);
  };
  ExpectRefused(config("\"llama\"", "\"rwkv\""), kUnknown,
                "folder/config.json: field 'model_type' is \"rwkv\"; allowed: llama, mistral");
  ExpectRefused(config("\"torch_dtype\"", "\"attention_sinks\""), kUnknown,
                "field 'attention_sinks' (\"bfloat16\") is not known for 'llama' and may change");
  ExpectRefused(config("\"hidden_size\": 16", "\"hidden_size\": -1"), kInvalid,
                "field 'hidden_size' is -1; allowed: ");
  ExpectRefused(config("\"hidden_size\": 16", "\"hidden_size\": 18"), kInvalid,
                "field 'num_attention_heads' is 4");
  ExpectRefused(config("\"hidden_size\": 16,", ""), kInvalid, "field 'hidden_size' is missing");
  // Before RoPE's divisors are made, one for every other element of a head.
  ExpectRefused(config("\"vocab_size\": 12", "\"vocab_size\": 12, \"head_dim\": 2147483646"), kInvalid,
                "field 'head_dim' is 2147483646; allowed: whole numbers from 2 to 65536");
  ExpectRefused(
      config("\"hidden_size\": 16", "\"hidden_size\": 2147483640"), kInvalid,
      "field 'num_attention_heads' is 4; allowed: what makes heads of an even size, up to 65536; it is 536870910");
  ExpectRefused(config("\"silu\"", "\"gelu\""), kUnknown, "field 'hidden_act' is \"gelu\"; allowed: silu");
  ExpectRefused(config("\"llama3\"", "\"dynamic\""), kUnknown, "field 'rope_type' is \"dynamic\"");
  ExpectRefused(config("\"high_freq_factor\": 4.0", "\"high_freq_factor\": 1.0"), kInvalid,
                "field 'high_freq_factor'");
  ExpectRefused(config("\"low_freq_factor\"", "\"beta\""), kUnknown, "rope_scaling: field 'beta'");
  ExpectRefused(config("\"vocab_size\": 12", "\"vocab_size\": 12, \"vocab_size\": 13"), kInvalid,
                "appears twice");
  ExpectRefused(
      config("\"vocab_size\": 12", "\"vocab_size\": " + std::string(40, '[') + std::string(40, ']')),
      kInvalid, "nested more than 16 deep");
  ExpectRefused(config("\"fp8\"", "\"gptq\"", "llama_fp8"), kUnknown, "field 'quant_method' is \"gptq\"");
  ExpectRefused(config("\"use_sliding_window\": false", "\"use_sliding_window\": true", "qwen2"), kUnknown,
                "field 'use_sliding_window' is true; allowed: false");
  ExpectRefused(config("\"full_attention\"", "\"sliding_attention\"", "qwen3"), kUnknown, "for layer 0");
  ExpectRefused(config("\"query_pre_attn_scalar\": 8", "\"query_pre_attn_scalar\": 9", "gemma3"), kUnknown,
                "field 'query_pre_attn_scalar' is 9; allowed: 8");
  ExpectRefused(config("\"num_local_experts\": 3", "\"num_local_experts\": 4", "mixtral"), kInvalid,
                "3 tensors belong to 'blk.0.ffn_down_exps.weight'; allowed: one for each of the 4 experts");
  ExpectRefused(
      config("\"norm_topk_prob\": true", "\"norm_topk_prob\": true, \"num_local_experts\": 99", "qwen3moe"),
      kInvalid, "field 'num_local_experts' is 99");
  ExpectRefused(config("\"norm_topk_prob\": true", "\"norm_topk_prob\": 1", "qwen3moe"), kInvalid,
                "field 'norm_topk_prob' is 1; allowed: true, false");
  ExpectRefused(config("\"norm_topk_prob\": true,", "", "qwen3moe"), kInvalid,
                "field 'norm_topk_prob' is missing");
  ExpectRefused(config("\"mlp_only_layers\": []", "\"mlp_only_layers\": [1]", "qwen3moe"), kUnknown,
                "field 'mlp_only_layers' is [1]; allowed: []");
}

TEST(HfFolderTest, SoftCapsThatAreNotStatedAreGemmas) {
  const auto read = [](const std::string& from, const std::string& to) -> absl::StatusOr<ModelConfig> {
    const auto file = Present(ChangedArchitecture("gemma2", from, to));
    if (!file.ok()) return file.status();
    return ReadModelConfig(*file);
  };
  const std::string attention = "\"attn_logit_softcapping\": 3.0,",
                    final = "\"final_logit_softcapping\": 12.0,";
  const auto stated = read(attention, attention);
  ASSERT_TRUE(stated.ok()) << stated.status();
  EXPECT_EQ(stated->attention_soft_cap, 3);
  EXPECT_EQ(stated->logit_soft_cap, 12);
  EXPECT_EQ(stated->layers[0].sliding_window, 29);
  EXPECT_EQ(stated->layers[1].sliding_window, 0);
  EXPECT_EQ(read(attention, "")->attention_soft_cap, 50);
  EXPECT_EQ(read(final, "")->logit_soft_cap, 30);
  EXPECT_EQ(read(attention, "\"attn_logit_softcapping\": null,")->attention_soft_cap, 0);
  EXPECT_EQ(read(final, "\"final_logit_softcapping\": null,")->logit_soft_cap, 0);
  for (const std::string cap : {"-3.0", "1e-5", "1e7"}) {
    const auto refused = read(attention, "\"attn_logit_softcapping\": " + cap + ",");
    EXPECT_EQ(refused.status().code(), kInvalid) << cap;
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("key 'gemma2.attn_logit_softcapping' is "));
  }
}

TEST(HfFolderTest, RefusesOtherOrdersOfLayersWithoutRope) {
  ASSERT_TRUE(Present(ChangedArchitecture("smollm3", "\"no_rope_layers\"", "\"no_rope_layers\"")).ok());
  ExpectRefused(ChangedArchitecture("smollm3", "    1,\n    0\n", "    0,\n    1\n"), kUnknown,
                "field 'no_rope_layers' is 0 for layer 2; implemented: 1 there");
  ExpectRefused(ChangedArchitecture("smollm3", "    1,\n    0\n", "    0\n"), kInvalid,
                "field 'no_rope_layers' is [1,1,0]; allowed: one for each of the 4 layers");
  ExpectRefused(ChangedArchitecture("smollm3", "_interval\": 4", "_interval\": 3"), kUnknown,
                "field 'no_rope_layer_interval' is 3; allowed: 4");
}

// As Gemma 3 is published: its own configuration nested in one with images, and names of two generations.
TEST(HfFolderTest, OfAModelThatSeesImagesTheTextPartIsTaken) {
  const std::string same = "\"gemma3_text\"";
  const auto plain_files = ChangedArchitecture("gemma3", same, same);
  const auto plain = Present(plain_files);
  ASSERT_TRUE(plain.ok()) << plain.status();
  nlohmann::json text = nlohmann::json::parse(plain_files.at("config.json"));
  text.erase("hidden_activation");  // it has the default
  for (const std::string prefix : {"language_model.model.", "model.language_model."}) {
    auto files = plain_files;
    files["config.json"] = nlohmann::json{
        {"model_type", "gemma3"},
        {"text_config", text},
        {"vision_config", {{"hidden_size", 4}}},
        {"mm_tokens_per_image", 256},
        {"eos_token_id",
         {1, 2}}}.dump();
    files["model.safetensors"] =
        ChangedHeader(plain_files.at("model.safetensors"), [&](nlohmann::json& header, size_t end) {
          nlohmann::json renamed = {
              {prefix == "language_model.model." ? "vision_tower.x" : "model.vision_tower.x",
               {{"dtype", "F16"}, {"shape", {2}}, {"data_offsets", {end, end + 4}}}}};
          for (const auto& [name, tensor] : header.items()) {
            renamed[name.starts_with("model.") ? prefix + name.substr(6) : name] = tensor;
          }
          header = std::move(renamed);
        });
    const auto nested = Present(files);
    ASSERT_TRUE(nested.ok()) << nested.status();
    ASSERT_EQ(nested->tensors().size(), plain->tensors().size());
    for (const GgufTensor& tensor : plain->tensors()) {
      const GgufTensor* found = nested->FindTensor(tensor.name);
      ASSERT_NE(found, nullptr) << tensor.name;
      EXPECT_EQ(AllRows(*found), AllRows(tensor)) << tensor.name;
    }
    EXPECT_EQ(*nested->GetInteger("gemma3.attention.head_count", 0, 100), 4);
    EXPECT_TRUE(ReadModelConfig(*nested).ok()) << ReadModelConfig(*nested).status();
    auto unknown = files;
    unknown["config.json"].replace(unknown["config.json"].find("mm_tokens"), 9, "mn_tokens");
    ExpectRefused(unknown, kUnknown, "field 'mn_tokens_per_image' (256) is not known for 'gemma3'");
  }
  // Of two tensors that are the same one, neither is taken.
  auto twice = plain_files;
  twice["config.json"] = nlohmann::json{{"model_type", "gemma3"}, {"text_config", text}}.dump();
  twice["model.safetensors"] =
      ChangedHeader(plain_files.at("model.safetensors"), [&](nlohmann::json& header, size_t end) {
        header["language_model.model.norm.weight"] = {
            {"dtype", "F16"}, {"shape", {2}}, {"data_offsets", {end, end + 4}}};
      });
  ExpectRefused(twice, kDamaged, "folder: tensor 'model.norm.weight' is there twice");
  auto without = plain_files;
  without["config.json"] = R"({"model_type": "gemma3"})";
  ExpectRefused(without, kInvalid, "field 'text_config' is missing; allowed: an object");
}

// Logits are multiplied by its inverse, which a float must hold.
TEST(HfFolderTest, TheScaleOfLogitsHasAnInverse) {
  const auto file = Present(Changed("granite", "config.json", "8.0", "1e-39"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(std::string(ReadModelConfig(*file).status().message()),
              HasSubstr("key 'granite.logit_scale' is 1e-39; allowed: above 1e-06"));
}

TEST(HfFolderTest, WhatIsNoJsonIsNotRepeatedInFull) {
  auto files = ReadFolder("llama");
  files["config.json"] = "{\"" + std::string(100'000, 'x');
  const absl::Status status = Present(files).status();
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_THAT(std::string(status.message()), HasSubstr("folder/config.json: not the JSON that is expected"));
  EXPECT_LT(status.message().size(), 300u);
}

TEST(HfFolderTest, RefusesTensorsByName) {
  const auto tensors = [](const std::string& from, const std::string& to,
                          const std::string& model = "llama") {
    return Changed(model, "model.safetensors", from, to);
  };
  ExpectRefused(tensors("model.norm.weight", "model.more.weight"), kUnknown,
                "folder: tensor 'model.more.weight' is not part of the architecture 'llama'");
  ExpectRefused(tensors("layers.1.mlp.up_proj", "layers.2.mlp.up_proj"), kUnknown, "is not part of");
  ExpectRefused(tensors("layers.1.mlp.up_proj", "layers.01.mlp.upproj"), kUnknown, "is not part of");
  ExpectRefused(tensors("\"BF16\"", "\"I8\"  "), kUnknown,
                "is of dtype 'I8'; readable: F32, F16, BF16, F8_E4M3, U8");
  ExpectRefused(tensors("\"BF16\",\"shape\":[12,16]", "\"U8\",\"shape\":[12,32]  "), kInvalid,
                "is of dtype U8; allowed: F32, F16, BF16, F8_E4M3");
  ExpectRefused(tensors("[12,16]", "[12,17]"), kDamaged, "has 384 bytes; allowed: 408");
  ExpectRefused(tensors("\"shape\"", "\"space\""), kInvalid, "'dtype', 'shape' and 'data_offsets'");
  ExpectRefused(tensors("q_proj.weight_scale_inv", "q_proj.weight_scale_off", "llama_fp8"), kInvalid,
                "there is no tensor 'model.layers.0.self_attn.q_proj.weight_scale_inv'");
  ExpectRefused(tensors("lm_head.weight", "model.a.weight", "llama_fp8"), kUnknown,
                "tensor 'model.a.weight'");
  auto tied =
      Changed("llama", "config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  ExpectRefused(tied, kInvalid, "tensor 'lm_head.weight' is missing");
}

TEST(HfFolderTest, RefusesWhatIsMissingOrElsewhere) {
  for (const std::string file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    auto files = ReadFolder("llama");
    files.erase(file);
    ExpectRefused(files, absl::StatusCode::kNotFound, file);
  }
  const std::string index = "model.safetensors.index.json";
  ExpectRefused(Changed("qwen2", index, "model-1.safetensors", "../1.safetensors"), kInvalid,
                "allowed: names of .safetensors files in this folder");
  auto incomplete = ReadFolder("qwen2");
  incomplete.erase("model-2.safetensors");
  ExpectRefused(incomplete, absl::StatusCode::kNotFound, "model-2.safetensors");
  ExpectRefused(Changed("qwen2", index, "model-1.safetensors", "model-2.safetensors"), kDamaged,
                "according to model.safetensors.index.json");
  ExpectRefused(Changed("qwen2", index, "{\"model.", "{\"more\": \"model-1.safetensors\", \"model."),
                kDamaged, "tensor 'more' is not in the file that is named");
  EXPECT_EQ(OpenModel(kFixtures + "nowhere").status().code(), absl::StatusCode::kNotFound);
}

TEST(HfFolderTest, TemplatesAndTokensComeFromWhereTheyAreKept) {
  auto files = ReadFolder("llama");
  files["chat_template.jinja"] = "from a file";
  EXPECT_EQ(*Present(files)->GetString("tokenizer.chat_template"), "from a file");
  files.erase("chat_template.jinja");
  files["tokenizer_config.json"] =
      R"({"chat_template": [{"name": "tool", "template": "a"}, {"name": "default", "template": "b"}]})";
  EXPECT_EQ(*Present(files)->GetString("tokenizer.chat_template"), "b");
  files["tokenizer_config.json"] = R"({"chat_template": 7})";
  ExpectRefused(files, kInvalid, "field 'chat_template' is 7");
  files["tokenizer_config.json"] = "{}";
  files["generation_config.json"] = R"({"eos_token_id": 3, "temperature": 0.6})";
  const auto file = Present(files);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->HasKey("tokenizer.chat_template"));
  EXPECT_EQ(*file->GetInteger("tokenizer.ggml.eos_token_id", 0, 100), 3);
  EXPECT_FALSE(file->HasKey("tokenizer.ggml.eog_token_ids"));
  files["generation_config.json"] = R"({"eos_token_id": [3, 9, 8, 4]})";
  std::ifstream tokenizer(std::string(KVBLEND_SOURCE_DIR) + "/tests/fixtures/tokenizers/hf_smollm.json");
  files["tokenizer.json"] = std::string((std::istreambuf_iterator<char>(tokenizer)), {});
  const auto several = Present(files);
  ASSERT_TRUE(several.ok()) << several.status();
  const auto spec = ReadTokenizerSpec(*several);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->eos, 3);
  EXPECT_THAT(spec->end_of_generation, testing::UnorderedElementsAre(4, 9, 8));
  // What tokenizer_config.json names comes first; the others only end answers.
  files["tokenizer_config.json"] = R"({"bos_token": null, "eos_token": {"content": "<|im_end|>"}})";
  const auto named = ReadTokenizerSpec(*Present(files));
  ASSERT_TRUE(named.ok()) << named.status();
  const auto config = ReadModelConfig(*Present(files));
  EXPECT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(named->bos, std::nullopt);
  ASSERT_TRUE(named->eos.has_value());
  EXPECT_EQ(named->tokens[static_cast<size_t>(*named->eos)], "<|im_end|>");
  EXPECT_THAT(named->end_of_generation, testing::UnorderedElementsAre(3, 4, 9, 8));
  files["tokenizer_config.json"] = R"({"bos_token": "<|im_start|>"})";
  const auto begins = ReadTokenizerSpec(*Present(files));
  ASSERT_TRUE(begins.ok() && begins->bos.has_value()) << begins.status();
  EXPECT_EQ(begins->tokens[static_cast<size_t>(*begins->bos)], "<|im_start|>");
  EXPECT_EQ(begins->eos, 3);
  files["tokenizer_config.json"] = R"({"bos_token": 7})";
  ExpectRefused(files, kInvalid, "folder/tokenizer_config.json: field 'bos_token' is 7");
  files.erase("tokenizer_config.json");
  // What the tokenizer puts in front comes before config.json's.
  std::ifstream llama3(std::string(KVBLEND_SOURCE_DIR) + "/tests/fixtures/tokenizers/hf_llama3.json");
  files["tokenizer.json"] = std::string((std::istreambuf_iterator<char>(llama3)), {});
  const auto processed = ReadTokenizerSpec(*Present(files));
  ASSERT_TRUE(processed.ok()) << processed.status();
  EXPECT_EQ(processed->bos, 0);
  files["generation_config.json"] = R"({"eos_token_id": "3"})";
  ExpectRefused(files, kInvalid, "folder/generation_config.json: field 'eos_token_id' is \"3\"");
}

// A folder says what cos and sin are multiplied by, a GGUF file what is left of that without YaRN's own
// factor.
TEST(HfFolderTest, YarnsAttentionFactor) {
  auto files = ReadFolder("llama");
  std::string& config = files["config.json"];
  const size_t begin = config.find("\"rope_scaling\""), end = config.find('}', begin) + 1;
  config.replace(begin, end - begin,
                 R"("rope_scaling": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.25,
                                         "original_max_position_embeddings": 16})");
  const auto file = Present(files);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto read = ReadModelConfig(*file);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FLOAT_EQ(read->ropes[0].magnitude, 1.25);
}

// OK, or a refusal that names the folder; never a crash or a hang.
TEST(HfFolderTest, TwoThousandDamagedFolders) {
  std::mt19937 rng(2026);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    auto files = ReadFolder(kModels[round % kModels.size()]);
    files.erase("expected.gguf");
    auto target = std::next(files.begin(), static_cast<int64_t>(rng() % files.size()));
    std::string& bytes = target->second;
    // Most of a file is numbers that may be any: the header's part is what can be wrong.
    const size_t end = std::min<size_t>(bytes.size(), rng() % 4 == 0 ? bytes.size() : 2048);
    for (uint32_t changes = 1 + rng() % 4; changes > 0; --changes) {
      const size_t at = rng() % end;
      switch (rng() % 4) {
        case 0:
          bytes[at] = static_cast<char>(rng());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ 1 << rng() % 8);
          break;
        case 2:
          bytes[at] = "0123456789[]{}\",:-"[rng() % 18];
          break;
        default:
          bytes.resize(std::max<size_t>(end, rng() % bytes.size()));
      }
    }
    const absl::Status status = ExerciseFolder(Bytes(PackFolder(files)));
    if (status.ok()) continue;
    ++refused;
    EXPECT_THAT(status.code(), AnyOf(kInvalid, kUnknown, kDamaged, absl::StatusCode::kNotFound)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("fuzz")) << "round " << round << ": " << status;
  }
  std::printf("%d of 2000 refused, seed 2026\n", refused);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace kvblend::model
