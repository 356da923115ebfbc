#include "engine/model/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace kvblend::model {
namespace {

using test_support::Bytes;
using test_support::GgufBuilder;
using test_support::TinyModelBuilder;
using test_support::TinyModelSpec;
using ::testing::HasSubstr;

struct Loaded {
  ModelConfig config;
  ModelWeights weights;
};

class ModelWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    backend_ = kernels::CreateReferenceBackend();
    auto stream = backend_->CreateStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  absl::StatusOr<Loaded> Load(const GgufBuilder& builder) {
    const std::string bytes = builder.Build();
    auto file = GgufFile::FromMemory(Bytes(bytes), "test.gguf");
    if (!file.ok()) return file.status();
    auto config = ReadModelConfig(*file);
    if (!config.ok()) return config.status();
    auto weights = LoadModelWeights(*file, *config, *backend_, *stream_);
    if (!weights.ok()) return weights.status();
    return Loaded{*std::move(config), *std::move(weights)};
  }

  // Row r of W as the backend holds it: unit vectors times W^T.
  std::vector<float> Columns(const kernels::PackedWeights& packed) {
    const int64_t cols = packed.cols();
    const int64_t rows = packed.rows();
    std::vector<float> identity(cols * cols, 0.0f);
    for (int64_t i = 0; i < cols; ++i) identity[i * cols + i] = 1;
    std::vector<float> product(cols * rows);  // [cols, rows]
    const auto status =
        backend_->Linear(*stream_, {identity.data(), kernels::DataType::kF32, cols, cols, cols}, packed,
                         false, {product.data(), kernels::DataType::kF32, cols, rows, rows});
    EXPECT_TRUE(status.ok()) << status;
    std::vector<float> transposed(rows * cols);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) transposed[r * cols + c] = product[c * rows + r];
    }
    return transposed;
  }

  // The same of an expert.
  std::vector<float> Columns(const kernels::PackedExperts& packed, int32_t expert) {
    const int64_t cols = packed.cols(), rows = packed.rows();
    std::vector<float> values(rows * cols);
    for (int64_t c = 0; c < cols; ++c) {
      std::vector<float> unit(cols, 0.0f), product(rows);
      unit[c] = 1;
      const auto status =
          backend_->ExpertLinear(*stream_, {unit.data(), kernels::DataType::kF32, 1, cols, cols}, packed,
                                 {&expert, 1}, {product.data(), kernels::DataType::kF32, 1, rows, rows});
      EXPECT_TRUE(status.ok()) << status;
      for (int64_t r = 0; r < rows; ++r) values[r * cols + c] = product[r];
    }
    return values;
  }

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::Stream> stream_;
};

std::vector<float> TensorValues(const GgufFile& file, std::string_view name) {
  const GgufTensor* tensor = file.FindTensor(name);
  std::vector<float> values;
  if (tensor == nullptr) return values;
  values.resize(tensor->rows() * tensor->cols());
  for (int64_t row = 0; row < tensor->rows(); ++row) {
    EXPECT_TRUE(
        tensor->ReadRow(row, absl::MakeSpan(values).subspan(row * tensor->cols(), tensor->cols())).ok());
  }
  return values;
}

std::vector<float> Concatenate(std::vector<std::vector<float>> parts) {
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The same model with a tensor for each expert, as files had them before one held all of a layer.
GgufBuilder WithATensorForEachExpert(const TinyModelSpec& spec) {
  GgufBuilder builder = TinyModelBuilder(spec);
  const std::string bytes = builder.Build();
  const auto file = GgufFile::FromMemory(Bytes(bytes), "test.gguf");
  for (const GgufTensor& tensor : file->tensors()) {
    const std::string name(tensor.name);
    const size_t ending = name.find("_exps.weight");
    if (ending == std::string::npos) continue;
    builder.RemoveTensor(name);
    const auto cols = static_cast<uint64_t>(tensor.dims[0]), rows = static_cast<uint64_t>(tensor.dims[1]);
    const size_t size = tensor.data.size() / spec.num_experts;
    for (int expert = 0; expert < spec.num_experts; ++expert) {
      const absl::Span<const std::byte> data = tensor.data.subspan(expert * size, size);
      builder.SetTensor(name.substr(0, ending) + "." + std::to_string(expert) + ".weight", {cols, rows},
                        static_cast<uint32_t>(tensor.type),
                        {reinterpret_cast<const char*>(data.data()), data.size()});
    }
  }
  return builder;
}

class ExpertWeightsTest : public ModelWeightsTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Forms, ExpertWeightsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "a_tensor_each" : "a_tensor_for_all"; });

