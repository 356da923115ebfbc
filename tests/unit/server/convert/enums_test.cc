#include "server/convert/enums.h"

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "kvblend/v1/admin.pb.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server {
namespace {

// Every value of either side has one of the same name on the other; only `without_wire` has none.
template <typename Ours, typename Wire>
void ExpectCounterparts(const std::string& without_wire = "") {
  const google::protobuf::EnumDescriptor& descriptor = *google::protobuf::GetEnumDescriptor<Wire>();
  SCOPED_TRACE(descriptor.full_name());
  std::set<int> seen = {0};
  for (const auto& [ours, name] : NamesOf(Ours{})) {
    const Wire wire = ToWire<Wire>(ours);
    if (name == without_wire) {
      EXPECT_EQ(wire, Wire{});
      continue;
    }
    EXPECT_TRUE(seen.insert(wire).second) << name << " has no value of its own on the wire";
    EXPECT_EQ(Name(wire), name);
    EXPECT_EQ(FromWire<Ours>(wire), ours) << name;
  }
  EXPECT_EQ(static_cast<int>(seen.size()), descriptor.value_count()) << "the engine lacks one";
  EXPECT_EQ(FromWire<Ours>(Wire{}), std::nullopt);
  EXPECT_EQ(FromWire<Ours>(static_cast<Wire>(100)), std::nullopt);
  EXPECT_EQ(Name(static_cast<Wire>(100)), "unknown");
  EXPECT_EQ(Name(Wire{}), "unspecified");
}

TEST(ConvertEnumsTest, BothSidesHaveTheSameNames) {
  ExpectCounterparts<Policy, v1::Policy>();
  ExpectCounterparts<Reuse, v1::Reuse>();
  ExpectCounterparts<Anchoring, v1::Anchoring>();
  ExpectCounterparts<Priority, v1::Priority>();
  ExpectCounterparts<PromptSplit, v1::PromptSplit>();
  ExpectCounterparts<DeviationSource, v1::DeviationSource>();
  ExpectCounterparts<RatioMode, v1::RatioMode>();
  ExpectCounterparts<Role, v1::Role>();
  ExpectCounterparts<ChunkSource, v1::ChunkSource>();
  ExpectCounterparts<FinishReason, v1::FinishReason>();
  ExpectCounterparts<Tier, v1::Tier>("none");
  ExpectCounterparts<LearningState, v1::LearningState>();
  ExpectCounterparts<CorrectionAction, v1::CorrectionAction>();
}

TEST(ConvertEnumsTest, ValuesAreFoundByEitherName) {
  const google::protobuf::EnumDescriptor& sources = *v1::ChunkSource_descriptor();
  EXPECT_EQ(FindValue(sources, "other_anchor")->number(), v1::CHUNK_SOURCE_OTHER_ANCHOR);
  EXPECT_EQ(FindValue(sources, "CHUNK_SOURCE_OTHER_ANCHOR")->number(), v1::CHUNK_SOURCE_OTHER_ANCHOR);
  EXPECT_EQ(FindValue(sources, "OTHER_ANCHOR"), nullptr);
  EXPECT_EQ(FindValue(sources, ""), nullptr);
  EXPECT_EQ(ListNames(*v1::Policy_descriptor()), "query, hkvd, link, none, all, random");
}

}  // namespace
}  // namespace kvblend::server
