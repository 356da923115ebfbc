#include "engine/store/format/entry_format.h"

#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/store/entry_bytes.h"

namespace kvblend::store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using enum kernels::KvEncoding;

constexpr kernels::KvEncoding kEncodings[] = {kF32, kBF16, kF16, kInt8, kInt4, kFp8};

KvFormat FormatOf(kernels::KvEncoding encoding, int32_t num_layers, int32_t num_kv_heads, int32_t head_dim) {
  return {.encoding = encoding, .num_layers = num_layers, .num_kv_heads = num_kv_heads, .head_dim = head_dim};
}

void ExpectEqual(const EntryHeader& found, const EntryHeader& expected) {
  EXPECT_EQ(found.address.model_fingerprint, expected.address.model_fingerprint);
  EXPECT_EQ(found.address.key, expected.address.key);
  EXPECT_EQ(found.address.content_key, expected.address.content_key);
  EXPECT_EQ(found.address.anchor_hash, expected.address.anchor_hash);
  EXPECT_EQ(found.address.format, expected.address.format);
  EXPECT_EQ(found.address.tenant_namespace, expected.address.tenant_namespace);
  EXPECT_EQ(found.address.num_tokens, expected.address.num_tokens);
  EXPECT_EQ(found.label, expected.label);
  EXPECT_EQ(found.compute_cost_seconds, expected.compute_cost_seconds);
  EXPECT_EQ(found.created, expected.created);
  ASSERT_EQ(found.layers.size(), expected.layers.size());
  for (size_t layer = 0; layer < found.layers.size(); ++layer) {
    EXPECT_EQ(found.layers[layer].k, expected.layers[layer].k) << layer;
    EXPECT_EQ(found.layers[layer].v, expected.layers[layer].v) << layer;
  }
}

std::string EntryBytes(const EntryHeader& header, const ChunkKv& kv) {
  std::string bytes = *EncodeEntryHeader(header);
  for (int32_t layer = 0; layer < kv.format().num_layers; ++layer) {
    const absl::Span<const std::byte> layer_bytes = kv.LayerBytes(layer);
    bytes.append(reinterpret_cast<const char*>(layer_bytes.data()), layer_bytes.size());
  }
  return bytes;
}

void ExpectLayersVerified(const EntryHeader& header, const std::string& entry) {
  const auto size = static_cast<size_t>(header.layer_bytes());
  for (int32_t layer = 0; layer < header.address.format.num_layers; ++layer) {
    const auto begin = static_cast<size_t>(header.header_bytes()) + static_cast<size_t>(layer) * size;
    const absl::Status verified = VerifyLayer(header, layer, AsBytes(entry).subspan(begin, size));
    EXPECT_TRUE(verified.ok()) << verified;
  }
}

TEST(EntryFormatTest, WhatWasWrittenIsRead) {
  std::mt19937_64 random(1);
  for (const auto encoding : kEncodings) {
    for (const auto& [layers, heads, dim, tokens] :
         {std::tuple(1, 1, 1, 1), std::tuple(2, 3, 5, 0), std::tuple(3, 2, 7, 33), std::tuple(5, 1, 64, 65),
          std::tuple(72, 1, 8, 3), std::tuple(73, 1, 8, 3), std::tuple(200, 1, 2, 0)}) {
      SCOPED_TRACE(testing::Message() << kernels::Name(encoding) << " " << layers << " layers, " << tokens
                                      << " tokens of " << heads << " x " << dim);
      const KvFormat format = FormatOf(encoding, layers, heads, dim);
      const auto kv = RandomKv(format, tokens, random);
      const EntryHeader header = SampleHeader(format, tokens, kv.get());
      EXPECT_EQ(header.header_bytes() % 4096, 0);
      EXPECT_EQ(header.layer_bytes(), kv->layer_bytes());
      EXPECT_EQ(header.k_section_bytes(), kv->k_section_bytes());
      const std::string bytes = EntryBytes(header, *kv);
      ASSERT_EQ(static_cast<int64_t>(bytes.size()), header.total_bytes());

      const auto header_bytes = EntryHeaderBytes(AsBytes(bytes).subspan(0, 4096));
      ASSERT_TRUE(header_bytes.ok()) << header_bytes.status();
      EXPECT_EQ(*header_bytes, header.header_bytes());
      for (const size_t length : {static_cast<size_t>(*header_bytes), bytes.size()}) {
        const auto read = DecodeEntryHeader(AsBytes(bytes).subspan(0, length));
        ASSERT_TRUE(read.ok()) << read.status();
        ExpectEqual(*read, header);
        EXPECT_EQ(EntryBytes(*read, *kv), bytes);
      }
      ExpectLayersVerified(header, bytes);
    }
  }
}

