// Folders whose matrices are in FP8 or MXFP4. The oracles are the Python packages `ml_dtypes` and `gguf`:
// tests/fixtures/make_hf_folders.py.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/model/files/hf_rows.h"
#include "tests/unit/model/hf_folder_files.h"

namespace kvblend::model {
namespace {

TEST(HfQuantizationTest, EveryE4M3NumberEqualsThePythonPackage) {
  const std::string bytes = ReadWhole(kFixtures + "e4m3.bin");
  ASSERT_EQ(bytes.size(), 256 * sizeof(float));
  for (int code = 0; code < 256; ++code) {
    float expected = 0;
    std::memcpy(&expected, bytes.data() + code * sizeof(float), sizeof(float));
    const float actual = E4M3ToF32(static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(actual)) << code;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected)) << code;
    }
  }
}

TEST(HfQuantizationTest, RefusesOtherFormsOfGptOss) {
  const auto config = [](const std::string& from, const std::string& to) {
    return Changed("gpt_oss", "config.json", from, to);
  };
  ExpectRefused(config("\"swiglu_limit\": 7.0", "\"swiglu_limit\": 8.0"), kUnknown,
                "field 'swiglu_limit' is 8.0; allowed: 7.0");
  ExpectRefused(config("\"experts_per_token\": 2", "\"experts_per_token\": 3"), kInvalid,
                "field 'experts_per_token' is 3; allowed: 2, as of 'num_experts_per_tok'");
  ExpectRefused(config("\"truncate\": false", "\"truncate\": true"), kUnknown,
                "field 'truncate' is true; allowed: false");
  ExpectRefused(config("\"beta_slow\": 1.0", "\"beta_slow\": 0"), kInvalid, "field 'beta_slow' is 0");
  ExpectRefused(
      config("\"mxfp4\"", "\"awq\""), kUnknown,
      "field 'quant_method' is \"awq\"; allowed: \"fp8\", \"fbgemm_fp8\", \"compressed-tensors\", \"mxfp4\"");
  ExpectRefused(Changed("llama_fp8", "config.json", "\"fp8\"", "\"mxfp4\""), kUnknown,
                "field 'quant_method' is \"mxfp4\"; allowed: \"fp8\"");
  const auto tensors = [](const std::string& from, const std::string& to) {
    return Changed("gpt_oss", "model.safetensors", from, to);
  };
  const std::string down = "model.layers.1.mlp.experts.down_proj";
  ExpectRefused(tensors(down + "_scales", down + "_sacles"), kInvalid,
                "tensor '" + down + "_blocks' is there, and its scales or blocks are not");
  ExpectRefused(tensors(down + "_blocks", "model.layers.2.mlp.experts.down_proj_blocks"), kInvalid,
                "tensor '" + down + "_scales' is there, and its scales or blocks are not");
  ExpectRefused(tensors(down + "_bias", down + "_bais"), kUnknown,
                "tensor '" + down + "_bais' is not part of");
  ExpectRefused(tensors("\"" + down + "_scales\"", "\"" + down + "\"       "), kInvalid,
                "tensor '" + down + "' is of dtype U8; allowed: F32, F16, BF16");
  ExpectRefused(tensors("[3,64,1,16]", "[3,64,16,1]"), kInvalid, "with scales of shape [3, 64, 1]");
  ExpectRefused(tensors("[3,64,2,16]", "[6,32,2,16]"), kInvalid,
                "allowed: 4 dimensions, the first of the 3 experts");
}