TEST_P(ExpertWeightsTest, EveryExpertLandsInItsPlace) {
  TinyModelSpec spec;
  spec.num_experts = 3;
  const std::string bytes = test_support::BuildTinyModel(spec);
  const auto file = GgufFile::FromMemory(Bytes(bytes), "test.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto loaded = Load(GetParam() ? WithATensorForEachExpert(spec) : TinyModelBuilder(spec));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (int layer = 0; layer < 2; ++layer) {
    const LayerWeights& actual = loaded->weights.layers[layer];
    EXPECT_EQ(actual.gate_up, nullptr);
    EXPECT_EQ(actual.down, nullptr);
    const auto values = [&](const std::string& part) {
      return TensorValues(*file, "blk." + std::to_string(layer) + "." + part + ".weight");
    };
    EXPECT_EQ(Columns(*actual.router), values("ffn_gate_inp"));
    const auto of_expert = [](const std::vector<float>& all, int expert) {
      const auto size = static_cast<int64_t>(all.size()) / 3;
      return std::vector<float>(all.begin() + expert * size, all.begin() + (expert + 1) * size);
    };
    for (int expert = 0; expert < 3; ++expert) {
      EXPECT_EQ(Columns(*actual.expert_gate_up, expert),
                Concatenate(
                    {of_expert(values("ffn_gate_exps"), expert), of_expert(values("ffn_up_exps"), expert)}));
      EXPECT_EQ(Columns(*actual.expert_down, expert), of_expert(values("ffn_down_exps"), expert));
    }
  }
}

TEST_F(ModelWeightsTest, NamesTheExpertThatIsMissingOrTooMuch) {
  TinyModelSpec spec;
  spec.num_experts = 3;
  GgufBuilder missing = WithATensorForEachExpert(spec), more = missing, both = missing, other = missing;
  const auto error = [&](const GgufBuilder& builder) {
    return std::string(Load(builder).status().message());
  };
  EXPECT_THAT(error(missing.RemoveTensor("blk.1.ffn_up.2.weight")),
              HasSubstr("tensor 'blk.1.ffn_up.2.weight' is missing; expected shape [32, 64]"));
  EXPECT_THAT(error(more.SetTensorF32("blk.1.ffn_up.3.weight", {32, 64}, std::vector<float>(32 * 64))),
              HasSubstr("tensor 'blk.1.ffn_up.3.weight' is not part of"));
  EXPECT_THAT(
      error(both.SetTensorF32("blk.1.ffn_up_exps.weight", {32, 64, 3}, std::vector<float>(3 * 32 * 64))),
      HasSubstr("tensor 'blk.1.ffn_up.0.weight' is not part of"));
  EXPECT_THAT(error(other.SetTensorF32("blk.0.ffn_down.1.weight", {32, 64}, std::vector<float>(32 * 64))),
              HasSubstr("tensor 'blk.0.ffn_down.1.weight' has shape [32, 64]; allowed: [64, 32]"));
}

