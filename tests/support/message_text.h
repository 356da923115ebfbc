// Protocol messages as text: for tests that set or expect many fields.
#pragma once

#include <string>

#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace kvblend::test_support {

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

/// Fields that `text` leaves out must not be set.
template <typename Message>
void ExpectMessage(const Message& message, const std::string& text) {
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(FromText<Message>(text), message)) << difference;
}

}  // namespace kvblend::test_support