TEST(EntryFormatTest, HeadersGrowByPages) {
  const auto header_bytes = [](int32_t layers) {
    return static_cast<int64_t>(EncodeEntryHeader(SampleHeader(FormatOf(kInt8, layers, 1, 1), 1))->size());
  };
  EXPECT_EQ(header_bytes(1), 4096);
  EXPECT_EQ(header_bytes(72), 4096);
  EXPECT_EQ(header_bytes(73), 8192);
  EXPECT_EQ(header_bytes(157), 8192);
  EXPECT_EQ(header_bytes(158), 12288);
  EXPECT_EQ(header_bytes(1 << 16), 3149824);
}

TEST(EntryFormatTest, ExtremeValuesSurvive) {
  EntryHeader header = SampleHeader(FormatOf(kBF16, 1, 1, 1), 1);
  header.address.tenant_namespace = std::string(128, '\xFF');
  header.label = std::string(256, '\0');
  for (const double cost :
       {0.0, std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max()}) {
    for (const int64_t created : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0},
                                  std::numeric_limits<int64_t>::max()}) {
      header.compute_cost_seconds = cost;
      header.created = absl::FromUnixMicros(created);
      const auto read = DecodeEntryHeader(AsBytes(*EncodeEntryHeader(header)));
      ASSERT_TRUE(read.ok()) << read.status();
      ExpectEqual(*read, header);
    }
  }
  header.created = absl::FromUnixNanos(1999);
  EXPECT_EQ(DecodeEntryHeader(AsBytes(*EncodeEntryHeader(header)))->created, absl::FromUnixMicros(1));
  header.created = absl::FromUnixNanos(-1);
  EXPECT_EQ(DecodeEntryHeader(AsBytes(*EncodeEntryHeader(header)))->created, absl::FromUnixMicros(-1));
}

TEST(EntryFormatTest, TheWriterRefusesByName) {
  struct Case {
    const char* message;
    void (*spoil)(EntryHeader&);
  };
  for (const Case& c : {
           Case{"tenant_namespace has 129 bytes; allowed: at most 128",
                [](EntryHeader& h) { h.address.tenant_namespace = std::string(129, 'n'); }},
           Case{"label has 257 bytes; allowed: at most 256",
                [](EntryHeader& h) { h.label = std::string(257, 'l'); }},
           Case{"compute_cost_seconds is -1", [](EntryHeader& h) { h.compute_cost_seconds = -1; }},
           Case{"compute_cost_seconds is nan",
                [](EntryHeader& h) { h.compute_cost_seconds = std::numeric_limits<double>::quiet_NaN(); }},
           Case{"compute_cost_seconds is inf",
                [](EntryHeader& h) { h.compute_cost_seconds = std::numeric_limits<double>::infinity(); }},
           Case{"created is infinite-future", [](EntryHeader& h) { h.created = absl::InfiniteFuture(); }},
           Case{"created is infinite-past", [](EntryHeader& h) { h.created = absl::InfinitePast(); }},
           Case{"checksums of 1 layers; the KV format has 2", [](EntryHeader& h) { h.layers.pop_back(); }},
           Case{"num_layers is 0", [](EntryHeader& h) { h.address.format.num_layers = 0; }},
           Case{"head_dim is -4", [](EntryHeader& h) { h.address.format.head_dim = -4; }},
           Case{"num_tokens is -1", [](EntryHeader& h) { h.address.num_tokens = -1; }},
           Case{"encoding is 6",
                [](EntryHeader& h) { h.address.format.encoding = static_cast<kernels::KvEncoding>(6); }},
           Case{"version is 2", [](EntryHeader& h) { h.address.format.version = 2; }},
       }) {
    EntryHeader header = SampleHeader(FormatOf(kInt8, 2, 1, 4), 3);
    ASSERT_TRUE(EncodeEntryHeader(header).ok());
    c.spoil(header);
    const auto bytes = EncodeEntryHeader(header);
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(bytes.status().message(), HasSubstr(c.message));
  }
}