TEST_F(ModelWeightsTest, EveryMatrixLandsInItsPlace) {
  for (const bool tied : {true, false}) {
    TinyModelSpec spec;
    spec.tied_output = tied;
    spec.head_dim = 16;  // heads * head_dim differs from hidden_dim
    const std::string bytes = test_support::BuildTinyModel(spec);
    const auto file = GgufFile::FromMemory(Bytes(bytes), "test.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    const auto loaded = Load(TinyModelBuilder(spec));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const ModelWeights& weights = loaded->weights;

    ASSERT_EQ(weights.layers.size(), 2u);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      const auto values = [&](const std::string& part) {
        return TensorValues(*file, prefix + part + ".weight");
      };
      const LayerWeights& actual = weights.layers[layer];
      EXPECT_EQ(Columns(*actual.qkv), Concatenate({values("attn_q"), values("attn_k"), values("attn_v")}));
      EXPECT_EQ(Columns(*actual.attn_output), values("attn_output"));
      EXPECT_EQ(Columns(*actual.gate_up), Concatenate({values("ffn_gate"), values("ffn_up")}));
      EXPECT_EQ(Columns(*actual.down), values("ffn_down"));
      std::vector<float> norm(spec.hidden_dim);
      ASSERT_EQ(actual.attn_norm->size_bytes(), spec.hidden_dim * 4);
      ASSERT_TRUE(
          backend_->CopyToHost(*stream_, norm.data(), actual.attn_norm->data(), spec.hidden_dim * 4).ok());
      EXPECT_EQ(norm, values("attn_norm"));
      ASSERT_TRUE(
          backend_->CopyToHost(*stream_, norm.data(), actual.ffn_norm->data(), spec.hidden_dim * 4).ok());
      EXPECT_EQ(norm, values("ffn_norm"));
    }
    EXPECT_EQ(weights.output == nullptr, tied);
    EXPECT_EQ(Columns(weights.output_layer()),
              TensorValues(*file, tied ? "token_embd.weight" : "output.weight"));

    const std::vector<int32_t> ids = {0, 5, test_support::TinyVocabSize() - 1};
    std::vector<float> rows(ids.size() * spec.hidden_dim);
    ASSERT_TRUE(backend_
                    ->Embed(*stream_, *weights.token_embedding, ids, /*scale=*/1,
                            {rows.data(), kernels::DataType::kF32, 3, spec.hidden_dim, spec.hidden_dim})
                    .ok());
    const std::vector<float> table = TensorValues(*file, "token_embd.weight");
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int c = 0; c < spec.hidden_dim; ++c) {
        EXPECT_EQ(rows[i * spec.hidden_dim + c], table[ids[i] * spec.hidden_dim + c]);
      }
    }
    EXPECT_EQ(weights.ropes[0]->max_position(), spec.context_length);
    EXPECT_EQ(weights.ropes[0]->head_dim(), spec.head_dim);
  }
}

TEST_F(ModelWeightsTest, QuantizedMatricesAreCloseToTheirOriginals) {
  TinyModelSpec spec;
  const auto exact = Load(TinyModelBuilder(spec));
  ASSERT_TRUE(exact.ok()) << exact.status();
  for (const auto type : {test_support::TinyWeightType::kF16, test_support::TinyWeightType::kQ8_0}) {
    spec.weight_type = type;
    const auto loaded = Load(TinyModelBuilder(spec));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const std::vector<float> expected = Columns(*exact->weights.layers[1].down);
    const std::vector<float> actual = Columns(*loaded->weights.layers[1].down);
    float largest = 0;
    for (const float value : expected) largest = std::max(largest, std::fabs(value));
    // Half a step of the coarser grid (largest/127), plus the rounding of the f16 scale itself.
    const float tolerance = largest * (0.5f / 127 + 0x1p-10f);
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << "at " << i;
  }
}