// fbgemm_fp8 has the tensors of compressed-tensors; both leave scales of activations and of KV beside them.
TEST(HfQuantizationTest, ScalesOfRowsAreReadWhoeverWroteThem) {
  const auto expected = Present(ReadFolder("llama_fp8_rows"));
  ASSERT_TRUE(expected.ok()) << expected.status();
  auto files = ReadFolder("llama_fp8_rows");
  nlohmann::json config = nlohmann::json::parse(files["config.json"]);
  config["quantization_config"] = {{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}};
  files["config.json"] = config.dump();
  std::string& tensors = files["model.safetensors"];
  tensors = ChangedHeader(tensors, [](nlohmann::json& header, size_t end) {
    header["model.layers.0.mlp.up_proj.input_scale_ub"] = {
        {"dtype", "F16"}, {"shape", {1}}, {"data_offsets", {end, end + 2}}};
    header["model.layers.0.self_attn.k_scale"] = {
        {"dtype", "F16"}, {"shape", nlohmann::json::array()}, {"data_offsets", {end + 2, end + 4}}};
    for (auto& [name, tensor] : header.items()) {  // [rows, 1] and [rows] mean the same
      if (name.ends_with("up_proj.weight_scale"))
        tensor["shape"] = nlohmann::json::array({tensor["shape"][0]});
    }
  });
  const auto other = Present(files);
  ASSERT_TRUE(other.ok()) << other.status();
  ASSERT_EQ(other->tensors().size(), expected->tensors().size());
  for (const GgufTensor& tensor : expected->tensors()) {
    EXPECT_EQ(AllRows(*other->FindTensor(tensor.name)), AllRows(tensor)) << tensor.name;
  }
}

TEST(HfQuantizationTest, RefusesOtherQuantizedForms) {
  const auto config = [](const std::string& from, const std::string& to) {
    return Changed("llama_fp8_rows", "config.json", from, to);
  };
  const auto weights = [&](const std::string& from,
                           const std::string& to) {  // those of activations stand before
    auto files = ReadFolder("llama_fp8_rows");
    std::string& text = files["config.json"];
    const size_t at = text.find(from, text.find("\"weights\""));
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    return files;
  };
  ExpectRefused(config("float-quantized", "pack-quantized"), kUnknown,
                "quantization_config: field 'format' is \"pack-quantized\"; allowed: \"float-quantized\"");
  ExpectRefused(config("\"config_groups\"", "\"no_groups\""), kInvalid, "field 'config_groups' is missing");
  ExpectRefused(config("\"kv_cache_scheme\": null", "\"transform_config\": {\"R1\": {}}"), kUnknown,
                "field 'transform_config' is {\"R1\":{}}; allowed: {}");
  ExpectRefused(weights("\"num_bits\": 8", "\"num_bits\": 4"), kUnknown,
                "config_groups: 'group_0': weights: field 'num_bits' is 4; allowed: 8");
  ExpectRefused(weights("\"float\"", "\"int\""), kUnknown, "field 'type' is \"int\"; allowed: \"float\"");
  ExpectRefused(weights("\"channel\"", "\"group\""), kUnknown,
                "field 'strategy' is \"group\"; allowed: \"tensor\", \"channel\", \"block\"");
  ExpectRefused(weights("\"symmetric\": true", "\"symmetric\": false"), kUnknown,
                "field 'symmetric' is false");
  ExpectRefused(weights("\"strategy\": \"channel\"", "\"strategy\": \"block\", \"block_structure\": [8, 0]"),
                kInvalid, "field 'block_structure' is [8,0]; allowed: two numbers from 1 to 65536");
  const auto tensors = [](const std::string& from, const std::string& to) {
    return Changed("llama_fp8_rows", "model.safetensors", from, to);
  };
  const std::string scale = "model.layers.0.mlp.up_proj.weight_scale";
  ExpectRefused(tensors("\"shape\":[24,1]", "\"shape\":[1,24]"), kInvalid,
                "has shape [1, 24]; allowed: one number, or one for each of 24 rows");
  ExpectRefused(tensors(scale + "\"", "model.layers.0.mlp.up_proj.weight_scals\""), kInvalid,
                "and there is no tensor '" + scale + "_inv' or '" + scale + "'");
}

}  // namespace
}  // namespace kvblend::model