TEST(EntryFormatTest, VerifyLayerNamesWhatIsWrong) {
  std::mt19937_64 random(2);
  const KvFormat format = FormatOf(kInt4, 3, 2, 6);
  const auto kv = RandomKv(format, 40, random);
  const EntryHeader header = SampleHeader(format, 40, kv.get());
  EXPECT_TRUE(VerifyLayer(header, 1, kv->LayerBytes(1)).ok());
  const absl::Status other_layer = VerifyLayer(header, 1, kv->LayerBytes(2));
  EXPECT_EQ(other_layer.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(other_layer.message(), HasSubstr("layer 1: the K section"));
  kv->MutableLayerBytes(1).back() ^= std::byte{1};
  EXPECT_THAT(VerifyLayer(header, 1, kv->LayerBytes(1)).message(), HasSubstr("layer 1: the V section"));
  const absl::Status cut = VerifyLayer(header, 0, kv->LayerBytes(0).subspan(1));
  EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(cut.message(), AllOf(HasSubstr("layer 0 has 8191 bytes"), HasSubstr("expected 8192")));
  for (const int32_t layer : {-1, 3}) {
    EXPECT_EQ(VerifyLayer(header, layer, kv->LayerBytes(0)).code(), absl::StatusCode::kInvalidArgument);
  }
}

/// One entry of entry_vectors.txt.
struct Vector {
  std::map<std::string, std::string> fields;
  std::string bytes;
};

std::vector<Vector> ReadVectors() {
  std::ifstream file(KVBLEND_SOURCE_DIR "/tests/unit/store/entry_vectors.txt");
  EXPECT_TRUE(file.is_open());
  std::vector<Vector> vectors;
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    EXPECT_EQ(parts.size(), 2u) << line;
    if (parts.at(0) == "entry") vectors.emplace_back();
    Vector& vector = vectors.at(vectors.size() - 1);
    if (vector.bytes.empty()) {
      vector.fields[parts[0]] = parts.at(1);
      if (parts[0] == "size") vector.bytes.resize(std::stoul(parts[1]));
    } else {
      const std::vector<std::string> columns = absl::StrSplit(line, ' ');
      const std::string row = absl::HexStringToBytes(columns.at(2));
      size_t at = std::stoul(columns[0], nullptr, 16);
      for (int times = std::stoi(columns[1]); times > 0; --times, at += row.size()) {
        vector.bytes.replace(at, row.size(), row);
      }
    }
  }
  return vectors;
}

int32_t IntegerField(const Vector& vector, const std::string& name) {
  return std::stoi(vector.fields.at(name));
}

Digest DigestField(const Vector& vector, const std::string& name) {
  return *DigestFromHex(vector.fields.at(name));
}

/// The header that a vector was made from, its layers left out.
EntryHeader HeaderOf(const Vector& vector) {
  EntryHeader header;
  for (const auto encoding : kEncodings) {
    if (kernels::Name(encoding) == vector.fields.at("encoding")) header.address.format.encoding = encoding;
  }
  header.address.format.num_layers = IntegerField(vector, "num_layers");
  header.address.format.num_kv_heads = IntegerField(vector, "num_kv_heads");
  header.address.format.head_dim = IntegerField(vector, "head_dim");
  header.address.num_tokens = IntegerField(vector, "num_tokens");
  header.address.key = ChunkKey(DigestField(vector, "key"));
  header.address.content_key = ContentKey(DigestField(vector, "content_key"));
  header.address.anchor_hash = DigestField(vector, "anchor_hash");
  header.address.model_fingerprint = DigestField(vector, "model_fingerprint");
  header.address.tenant_namespace = absl::HexStringToBytes(vector.fields.at("tenant_namespace"));
  header.label = absl::HexStringToBytes(vector.fields.at("label"));
  header.compute_cost_seconds = std::strtod(vector.fields.at("compute_cost_seconds").c_str(), nullptr);
  header.created = absl::FromUnixMicros(std::stoll(vector.fields.at("created_unix_micros")));
  return header;
}

/// What make_entry_vectors.py says of byte i.
void FillAsTheVectors(ChunkKv& kv) {
  for (int32_t layer = 0; layer < kv.format().num_layers; ++layer) {
    const MutableLayerKv sections = kv.MutableLayer(layer);
    for (const auto& [section, is_v] : {std::pair(sections.k, 0), std::pair(sections.v, 1)}) {
      for (int64_t i = 0; i < section.layout().size_bytes && kv.num_tokens() > 0; ++i) {
        static_cast<uint8_t*>(section.data)[i] =
            static_cast<uint8_t>((7 * i + 31 * layer + 101 * is_v + 1) % 251);
      }
    }
  }
}

TEST(EntryFormatTest, AgreesWithTheIndependentImplementation) {
  const std::vector<Vector> vectors = ReadVectors();
  ASSERT_EQ(vectors.size(), 7u);
  for (const Vector& vector : vectors) {
    SCOPED_TRACE(vector.fields.at("entry"));
    EntryHeader expected = HeaderOf(vector);
    const auto kv = *ChunkKv::Allocate(expected.address.format, expected.address.num_tokens);
    FillAsTheVectors(*kv);
    expected.layers = ChecksumsOf(*kv);
    EXPECT_EQ(EntryBytes(expected, *kv), vector.bytes) << "the writers differ";

    const auto read = DecodeEntryHeader(AsBytes(vector.bytes));
    ASSERT_TRUE(read.ok()) << read.status();
    ExpectEqual(*read, expected);
    ASSERT_EQ(read->total_bytes(), static_cast<int64_t>(vector.bytes.size()));
    ExpectLayersVerified(*read, vector.bytes);
  }
}

}  // namespace
}  // namespace kvblend::store