TEST_F(ModelWeightsTest, NamesTensorsOfWrongShape) {
  const std::vector<std::string> names = {
      "token_embd.weight",     "output_norm.weight",  "blk.0.attn_norm.weight", "blk.0.attn_q.weight",
      "blk.0.attn_k.weight",   "blk.1.attn_v.weight", "blk.1.ffn_norm.weight",  "blk.1.attn_output.weight",
      "blk.0.ffn_gate.weight", "blk.1.ffn_up.weight", "blk.1.ffn_down.weight",
  };
  for (const std::string& name : names) {
    GgufBuilder wrong = TinyModelBuilder({});
    wrong.SetTensorF32(name, {8, 3}, std::vector<float>(24, 1.0f));
    const auto loaded = Load(wrong);
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("'" + name + "' has shape [8, 3]"));
    GgufBuilder missing = TinyModelBuilder({});
    missing.RemoveTensor(name);
    EXPECT_THAT(std::string(Load(missing).status().message()), HasSubstr("'" + name + "' is missing"));
  }
}

TEST_F(ModelWeightsTest, NamesRowsThatHoldNoNumbers) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    GgufBuilder builder = TinyModelBuilder({});
    std::vector<float> values(64 * 32, 0.5f);
    values[3 * 32 + 7] = bad;
    builder.SetTensorF32("blk.1.ffn_up.weight", {32, 64}, values);
    const auto loaded = Load(builder);
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("'blk.1.ffn_up.weight' holds"));
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("in row 3"));
  }
}

std::array<uint8_t, 32> FingerprintOf(const GgufBuilder& builder) {
  const std::string bytes = builder.Build();
  const auto file = GgufFile::FromMemory(Bytes(bytes), "test.gguf");
  EXPECT_TRUE(file.ok()) << file.status();
  const auto fingerprint = Fingerprint(*file);
  EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
  return *fingerprint;
}

// Bytes of a file that lie in this process's memory, mapped (/proc/self/smaps).
int64_t ResidentBytes(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  int64_t kilobytes = 0;
  bool of_file = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ') && line.find(':') > line.find(' ')) of_file = line.ends_with(path);
    if (of_file && line.starts_with("Rss:")) kilobytes += std::stoll(line.substr(4));
  }
  return kilobytes * 1024;
}

// Peak memory: what has been packed, or hashed, does not stay beside what was made of it.
TEST_F(ModelWeightsTest, WhatWasReadOfTheFileLeavesMemory) {
  TinyModelSpec spec;
  spec.num_layers = 4;
  spec.ffn_dim = 16384;
  const std::string path = test_support::TemporaryPath("released_pages.gguf");
  const std::string bytes = TinyModelBuilder(spec).Build();
  const auto size = static_cast<int64_t>(bytes.size());
  ASSERT_GT(size, 12 << 20);
  std::ofstream(path, std::ios::binary).write(bytes.data(), size);
  {
    const auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto config = ReadModelConfig(*file);
    ASSERT_TRUE(config.ok()) << config.status();
    std::vector<float> row;
    const auto read_all = [&] {
      for (const GgufTensor& tensor : file->tensors()) {
        row.resize(tensor.cols());
        for (int64_t r = 0; r < tensor.rows(); ++r) {
          ASSERT_TRUE(tensor.ReadRow(r, absl::MakeSpan(row)).ok());
        }
      }
    };
    read_all();
    if (ResidentBytes(path) < size / 2) GTEST_SKIP() << "/proc/self/smaps does not tell of mapped files";
    ASSERT_TRUE(LoadModelWeights(*file, *config, *backend_, *stream_).ok());
    EXPECT_LT(ResidentBytes(path), size / 10);
    read_all();
    const auto fingerprint = Fingerprint(*file);
    ASSERT_TRUE(fingerprint.ok());
    EXPECT_LT(ResidentBytes(path), size / 10);
    EXPECT_EQ(*Fingerprint(*file), *fingerprint);  // of what is read anew
  }
  std::filesystem::remove(path);
}

TEST(FingerprintTest, StaysWhenOnlyTheDescriptionOrTheLayoutOfTheFileChanges) {
  const auto original = FingerprintOf(TinyModelBuilder({}));
  EXPECT_EQ(original, FingerprintOf(TinyModelBuilder({})));
  EXPECT_EQ(original, FingerprintOf(TinyModelBuilder({}).SetString("general.description", "another")));
  EXPECT_EQ(original, FingerprintOf(TinyModelBuilder({}).SetString("tokenizer.chat_template", "another")));
  EXPECT_EQ(original, FingerprintOf(TinyModelBuilder({}).SetAlignment(128)));
  EXPECT_EQ(original, FingerprintOf(TinyModelBuilder({}).SetVersion(2)));
  // The same tensor and key in another place of the file.
  std::vector<float> norm(32, 1.5f);
  GgufBuilder first = TinyModelBuilder({});
  first.SetTensorF32("output_norm.weight", {32}, norm);
  GgufBuilder last = TinyModelBuilder({});
  last.RemoveTensor("output_norm.weight").SetTensorF32("output_norm.weight", {32}, norm);
  last.RemoveKey("llama.block_count").SetUint32("llama.block_count", 2);
  EXPECT_EQ(FingerprintOf(first), FingerprintOf(last));
  EXPECT_NE(FingerprintOf(first), original);
}

TEST(FingerprintTest, ChangesWithEveryWeightRopeAndShape) {
  std::map<std::array<uint8_t, 32>, std::string> seen;
  const auto expect_new = [&](const std::string& what, const GgufBuilder& builder) {
    const auto [entry, inserted] = seen.emplace(FingerprintOf(builder), what);
    EXPECT_TRUE(inserted) << what << " has the fingerprint of " << entry->second;
  };
  expect_new("original", TinyModelBuilder({}));
  expect_new("another seed", TinyModelBuilder({.seed = 2}));
  expect_new("three layers", TinyModelBuilder({.num_layers = 3}));
  expect_new("one kv head", TinyModelBuilder({.num_kv_heads = 1}));
  expect_new("untied", TinyModelBuilder({.tied_output = false}));
  expect_new("f16", TinyModelBuilder({.weight_type = test_support::TinyWeightType::kF16}));
  expect_new("rope base", TinyModelBuilder({.rope_freq_base = 10001}));
  expect_new("linear", TinyModelBuilder({.rope_scaling = test_support::TinyRopeScaling::kLinear}));
  expect_new("linear, other factor", TinyModelBuilder({.rope_scaling = test_support::TinyRopeScaling::kLinear,
                                                       .rope_linear_factor = 3}));
  expect_new("llama3", TinyModelBuilder({.rope_scaling = test_support::TinyRopeScaling::kLlama3}));
  expect_new("epsilon", TinyModelBuilder({}).SetFloat32("llama.attention.layer_norm_rms_epsilon", 2e-5f));

  // The last bit of any element of any tensor, and the same bytes under another shape.
  const std::string bytes = test_support::BuildTinyModel({});
  const auto file = GgufFile::FromMemory(Bytes(bytes), "test.gguf");
  ASSERT_TRUE(file.ok());
  for (const GgufTensor& tensor : file->tensors()) {
    for (const size_t at : {size_t{0}, tensor.data.size() / 2, tensor.data.size() - 4}) {
      std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
      data[at] = static_cast<char>(data[at] ^ 1);
      GgufBuilder changed = TinyModelBuilder({});
      changed.SetTensor(tensor.name, {tensor.dims.begin(), tensor.dims.end()}, test_support::kGgufF32, data);
      expect_new(std::string(tensor.name) + " byte " + std::to_string(at), changed);
    }
    if (tensor.dims.size() == 2) {
      GgufBuilder reshaped = TinyModelBuilder({});
      reshaped.SetTensor(
          tensor.name,
          {static_cast<uint64_t>(tensor.dims[0]) * 2,
           static_cast<uint64_t>(tensor.rows()) / 2 + static_cast<uint64_t>(tensor.rows()) % 2},
          test_support::kGgufF32,
          std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()) +
              std::string(tensor.rows() % 2 * tensor.cols() * 4, '\0'));
      expect_new(std::string(tensor.name) + " reshaped", reshaped);
    }
  }
}

}  // namespace
}  // namespace kvblend::model
